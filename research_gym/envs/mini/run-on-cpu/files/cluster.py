"""Clusters the rows of a table and compares the clusters with its classes."""

import argparse
import csv
import json
import os

import numpy as np

import backend
from kmeans import fit


def load(path):
    """Returns standardised features and the classes."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))[1:]
    features = np.array([row[1:-1] for row in rows], dtype=np.float64)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    return features, [row[-1] for row in rows]


def purity(assigned, classes):
    """Share of rows whose class is the most frequent one of their cluster."""
    right = 0
    for cluster in set(assigned.tolist()):
        names = [name for name, own in zip(classes, assigned) if own == cluster]
        right += max(names.count(name) for name in set(names))
    return right / len(classes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", default="results")
    args = parser.parse_args()

    backend.select(args.device)
    features, classes = load(args.data)
    assigned, inertia, iterations = fit(features, args.clusters, args.seed)
    metrics = {"inertia": inertia, "purity": purity(assigned, classes), "iterations": iterations}
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "assignments.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "cluster"])
        writer.writerows(enumerate(assigned.tolist()))
    with open(os.path.join(args.out, "metrics.json"), "w") as file:
        json.dump(metrics, file)
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()

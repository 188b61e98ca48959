"""Ranks the rows of a table by their distance to each of its rows and measures the rankings."""

import argparse
import csv
import json
import os

import numpy as np
from tinyrank import average_precision, ndcg, reciprocal_rank


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cutoff", type=int, default=10)
    parser.add_argument("--out", default="results")
    args = parser.parse_args()

    with open(args.data, newline="") as file:
        rows = list(csv.reader(file))[1:]
    features = np.array([row[1:-1] for row in rows], dtype=np.float64)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    classes = np.array([row[-1] for row in rows])

    queries = []
    for query in range(len(rows)):
        distances = np.sqrt(((features - features[query]) ** 2).sum(axis=1))
        distances[query] = np.inf
        order = np.argsort(distances, kind="stable")[:-1]
        gains = (classes[order] == classes[query]).astype(int).tolist()
        queries.append((ndcg(gains, k=args.cutoff), average_precision(gains), reciprocal_rank(gains)))

    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "queries.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["query", "ndcg", "ap", "rr"])
        writer.writerows((row[0], *values) for row, values in zip(rows, queries))
    means = np.mean(queries, axis=0)
    metrics = {"ndcg": float(means[0]), "map": float(means[1]), "mrr": float(means[2])}
    with open(os.path.join(args.out, "metrics.json"), "w") as file:
        json.dump(metrics, file)
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()

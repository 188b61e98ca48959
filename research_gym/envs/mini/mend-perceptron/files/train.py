"""Trains a perceptron on a table and writes metrics, history and weights."""

import argparse
import csv
import json
import os

import numpy as np

from dataset import Standardiser, load, split
from model import Perceptron


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data/wdbc.csv", help="CSV file, see data/README.md")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test-share", type=float, default=0.3)
    parser.add_argument("--plain", action="store_true", help="predict with the last weights instead of their mean")
    parser.add_argument("--out", default="results")
    args = parser.parse_args()

    random = np.random.RandomState(args.seed)
    features, labels, names = load(args.data)
    train, test = split(labels, args.test_share, random)
    standardise = Standardiser(features[train])
    train_features, test_features = standardise(features[train]), standardise(features[test])

    model = Perceptron(len(names), averaged=not args.plain)
    history = []
    for epoch in range(1, args.epochs + 1):
        order = random.permutation(len(train))
        mistakes = model.learn(train_features[order], labels[train][order])
        accuracy = model.accuracy(test_features, labels[test])
        history.append((epoch, mistakes, accuracy))
        print("epoch %d: %d mistakes, test accuracy %.4f" % history[-1])

    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "history.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "mistakes", "test_accuracy"])
        writer.writerows(history)
    weights, bias = model.parameters()
    np.savez(
        os.path.join(args.out, "weights.npz"),
        weights=weights,
        bias=bias,
        mean=standardise.mean,
        deviation=standardise.deviation,
    )
    metrics = {
        "epochs": args.epochs,
        "seed": args.seed,
        "averaged": not args.plain,
        "train_accuracy": float(model.accuracy(train_features, labels[train])),
        "test_accuracy": float(model.accuracy(test_features, labels[test])),
        "mistakes": int(model.mistakes),
    }
    with open(os.path.join(args.out, "metrics.json"), "w") as file:
        json.dump(metrics, file, indent=2)
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()

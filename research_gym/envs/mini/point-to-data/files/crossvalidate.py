"""Chooses the penalty of a ridge regression by cross-validation."""

import argparse
import configparser
import csv
import json
import os

import numpy as np


def names(text):
    """Splits a list of names at its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def load(section):
    """Returns features (rows, columns) and the target of the rows without missing values."""
    separator = {"tab": "\t"}.get(section["separator"], section["separator"])
    with open(section["path"], newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        header = next(reader)
        rows = [row for row in reader if row]
    target = header.index(section["target"])
    ignored = {header.index(name) for name in names(section.get("ignore", ""))}
    columns = [column for column in range(len(header)) if column != target and column not in ignored]
    decimal = section.get("decimal", ".")
    complete = [row for row in rows if all(row[column].strip() for column in [*columns, target])]

    def number(text):
        return float(text.replace(decimal, "."))

    features = np.array([[number(row[column]) for column in columns] for row in complete])
    return features, np.array([number(row[target]) for row in complete])


def ridge(features, target, penalty):
    """Weights of standardised features; the mean is not penalised."""
    gram = features.T @ features + penalty * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ target)


def squared_errors(features, target, folds, penalty):
    """Squared error of each row, predicted by the model of the other folds."""
    errors = np.zeros(len(target))
    for fold in range(folds.max() + 1):
        train, test = folds != fold, folds == fold
        mean, deviation = features[train].mean(axis=0), features[train].std(axis=0)
        weights = ridge((features[train] - mean) / deviation, target[train] - target[train].mean(), penalty)
        predicted = (features[test] - mean) / deviation @ weights + target[train].mean()
        errors[test] = (predicted - target[test]) ** 2
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="config.ini")
    args = parser.parse_args()
    config = configparser.ConfigParser()
    with open(args.config) as file:
        config.read_file(file)

    features, target = load(config["data"])
    model = config["model"]
    random = np.random.RandomState(model.getint("seed"))
    folds = random.permutation(np.arange(len(target)) % model.getint("folds"))
    path = []
    for penalty in [float(text) for text in names(model["penalties"])]:
        rmse = float(np.sqrt(squared_errors(features, target, folds, penalty).mean()))
        path.append((penalty, rmse))
        print("penalty %g: rmse %.4f" % (penalty, rmse))
    best = min(path, key=lambda entry: entry[1])
    metrics = {"best_penalty": best[0], "rmse": best[1], "rows": len(target)}
    folder = config["output"]["folder"]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "path.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["penalty", "rmse"])
        writer.writerows(path)
    with open(os.path.join(folder, "metrics.json"), "w") as file:
        json.dump(metrics, file)
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()

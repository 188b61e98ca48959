"""Reads the table, splits it and standardises the features."""

import csv

import numpy as np


def load(path):
    """Returns features (rows, columns), labels in {-1, +1} (+1: malignant), and the names of the features."""
    with open(path, newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        rows = list(reader)
    features = np.array([row[1:-1] for row in rows], dtype=np.float64)
    malignant = np.array([row[-1] == "malignant" for row in rows])
    labels = malignant.astype(np.int) * 2 - 1
    return features, labels, header[1:-1]


def split(labels, test_share, random):
    """Returns row numbers of a stratified split, both parts shuffled."""
    train, test = [], []
    for label in (-1, 1):
        rows = np.flatnonzero(labels == label)
        random.shuffle(rows)
        count = int(round(test_share * len(rows)))
        test.append(rows[:count])
        train.append(rows[count:])
    train, test = np.concatenate(train), np.concatenate(test)
    random.shuffle(train)
    random.shuffle(test)
    return train, test


class Standardiser:
    """Mean 0 and deviation 1, with the statistics of the rows it was fitted on."""

    def __init__(self, features):
        self.mean = features.mean(axis=0)
        self.deviation = features.std(axis=0)
        self.deviation[self.deviation == 0] = 1.0

    def __call__(self, features):
        return (features - self.mean) / self.deviation

"""The perceptron and its averaged form."""

import numpy as np


class Perceptron:
    """A linear classifier that changes its weights only when it errs."""

    def __init__(self, columns, averaged=True):
        self.averaged = averaged
        self.weights = np.zeros(columns)
        self.bias = 0.0
        self.mistakes = 0
        self.steps = 0
        # Every change, times the step it was made at: the mean is computed from it without a sum at every step.
        self.late_weights = np.zeros(columns)
        self.late_bias = 0.0

    def learn(self, features, labels):
        """Goes once through the rows in order; returns the number of mistakes made on the way."""
        before = self.mistakes
        for row, label in zip(features, labels):
            if label * (row @ self.weights + self.bias) <= 0:
                self.weights += label * row
                self.bias += label
                self.late_weights += self.steps * label * row
                self.late_bias += self.steps * label
                self.mistakes += 1
            self.steps += 1
        return self.mistakes - before

    def parameters(self):
        """Returns weights and bias to predict with."""
        if not self.averaged or self.steps == 0:
            return self.weights, self.bias
        return self.weights - self.late_weights / self.steps, self.bias - self.late_bias / self.steps

    def predict(self, features):
        """Returns a label in {-1, +1} for every row."""
        weights, bias = self.parameters()
        return np.where(features @ weights + bias > 0, 1, -1)

    def accuracy(self, features, labels):
        """Returns the share of rows that are labelled right."""
        return (self.predict(features) == labels).astype(np.float).mean()

"""Scores: answers and submissions against labels that never enter the sandbox."""

"""Says whether a task is fit to train on: solvable, not gameable, its labels out of reach, its grades stable."""

from research_gym.testing.check_task.report import TaskReport
from research_gym.testing.check_task.runner import check_task, check_tasks

__all__ = ["TaskReport", "check_task", "check_tasks"]

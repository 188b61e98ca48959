"""The command line, `research-gym`: one module for each kind of thing that is asked of it."""

from research_gym.cli import checking, episodes, tasks, upkeep  # noqa: F401  # they add their commands to `main`
from research_gym.cli.group import main

__all__ = ["main"]

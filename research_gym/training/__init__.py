"""Rolling policies out over research environments."""

if __name__ != "research_gym.training":
    raise ImportError("import research_gym.training, not training: the top-level folder is a link into the package")

from research_gym.training.policies import NotebookPolicy, RandomPolicy, ReferencePolicy
from research_gym.training.rollout import Episode, run_episode

__all__ = ["Episode", "NotebookPolicy", "RandomPolicy", "ReferencePolicy", "run_episode"]

"""The environments: research tasks whose step is a notebook cell."""

if __name__ != "research_gym.envs":
    raise ImportError("import research_gym.envs, not envs: the top-level folder is a link into the package")

from research_gym.envs.research_env import ResearchEnv
from research_gym.envs.spaces import Unicode

__all__ = ["ResearchEnv", "Unicode"]

"""research_gym: research benchmarks as Gymnasium environments whose step is a notebook cell in a sandboxed live kernel.

Importing registers the environments (`gymnasium.pprint_registry()` lists them) and touches neither network nor disk
beyond the package.
"""

from research_gym.envs.registration import register_all
from research_gym.limits import Limits
from research_gym.reward import RewardSpec

__version__ = "0.1.0"
__all__ = ["Limits", "RewardSpec", "__version__"]

register_all()

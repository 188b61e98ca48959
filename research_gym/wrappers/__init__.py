"""Wrappers for research environments; the stock Gymnasium wrappers work too."""

if __name__ != "research_gym.wrappers":
    raise ImportError("import research_gym.wrappers, not wrappers: the top-level folder is a link into the package")

from research_gym.wrappers.faults import FaultsToTruncation
from research_gym.wrappers.limits import StepBudget, TokenBudget, WallBudget
from research_gym.wrappers.observation import TimeAwareObservation, TruncateObservation, WindowObservation
from research_gym.wrappers.recording import RecordEpisode
from research_gym.wrappers.reward import ScaleReward

__all__ = [
    "FaultsToTruncation",
    "RecordEpisode",
    "ScaleReward",
    "StepBudget",
    "TimeAwareObservation",
    "TokenBudget",
    "TruncateObservation",
    "WallBudget",
    "WindowObservation",
]

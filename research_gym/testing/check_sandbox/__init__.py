"""A conformance kit for sandboxes: what every one of them must do, tried out over a live one.

`python -m research_gym.testing.check_sandbox local` runs it from a shell;
`check_sandbox(MySandbox())` from a test of yours.
"""

from research_gym.testing.check_sandbox.kit import Check, CheckFailed
from research_gym.testing.check_sandbox.runner import check_sandbox, names

__all__ = ["Check", "CheckFailed", "check_sandbox", "names"]

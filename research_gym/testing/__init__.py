"""For tests of yours: conformance kits for sandboxes and tasks, and a sandbox that runs nothing."""

from research_gym.testing.check_sandbox import Check, check_sandbox
from research_gym.testing.check_task import TaskReport, check_task, check_tasks
from research_gym.testing.fakes import FakeSandbox, FakeSession

__all__ = ["Check", "FakeSandbox", "FakeSession", "TaskReport", "check_sandbox", "check_task", "check_tasks"]

"""Sandboxes: where the agent's kernel runs, seen from the host."""

from research_gym.sandbox.base import Bind, Finding, Sandbox, SandboxSpec
from research_gym.sandbox.choose import choose
from research_gym.sandbox.local import LocalSandbox
from research_gym.sandbox.session import FileStat, KernelStarted, RequestRefused, RunResult, Session

__all__ = [
    "Bind",
    "FileStat",
    "Finding",
    "KernelStarted",
    "LocalSandbox",
    "RequestRefused",
    "RunResult",
    "Sandbox",
    "SandboxSpec",
    "Session",
    "choose",
]

"""Whether this machine has a container engine and the kernel image."""

from __future__ import annotations

from functools import cache


@cache
def docker_missing() -> str:
    """Why containers cannot be tried here: one sentence, empty where they can."""
    from research_gym.sandbox.docker import DockerSandbox

    return next((f"docker: {found.topic}: {found.detail}" for found in DockerSandbox().findings() if not found.ok), "")

"""For tests that look at containers from both sides: an open session, and the engine's view of what is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from research_gym.cell import CellResult, Stream
from research_gym.limits import MIB, Limits
from research_gym.sandbox.base import SandboxSpec
from research_gym.sandbox.docker import DockerSandbox
from research_gym.sandbox.session import Session
from research_gym.sandbox.waiting import drive

MARK_LABEL = "research_gym.test"
LIMITS = Limits(
    memory_bytes=512 * MIB, disk_bytes=16 * MIB, shm_bytes=16 * MIB, processes=96, grace_s=1.0, start_timeout_s=30.0
)
"""Small limits, so that a test reaches them in a second."""
SPEC = SandboxSpec(limits=LIMITS)


def marked(client: Any, mark: str) -> list[str]:
    """Ids of the containers with a test's label, in whatever state."""
    return [row["Id"] for row in client.containers(all=True, filters={"label": f"{MARK_LABEL}={mark}"})]


@contextmanager
def opened(
    mark: str = "", *, kernel: bool = True, spec: SandboxSpec = SPEC, image: str | None = None
) -> Iterator[Session]:
    """A session in a container with the label, closed at the end."""
    session = drive(DockerSandbox(image=image).open(replace(spec, labels={MARK_LABEL: mark})))
    try:
        if kernel:
            drive(session.start_kernel())
        yield session
    finally:
        session.close()


def cell(session: Session, code: str, *, timeout_s: float = 20.0) -> CellResult:
    """Runs a cell, whatever comes of it."""
    return drive(session.execute(code, timeout_s=timeout_s, on_timeout="interrupt"))


def text(session: Session, code: str) -> str:
    """Runs a cell that must succeed and returns what it printed.

    Raises:
        AssertionError: it did not succeed.
    """
    result = cell(session, code)
    if result.status != "ok":
        raise AssertionError(f"expected the cell to succeed, found {result}")
    return "".join(item.text for item in result.outputs if isinstance(item, Stream)).strip()

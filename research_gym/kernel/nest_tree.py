"""All nests of a sandbox and their layers: who lies below whom, and what may go when a kernel has ended.

A nest must outlive its kernel as long as a fork of that kernel lives: the forks' PID namespaces lie inside it and their
files lie over its layer. When nothing below is left, the nest and its layer go, and so may the parent's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from research_gym.kernel.layers import Layers
from research_gym.kernel.nests import AgentUser, Nest, NestError, prepare


@dataclass(eq=False)
class Branch:
    """A nest at its place in the tree."""

    nest: Nest
    parent: Branch | None
    below: set[Branch] = field(default_factory=set)
    """Branches that still need this one."""
    needed: bool = True
    """Whether its own kernel (running or frozen as a snapshot) is wanted."""


class NestTree:
    """Makes and ends nests.

    Args:
        layers: Where the files of each nest go; closed by `close`.
        max_nests: More are refused: each costs a process, four namespaces and a tmpfs.
    """

    def __init__(self, layers: Layers, *, agent: AgentUser, max_nests: int = 256) -> None:
        self._layers = layers
        self._agent = agent
        self._max_nests = max_nests
        self.branches: set[Branch] = set()
        self.on_close: Callable[[Branch], None] = lambda branch: None
        """Told about each nest just before its processes are killed."""

    def grow(self, parent: Branch | None) -> Branch:
        """Makes a nest with an empty layer over the parent's files, or over the original directories.

        Blocks for about 10 ms: a caller that knows what comes (the next reset) prepares ahead.

        Raises:
            NestError: over 24 generations or `max_nests`, or a step failed; nothing is left behind.
        """
        if len(self.branches) >= self._max_nests:
            raise NestError(f"{len(self.branches)} kernels and snapshots live here already, the most a sandbox holds")
        if parent is not None and parent not in self.branches:
            raise NestError("the parent of this kernel is gone")
        try:
            layer = self._layers.add(parent.nest.layer if parent else None)
        except OSError as error:
            raise NestError(f"layer of a kernel: {error}") from error
        try:
            mounts = self._layers.mount_fds(layer)
            try:
                hide = () if parent else (self._layers.folder,)
                above = parent.nest if parent else None
                nest = prepare(above, agent=self._agent, mounts=mounts, hide=hide, layer=layer)
            finally:
                for fd in mounts.values():
                    os.close(fd)
        except OSError as error:
            self._layers.remove(layer)
            raise error if isinstance(error, NestError) else NestError(f"files of a kernel: {error}") from error
        branch = Branch(nest, parent)
        self.branches.add(branch)
        if parent is not None:
            parent.below.add(branch)
        return branch

    def retire(self, branch: Branch) -> None:
        """Says that a kernel has ended or is not wanted any more. Idempotent.

        Its nest ends now if nothing below needs it, else with the last that does. A kernel that is still in it keeps
        running until then: kill it by its pidfd first.
        """
        branch.needed = False
        at: Branch | None = branch
        while at is not None and not at.needed and not at.below and at in self.branches:
            self.on_close(at)
            at.nest.close()
            if at.nest.layer is not None:
                self._layers.remove(at.nest.layer)
            self.branches.remove(at)
            if at.parent is not None:
                at.parent.below.discard(at)
            at = at.parent

    def close(self) -> None:
        """Ends everything."""
        for branch in sorted(self.branches, key=lambda branch: -branch.nest.generation):
            branch.below.clear()
            self.retire(branch)
        self._layers.close()

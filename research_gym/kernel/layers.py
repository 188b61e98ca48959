"""Private files for each forked kernel: a copy-on-write layer over its parent's, on a tmpfs that is its disk quota.

Pid 1 owns the layers and makes every mount; the agent's mount namespaces hold the finished overlays and never the
layers. A layer under which others lie must not change: the kernel that wrote it is frozen, or has moved on to a layer
of its own.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research_gym.kernel.mounting import attach, detach, new_mount

_MAX_LOWERDIR_CHARS = 250
"""fsconfig takes 256 characters a value; longer stacks need `lowerdir+` (Linux 6.5)."""


@dataclass(frozen=True)
class Layer:
    """The files one kernel has changed, for each of its writable directories."""

    name: str
    path: str
    uppers: Mapping[str, str]
    """Writable directory -> where its changes are."""
    lowers: Mapping[str, tuple[str, ...]]
    """Writable directory -> what lies below, topmost first."""


class Layers:
    """All layers of one sandbox, in a folder that only pid 1 sees.

    Args:
        folder: An existing directory; a small tmpfs is mounted over it. Keep it short: paths in it go into mount
        options. roots: The directories an agent can write to (workspace, /tmp, HOME, /dev/shm); their present content
        is the lowest
            layer and must not change any more.
        rootless: Pid 1 has its rights only inside a user namespace: overlay then keeps its notes in `user.` attributes.
    """

    def __init__(
        self, folder: str, roots: Sequence[str], *, size_bytes: int, inodes: int, rootless: bool = False
    ) -> None:
        self._folder = folder
        self._roots = tuple(roots)
        self._size_bytes = size_bytes
        self._inodes = inodes
        self._rootless = rootless
        self._number = 0
        self._live: dict[str, Layer] = {}
        base_fd = new_mount("tmpfs", [("size", "64k"), ("nr_inodes", "4096"), ("mode", "0700")])
        attach(base_fd, folder)
        os.close(base_fd)

    @property
    def folder(self) -> str:
        """What must be out of every agent's sight."""
        return self._folder

    def add(self, parent: Layer | None) -> Layer:
        """Makes an empty layer over a parent's files, or over the original directories."""
        self._number += 1
        name = f"{self._number:x}"
        path = f"{self._folder}/{name}"
        os.mkdir(path, 0o700)
        try:
            limits = [("size", str(self._size_bytes)), ("nr_inodes", str(self._inodes)), ("mode", "0700")]
            quota_fd = new_mount("tmpfs", list(limits))
            attach(quota_fd, path)
            os.close(quota_fd)
            uppers: dict[str, str] = {}
            lowers: dict[str, tuple[str, ...]] = {}
            for number, root in enumerate(self._roots):
                below = (parent.uppers[root], *parent.lowers[root]) if parent else (root,)
                uppers[root], lowers[root] = f"{path}/{number}", below
                os.mkdir(uppers[root])
                os.mkdir(f"{path}/{number}w")
                self._copy_owner(below[0], uppers[root])
        except OSError:
            self._forget(path)
            raise
        layer = Layer(name, path, uppers, lowers)
        self._live[name] = layer
        return layer

    def mount_fds(self, layer: Layer) -> dict[str, int]:
        """Makes the overlays of a layer: writable directory -> mount descriptor, attached nowhere yet."""
        fds: dict[str, int] = {}
        try:
            for root in self._roots:
                fds[root] = self._overlay(layer.lowers[root], layer.uppers[root])
        except OSError:
            for fd in fds.values():
                os.close(fd)
            raise
        return fds

    def remove(self, layer: Layer) -> None:
        """Drops a layer. Its memory is free once no mount uses it; the caller knows that no layer above is alive."""
        if self._live.pop(layer.name, None) is not None:
            self._forget(layer.path)

    def close(self) -> None:
        """Drops everything, the folder's own tmpfs too."""
        for layer in list(self._live.values()):
            self.remove(layer)
        with contextlib.suppress(OSError):
            detach(self._folder)

    def _overlay(self, lowers: tuple[str, ...], upper: str) -> int:
        notes: list[tuple[str, str | None]] = [("userxattr", None)] if self._rootless else []
        tail: list[tuple[str, str | None]] = [("upperdir", upper), ("workdir", upper + "w"), *notes]
        joined = ":".join(lowers)
        if len(joined) <= _MAX_LOWERDIR_CHARS:
            return new_mount("overlay", [("source", "workspace"), ("lowerdir", joined), *tail])
        stack: list[tuple[str, str | None]] = [("lowerdir+", lower) for lower in lowers]
        return new_mount("overlay", [("source", "workspace"), *stack, *tail])

    def _copy_owner(self, source: str, target: str) -> None:
        found = os.stat(source)
        os.chmod(target, stat.S_IMODE(found.st_mode))  # while it is still ours: no capability needed
        if not self._rootless:
            os.chown(target, found.st_uid, found.st_gid)

    def _forget(self, path: str) -> None:
        with contextlib.suppress(OSError):
            detach(path)
        with contextlib.suppress(OSError):
            os.rmdir(path)

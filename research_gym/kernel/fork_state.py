"""What a forked process must renew, because it shares it with its parent or the threads are gone: loop, pools, files.

Each function here was needed once (measured in the lab); each is safe to call when there is nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import re
import selectors
import stat
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GRAVE: list[Any] = []
"""Objects of the parent that must never be finalised in a child: their finalisers would act on shared descriptors."""
_OMP_LIBRARY = re.compile(rb"(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)$")
_OMP_PAUSE_HARD = 2
_LOKY = ("joblib.externals.loky", "loky")
_MAP_SHARED, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x10, 0x20
_COPY_BYTES = 1 << 24

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


@dataclass(frozen=True)
class SharedMap:
    """One shared mapping of this process: the same in a fork, until it is renewed."""

    start: int
    end: int
    protection: int
    offset: int
    path: str


@dataclass(frozen=True)
class Maps:
    """What `/proc/self/maps` says that matters to a fork. Reading it takes milliseconds: once per fork request."""

    openmp: frozenset[str]
    """Paths of the OpenMP runtimes that are loaded."""
    shared: tuple[SharedMap, ...]


def read_maps() -> Maps:
    """Looks at the mappings of this process."""
    with open("/proc/self/maps", "rb") as file:
        lines = file.read().split(b"\n")
    openmp = {
        match[1].decode("utf-8", "surrogateescape")
        for line in lines
        if b"omp" in line and (match := _OMP_LIBRARY.search(line))
    }
    shared: list[SharedMap] = []
    for line in lines:
        if line.find(b"s ", 0, 40) < 0:
            continue
        parts = line.decode("utf-8", "surrogateescape").split(None, 5)
        if parts[1][3] != "s":
            continue
        start, end = (int(edge, 16) for edge in parts[0].split("-"))
        protection = (parts[1][0] == "r") * 1 | (parts[1][1] == "w") * 2 | (parts[1][2] == "x") * 4
        shared.append(SharedMap(start, end, protection, int(parts[2], 16), parts[5] if len(parts) > 5 else ""))
    return Maps(frozenset(openmp), tuple(shared))


def pause_openmp(maps: Maps) -> None:
    """Ends the thread pools of every OpenMP runtime: without them, a child that waits for its pool waits for ever.

    Only safe between cells and without user threads: nobody may be inside a parallel region.
    """
    for path in maps.openmp:
        with contextlib.suppress(OSError, AttributeError):  # not loadable by this name, or OpenMP before 5.0
            ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all(_OMP_PAUSE_HARD)


def renew_loop(loop: Any, *, drop: Collection[int]) -> None:
    """Gives an inherited asyncio loop its own selector and self-pipe, so that the agent's tasks live on in the child.

    The old epoll instance is shared with the parent: nothing is unregistered from it.

    Args:
        loop: A selector event loop that is not running.
        drop: Watched descriptors that stay with the parent.
    """
    old: selectors.BaseSelector = loop._selector
    keys = [key for key in old.get_map().values() if key.fd != loop._ssock.fileno() and key.fd not in drop]
    loop._selector = selectors.DefaultSelector()
    for key in keys:
        with contextlib.suppress(OSError, ValueError, KeyError):
            loop._selector.register(key.fileobj, key.events, key.data)
    loop._ssock.close()
    loop._csock.close()
    loop._internal_fds -= 1
    old.close()
    _GRAVE.append(old)
    loop._make_self_pipe()
    asyncio.set_event_loop(loop)


def renew_pools() -> None:
    """Forgets process pools and resource trackers of the parent; joblib and multiprocessing start their own again."""
    for package in _LOKY:
        module = sys.modules.get(f"{package}.reusable_executor")
        if module is not None:
            _GRAVE.append(module._executor)
            vars(module).update(_executor=None, _executor_kwargs=None, _executor_lock=threading.RLock())
        workers = sys.modules.get(f"{package}.process_executor")
        if workers is not None and hasattr(workers, "_threads_wakeups"):
            workers._threads_wakeups.clear()
        _renew_tracker(f"{package}.backend.resource_tracker")
    _renew_tracker("multiprocessing.resource_tracker")
    threads = sys.modules.get("concurrent.futures.thread")
    if threads is not None:
        threads._threads_queues.clear()  # joined at exit, but not there any more


def _renew_tracker(name: str) -> None:
    module = sys.modules.get(name)
    if module is None:
        return
    old = module._resource_tracker
    if getattr(old, "_fd", None) is not None:
        with contextlib.suppress(OSError):
            os.close(old._fd)
    _GRAVE.append(old)
    old._fd = old._pid = None  # its finaliser must not stop the parent's tracker
    new = type(old)()
    vars(module)["_resource_tracker"] = new
    for function in ("register", "unregister", "maybe_unlink", "ensure_running", "getfd"):
        if hasattr(module, function):
            vars(module)[function] = getattr(new, function)


def renew_pipes(*, keep: Collection[int]) -> None:
    """Replaces each pipe of the agent's code by a fresh one on the same numbers: siblings would share the old one."""
    groups: dict[int, list[tuple[int, bool]]] = {}
    for fd in _open_fds():
        with contextlib.suppress(OSError):
            found = os.fstat(fd)
            if (
                fd > 2
                and fd not in keep
                and stat.S_ISFIFO(found.st_mode)
                and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
            ):
                writes = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE)
                groups.setdefault(found.st_ino, []).append((fd, writes))
    for group in groups.values():
        ends = os.pipe2(os.O_CLOEXEC)
        for fd, writes in group:
            _replace(fd, ends[writes], flags=fcntl.fcntl(fd, fcntl.F_GETFL))
        for end in ends:
            os.close(end)


def reopen_files(roots: Sequence[str], *, moved: Mapping[str, str]) -> list[str]:
    """Opens files under the roots again by path, at the same offset: the old descriptors lead into the parent's layer.

    Returns the paths that could not be opened; their descriptors are closed, since what they reach is not this child's.
    """
    lost: list[str] = []
    for fd in _open_fds():
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if fd < 3 or not _beneath(target, roots):
            continue
        try:
            new = _reopened(fd, target, roots, moved)
        except OSError:
            lost.append(target)
            os.close(fd)
            continue
        _replace(fd, new, flags=None)
        os.close(new)
    return lost


def _reopened(fd: int, target: str, roots: Sequence[str], moved: Mapping[str, str]) -> int:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL)
    if target.endswith(" (deleted)"):
        return _copied(fd, next(root for root in roots if _beneath(target, [root])), flags)
    new = os.open(moved_path(target, moved), flags | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(new).st_mode):
        os.lseek(new, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    return new


def _copied(fd: int, root: str, flags: int) -> int:
    """A private copy of a file that has no name any more."""
    source = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    new = os.open(root, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | (flags & os.O_APPEND), 0o600)
    try:
        while piece := os.read(source, _COPY_BYTES):
            os.write(new, piece)
        os.lseek(new, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:
        os.close(new)
        raise
    finally:
        os.close(source)
    return new


def renew_shared_maps(maps: Maps, roots: Sequence[str], *, moved: Mapping[str, str]) -> int:
    """Renews shared memory at the same address: files under the roots from this child's layer, the rest as a copy.

    Returns how many maps were renewed.
    """
    renewed = 0
    for found in maps.shared:
        length = found.end - found.start
        if not (found.path.startswith("/dev/zero") or _beneath(found.path, roots)):
            continue
        if found.path.endswith(" (deleted)"):
            renewed += _copy_map(found.start, length, found.protection)
        else:
            renewed += _map_file(found.start, length, found.protection, moved_path(found.path, moved), found.offset)
    return renewed


def _copy_map(start: int, length: int, protection: int) -> bool:
    if not protection & 1:
        return False
    data = ctypes.string_at(start, length)
    if _libc.mmap(start, length, protection | 2, _MAP_SHARED | _MAP_FIXED | _MAP_ANONYMOUS, -1, 0) != start:
        return False
    ctypes.memmove(start, data, length)
    return True


def _map_file(start: int, length: int, protection: int, path: str, offset: int) -> bool:
    try:
        fd = os.open(path, (os.O_RDWR if protection & 2 else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(_libc.mmap(start, length, protection, _MAP_SHARED | _MAP_FIXED, fd, offset) == start)
    finally:
        os.close(fd)


def _replace(fd: int, new: int, *, flags: int | None) -> None:
    """Puts `new` at the number `fd`, keeping close-on-exec (and, with `flags`, the non-blocking mode)."""
    inheritable = os.get_inheritable(fd)
    if flags is not None and flags & os.O_NONBLOCK:
        os.set_blocking(new, False)
    os.dup2(new, fd, inheritable)


def _open_fds() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))


def _beneath(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def moved_path(path: str, moved: Mapping[str, str]) -> str:
    """Where a path of the parent is for the child."""
    for old, new in moved.items():
        if _beneath(path, [old]):
            return new + path[len(old) :]
    return path

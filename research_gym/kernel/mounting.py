"""The few Linux calls that make a private view of the files: the new mount API, namespaces, capabilities.

Numbers of the mount calls are the same on every architecture (they were added after the tables were unified).
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMESPACES = {
    "user": CLONE_NEWUSER,
    "mnt": CLONE_NEWNS,
    "net": CLONE_NEWNET,
    "ipc": CLONE_NEWIPC,
    "pid": CLONE_NEWPID,
}
"""Kinds of namespaces of a nest, in the order in which a process joins them."""

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_ATTR_NOSUID, _ATTR_NODEV = 0x2, 0x4
_MOVE_FROM_EMPTY_PATH = 0x4
_AT_FDCWD = -100
_MS_REC, _MS_PRIVATE, _MNT_DETACH = 1 << 14, 1 << 18, 2
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def new_mount(kind: str, options: list[tuple[str, str | None]]) -> int:
    """Makes a file system that is mounted nowhere yet (nosuid, nodev) and returns its mount descriptor (close-on-exec).

    Args:
        kind: `overlay`, `tmpfs`, `proc`.
        options: Name and value in order; `None` for a flag.

    Raises:
        OSError: the kernel refused an option or the file system; the message names the option.
    """
    config = _check(_libc.syscall(_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC), f"fsopen {kind}")
    try:
        for name, value in options:
            if value is None:
                done = _libc.syscall(_FSCONFIG, config, _SET_FLAG, name.encode(), None, 0)
            else:
                done = _libc.syscall(_FSCONFIG, config, _SET_STRING, name.encode(), value.encode(), 0)
            _check(done, f"{kind} option {name}={value}")
        _check(_libc.syscall(_FSCONFIG, config, _CREATE, None, None, 0), f"{kind} create")
        return _check(_libc.syscall(_FSMOUNT, config, _FSMOUNT_CLOEXEC, _ATTR_NOSUID | _ATTR_NODEV), f"fsmount {kind}")
    finally:
        os.close(config)


def attach(mount_fd: int, path: str) -> None:
    """Puts a mount at a path of this process's mount namespace, on top of what is there."""
    _check(
        _libc.syscall(_MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, path.encode(), _MOVE_FROM_EMPTY_PATH), f"mount at {path}"
    )


def detach(path: str) -> None:
    """Takes the topmost mount away from a path; whoever still uses it keeps it."""
    _check(_libc.umount2(path.encode(), _MNT_DETACH), f"umount {path}")


def make_private() -> None:
    """Stops mounts from propagating between this mount namespace and the one it was copied from."""
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make mounts private")


def unshare(flags: int) -> None:
    """Gives this process new namespaces."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def join(fd: int, flags: int) -> None:
    """Enters the namespace behind a descriptor; a PID namespace is entered by the next child."""
    _check(_libc.setns(fd, flags), f"setns {flags:#x}")


def drop_capabilities() -> None:
    """Gives up all capabilities of this process for ever: the bounding set first, then the sets themselves."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")

"""Mount calls in words, for building the root of a local sandbox. Every failure says what was being mounted."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from typing import Any

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MS_NOATIME, _MS_NODIRATIME, _MS_RELATIME = 1024, 2048, 1 << 21
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_KEPT = {"noexec": _MS_NOEXEC, "noatime": _MS_NOATIME, "nodiratime": _MS_NODIRATIME, "relatime": _MS_RELATIME}

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("spread", ctypes.c_uint64),
        ("users", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str, flags: int, options: str, *, what: str) -> None:
    """One mount(2). Empty strings stand for none.

    Raises:
        OSError: the kernel refused; the message begins with `what`.
    """
    _check(
        _libc.mount(
            os.fsencode(source) or None,
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
        what,
    )


def make_private() -> None:
    """Cuts this mount namespace off: nothing mounted here is seen outside."""
    mount("", "/", "", _MS_REC | _MS_PRIVATE, "", what="make mounts private")


def mount_tmpfs(path: str, options: str, *, read_only: bool = False) -> None:
    """A tmpfs without set-uid programs and devices."""
    flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
    mount("tmpfs", path, "tmpfs", flags, options, what=f"tmpfs at {path}")


def mount_proc(path: str) -> None:
    """The /proc of this process namespace."""
    mount("proc", path, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "", what="a fresh /proc")


def mount_devpts(path: str) -> None:
    """Pseudo terminals of our own."""
    mount(
        "devpts",
        path,
        "devpts",
        _MS_NOSUID | _MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620",
        what="pseudo terminals",
    )


def bind(fd: int, path: str, *, what: str, device: bool = False) -> None:
    """Shows what an `O_PATH` descriptor names at `path`: read-only, no set-uid programs, no devices, submounts too.

    Args:
        fd: Opened in this mount namespace.
        path: Made if it is not there.
        what: Name of the source, for messages.
        device: It is a device file: devices work, but nothing can be executed.
    """
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if not os.path.lexists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
    mount(f"/proc/self/fd/{fd}", path, "", _MS_BIND | _MS_REC, "", what=f"bind of {what}")
    if device:
        restrict(path, _ATTR_NOSUID | _ATTR_NOEXEC)
    else:
        restrict(path, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)


def make_read_only(path: str) -> None:
    """Makes a mount read-only; what is mounted below it keeps its own rights."""
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    mount("", path, "", flags, "", what=f"read-only {path}")


def restrict(path: str, attributes: int) -> None:
    """Adds restrictions to a mount and all mounted below it (`mount_setattr`, Linux 5.12; before: one by one)."""
    wanted = _Attributes(set=attributes)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    if result == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        _check(result, f"restrict {path}")
    for point, options in _mounts_below(os.path.realpath(path)):
        kept = sum(flag for name, flag in _KEPT.items() if name in options)
        mount("", point, "", _MS_REMOUNT | _MS_BIND | attributes | kept, "", what=f"restrict {point}")


def _mounts_below(path: str) -> list[tuple[str, list[str]]]:
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split()
            point = fields[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
            if point == path or point.startswith(path + "/"):
                found.append((point, fields[5].split(",")))
    return found


def enter(root: str) -> None:
    """Makes `root` (a mount, and the working directory) the root of this mount namespace; the old one is gone."""
    number = _PIVOT_ROOT[platform.machine()]
    os.chdir(root)
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", ctypes.c_int(_MNT_DETACH)), "unmount of the old root")
    os.chdir("/")


def is_folder(path: str) -> bool:
    """Whether `path` is a folder itself."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


Plan = list[dict[str, Any]]
"""What to build, in order; see `jail.build`."""

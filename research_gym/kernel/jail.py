"""The launcher of a local sandbox: makes namespaces and a root of its own for the supervisor, then waits for its end.

Two processes. The outer one stays where it was started; it writes the user map of the inner one, which no process can
do for itself where more than one user is mapped. The inner one is process 1 of everything new: it builds the root,
gives up what it does not need and executes the supervisor, which reads its own program from the same descriptor 0.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

from research_gym.kernel import mounts
from research_gym.kernel.process import PR_SET_PDEATHSIG, prctl

_NEW = {
    "mount": 0x00020000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63
_KEPT_CAPABILITIES = {
    0,
    1,
    5,
    6,
    7,
    31,
}  # CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID; SETFCAP to map a user onto its own
_FAILED = 71
_EMPTY = ".empty"
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

_libc = ctypes.CDLL(None, use_errno=True)


def main(settings: dict[str, Any]) -> None:
    """Entry of the bootstrap. Never returns.

    Args:
        settings: `program`: what to execute in the sandbox; `remove`: a folder to delete in the end, or null;
            and, unless `plain`: `users` and `groups` (texts for the maps), `one_user` (whether they map just one),
            `stage` (a folder to build the root on) and `plan` (see `build`).
    """
    os.umask(0o022)
    # A trainer may have blocked or ignored signals, and both would be inherited by everything here.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", "500")  # a machine short of memory must not look at the trainer first
    try:
        pid = _start_plain(settings) if settings["plain"] else _start(settings)
    except OSError as error:
        _say(error)
        _clean(settings)
        os._exit(_FAILED)
    null_fd = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_fd, 0)  # the stream belongs to the supervisor alone: its end must be the end
    os.dup2(null_fd, 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        _say(f"the supervisor was ended by signal {-code}")
    _clean(settings)
    os._exit(code if 0 <= code < 256 else 128 - code)


def _say(what: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"research_gym jail: {what}\n".encode("utf-8", "replace"))


def _clean(settings: dict[str, Any]) -> None:
    folder = settings.get("remove")
    if folder:
        for _ in range(20):  # processes on their way out may still write
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                break
            time.sleep(0.1)


def _start_plain(settings: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.execve(settings["program"][0], settings["program"], _ENV)
        except BaseException as error:  # the child must end here, whatever happened
            _say(error)
        finally:
            os._exit(_FAILED)
    return pid


def _start(settings: dict[str, Any]) -> int:
    machine = platform.machine()
    if machine not in _CLONE:
        raise OSError(f"expected one of {', '.join(_CLONE)}, found machine {machine!r}")
    mapped_fd, mapped_end = os.pipe()
    flags = sum(_NEW.values()) | signal.SIGCHLD
    # As fork does it: no stack of its own. The one thread of this process is what makes that safe.
    pid = _libc.syscall(ctypes.c_long(_CLONE[machine]), ctypes.c_ulong(flags), None, None, None, None)
    if pid < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"new namespaces: {os.strerror(error)}")
    if pid == 0:
        try:
            os.close(mapped_end)
            if os.read(mapped_fd, 1) == b"1":
                os.close(mapped_fd)
                _become_first(settings)
        except BaseException as error:  # the child must end here, whatever happened
            _say(error)
        finally:
            os._exit(_FAILED)
    os.close(mapped_fd)
    try:
        if settings["one_user"]:
            _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/uid_map", settings["users"])
        _write(f"/proc/{pid}/gid_map", settings["groups"])
        os.write(mapped_end, b"1")
    except OSError as error:
        raise OSError(error.errno, f"user map of the new namespace: {os.strerror(error.errno or 0)}") from error
    finally:
        os.close(mapped_end)
    return int(pid)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _become_first(settings: dict[str, Any]) -> None:
    """Process 1: root of nothing but these namespaces."""
    os.setsid()
    if not settings["one_user"]:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    socket.sethostname("sandbox")
    _raise_loopback()
    mounts.make_private()
    build(settings["plan"], stage=settings["stage"])
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in _KEPT_CAPABILITIES:
            with contextlib.suppress(OSError):  # the kernel knows fewer
                prctl(_PR_CAPBSET_DROP, capability)
    os.closerange(3, 65536)
    if settings["one_user"]:
        _go_on_as(settings["program"][-1])
    os.execve(settings["program"][0], settings["program"], _ENV)


def _go_on_as(program: str) -> NoReturn:
    """Runs the program in this very process, with the capabilities that an exec would have left.

    The folder in /proc of a process that cannot be dumped belongs to the root of the namespace in which its program was
    executed. Where one user is mapped, this namespace's root is the agent's user too; outside it is nobody in here.
    """
    kept = sum(1 << capability for capability in _KEPT_CAPABILITIES)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # Two words (capabilities 0 to 31, 32 to 63) of effective, permitted and inheritable ones.
    if _libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"capset: {os.strerror(error)}")
    os.environ.clear()
    os.environ.update(_ENV)
    exec(compile(program, "<bootstrap>", "exec"), {"__name__": "__main__"})
    os._exit(0)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def build(plan: mounts.Plan, *, stage: str) -> None:
    """Builds a root on a fresh tmpfs over `stage` and enters it; the old root and everything in it is gone.

    Each step of the plan has `do` and `path`, absolute in the new root:

    - `link` to `to`; `folder`; `file` with `text`: made on the root itself
    - `bind` of `source`: read-only, nosuid, nodev, with its submounts; `device`: the same for a device file
    - `tmpfs` with `options`: writable
    - `mask`: an empty, read-only folder or file over what is there; skipped where nothing is
    - `proc`, `devpts`: fresh ones
    - `lock`: read-only from here on

    Raises:
        OSError: a step failed; the message names it.
    """
    # Opened first: the stage may cover the way to a source.
    fds = {}
    for step in plan:
        if "source" in step:
            try:
                fds[step["source"]] = os.open(step["source"], os.O_PATH | os.O_CLOEXEC)
            except OSError as error:
                raise OSError(error.errno, f"bind of {step['source']}: {os.strerror(error.errno or 0)}") from error
    mounts.mount_tmpfs(stage, "size=8m,nr_inodes=20000,mode=0755")
    os.chdir(stage)
    for step in plan:
        _step(step, step["path"].lstrip("/"), fds)
    mounts.enter(".")
    mounts.make_read_only("/")


def _step(step: dict[str, Any], path: str, fds: dict[str, int]) -> None:
    kind = step["do"]
    if kind in ("link", "file"):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if kind in ("folder", "tmpfs", "proc", "devpts"):
        os.makedirs(path, exist_ok=True)
    if kind == "link":
        os.symlink(step["to"], path)
    elif kind == "file":
        with open(path, "x", encoding="utf-8") as file:
            file.write(step["text"])
    elif kind in ("bind", "device"):
        mounts.bind(fds[step["source"]], path, what=step["source"], device=kind == "device")
    elif kind == "tmpfs":
        mounts.mount_tmpfs(path, step["options"])
    elif kind == "mask" and os.path.lexists(path):
        if mounts.is_folder(path):
            mounts.mount_tmpfs(path, "size=4k,nr_inodes=2,mode=0755", read_only=True)
        else:
            _bind_path(_EMPTY, path)
    elif kind == "lock" and os.path.lexists(path):
        _bind_path(path, path)
    elif kind == "proc":
        mounts.mount_proc(path)
    elif kind == "devpts":
        mounts.mount_devpts(path)


def _bind_path(source: str, path: str) -> None:
    if source == _EMPTY and not os.path.exists(source):
        os.close(os.open(source, os.O_WRONLY | os.O_CREAT, 0o444))
    fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    try:
        mounts.bind(fd, path, what=path)
    finally:
        os.close(fd)


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("research_gym.kernel.jail: namespaces are Linux's")

"""Starting agent processes: unprivileged, limited, in sessions of their own, with three descriptors and no more."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from research_gym.kernel.procfs import control_group_limits_processes
from research_gym.kernel.seccomp import install_agent_filter

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ)


def prctl(option: int, value: int) -> None:
    """Sets one property of this process.

    Raises:
        OSError: the kernel refused.
    """
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


@dataclass(frozen=True)
class Child:
    """A process that pid 1 started."""

    pid: int
    error_fd: int
    """Read end of a pipe that holds the reason if the program could not be executed; empty and closed otherwise."""

    def read_error(self) -> str:
        """Why the program was not executed, or an empty string. To be called once, after the process ended."""
        os.set_blocking(self.error_fd, False)
        try:
            return os.read(self.error_fd, 4096).decode("utf-8", "replace")
        except BlockingIOError:
            return ""
        finally:
            os.close(self.error_fd)


class Spawner:
    """Knows who the agent is and what its processes may use."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        limits = config["limits"]
        self.isolated = bool(config["isolated"])
        self.leaf = bool(config.get("userns_leaf"))
        self._seccomp = bool(config.get("seccomp"))
        self.uid = int(config["agent_uid"])
        self.gid = int(config["agent_gid"])
        self.changes_user = self.isolated and not self.leaf
        self._rlimits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: int(limits["open_files"]),
            resource.RLIMIT_DATA: int(limits["memory_bytes"]),
            resource.RLIMIT_FSIZE: int(limits["disk_bytes"]),
        }
        # The per-user count is shared by every sandbox with the same uid, so it is the second choice.
        if self.isolated and not control_group_limits_processes():
            self._rlimits[resource.RLIMIT_NPROC] = int(limits["processes"])

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: int,
        stdout: int,
        stderr: int,
        root: bool = False,
    ) -> Child:
        """Starts a program as the agent, or with pid 1's own rights if `root`. Does not wait for the exec.

        Raises:
            OSError: no process could be made.
        """
        error_fd, error_end = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError:
            os.close(error_fd)
            os.close(error_end)
            raise
        if pid == 0:
            try:
                self._become(stdin, stdout, stderr, error_end, root=root)
                os.chdir(cwd)
                os.execvpe(argv[0], list(argv), dict(env))
            except BaseException as error:  # the child must end here, whatever happened
                with contextlib.suppress(OSError):
                    os.write(error_end, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:4096])
            finally:
                os._exit(127)
        os.close(error_end)
        return Child(pid, error_fd)

    def _become(self, stdin: int, stdout: int, stderr: int, keep_fd: int, *, root: bool) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for target, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, target)
        os.closerange(3, keep_fd)
        os.closerange(keep_fd + 1, 65536)
        prctl(
            PR_SET_DUMPABLE, 1
        )  # else /proc/self belongs to the real root, and neither the score nor the maps are ours
        with contextlib.suppress(OSError):
            _write("/proc/self/oom_score_adj", "500")  # where memory runs out, the agent goes before pid 1
        if not root:
            for limit, value in self._rlimits.items():
                _lower(limit, value)
            if self.leaf:
                self._enter_leaf()
            elif self.isolated:
                os.setgroups([])
                os.setresgid(self.gid, self.gid, self.gid)
                os.setresuid(self.uid, self.uid, self.uid)
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            if self._seccomp:
                install_agent_filter()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def _enter_leaf(self) -> None:
        """Only one uid is mapped here: a user namespace below gives the agent its own; exec takes all capabilities."""
        uid, gid = os.getuid(), os.getgid()
        if _libc.unshare(CLONE_NEWUSER) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"unshare of a user namespace: {os.strerror(error)}")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{self.uid} {uid} 1"),
            ("gid_map", f"{self.gid} {gid} 1"),
        ):
            _write(f"/proc/self/{name}", text)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))

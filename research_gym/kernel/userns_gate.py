"""The gate through which forked kernels step into their nests: `setns` asks pid 1, which lets the announced ones pass.

The agent's system call filter, but for one call: about `setns` it asks pid 1 (seccomp user notification) instead of
refusing. Pid 1 allows the calls that join one nest, in order, to one child of a kernel for each fork that it has
announced; every other one fails with EPERM, as `unshare`, `mount` and the rest always do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from research_gym.kernel.mounting import NAMESPACES
from research_gym.kernel.seccomp import agent_program

_NUMBERS = {"x86_64": (317, 308), "aarch64": (277, 268)}
"""Machine -> numbers of seccomp and setns."""
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_JUMP_EQUAL, _RETURN = 0x15, 0x06
_REFUSE, _USER_NOTIFICATION = 0x00050000 | errno.EPERM, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def gated_program(machine: str) -> bytes:
    """The agent's filter with a question to pid 1 in place of the refusal of `setns`.

    Raises:
        OSError: no table for this machine.
    """
    program = agent_program(machine)
    test = struct.pack("<HBBI", _JUMP_EQUAL, 0, 1, _NUMBERS[machine][1])
    refusal, question = (struct.pack("<HBBI", _RETURN, 0, 0, action) for action in (_REFUSE, _USER_NOTIFICATION))
    if program.count(test + refusal) != 1:
        raise OSError(
            errno.EINVAL, "the agent's filter does not refuse setns in one place: the gate has no place to stand"
        )
    return program.replace(test + refusal, test + question)


def install() -> int:
    """Puts the filter on this process and all it will start; returns the descriptor that pid 1's `Gate` listens on.

    Sets `no_new_privs`. Call it in the single-threaded process that becomes the kernel, before the program starts,
    and pass the descriptor to pid 1: as long as nobody listens, `setns` fails with ENOSYS.

    Raises:
        OSError: the machine is neither x86_64 nor aarch64, or Linux has no user notification (before 5.5).
    """
    machine = platform.machine()
    text = gated_program(machine)
    code = ctypes.create_string_buffer(text, len(text))
    program = _Program(len(text) // 8, ctypes.addressof(code))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    fd = _libc.syscall(_NUMBERS[machine][0], _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp listener: {os.strerror(error)}")
    return int(fd)


@dataclass
class _Pass:
    """One announced fork."""

    parent_pid: int
    order: tuple[int, ...]
    child_pid: int = 0
    joined: int = 0


class Gate:
    """Pid 1's side of one listener. `fileno()` is readable when a process waits at the gate."""

    def __init__(self, listener_fd: int) -> None:
        self._fd = listener_fd
        self._passes: list[_Pass] = []
        self.refused = 0
        """Calls that nobody had announced."""

    def fileno(self) -> int:
        return self._fd

    def announce(self, parent_pid: int, count: int, *, kinds: Sequence[str]) -> None:
        """Lets `count` children of a kernel through, each once, into nests with these kinds of namespaces."""
        order = tuple(NAMESPACES[kind] for kind in kinds)
        self._passes += [_Pass(parent_pid, order) for _ in range(count)]

    def revoke(self, parent_pid: int) -> None:
        """Takes back what is left of the passes of a kernel: its fork is over."""
        self._passes = [given for given in self._passes if given.parent_pid != parent_pid]

    def serve(self) -> None:
        """Answers the process that waits. Call it when `fileno()` is readable."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._fd, _RECEIVE, notice)
        except OSError:
            return  # it was interrupted or died meanwhile
        number, pid, _, _, _, _, _, flags, *_ = _NOTICE.unpack(notice)
        allowed = self._may_join(pid, flags & 0xFFFFFFFF)
        self.refused += not allowed
        answer = _ANSWER.pack(number, 0, 0 if allowed else -errno.EPERM, _CONTINUE if allowed else 0)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._fd, _SEND, answer)

    def close(self) -> None:
        """Closes the gate for ever: `setns` then fails with ENOSYS."""
        os.close(self._fd)

    def _may_join(self, pid: int, flags: int) -> bool:
        given = next((given for given in self._passes if given.child_pid == pid), None)
        if given is None:
            parent = _parent_of(pid)
            given = next((given for given in self._passes if given.child_pid == 0 and given.parent_pid == parent), None)
            if given is None:
                return False
            given.child_pid = pid
        if flags != given.order[given.joined]:
            return False
        given.joined += 1
        if given.joined == len(given.order):
            self._passes.remove(given)
        return True


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1

"""The system calls that agent processes lose: a filter for the last moment before their program is executed.

Everything else is allowed; capabilities and namespaces do the rest. What is refused are the calls that make or change
namespaces and mounts, that reach into other processes, and the parts of the system with the worst record (bpf,
io_uring, userfaultfd, keyrings, perf). Numbers: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (
    38,
    40,
)  # AF_ALG: a kernel interface with a record; AF_VSOCK: reaches the hypervisor past every network namespace
_X32 = 0x40000000

_SAME_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "open_tree_attr": 467,
}  # fmt: skip


@dataclass(frozen=True)
class _Machine:
    audit_arch: int
    clone: int
    sockets: tuple[int, ...]
    """socket, socketpair."""
    by_process: tuple[int, ...]
    """First argument a process: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, prlimit64, pidfd_open."""
    refused: Mapping[str, int]
    has_x32: bool = False


_MACHINES = {
    "x86_64": _Machine(
        audit_arch=0xC000003E,
        clone=56,
        sockets=(41, 53),
        by_process=(62, 200, 234, 129, 297, 302, 434),
        refused={
            "ptrace": 101, "syslog": 103, "uselib": 134, "sysfs": 139, "vhangup": 153, "pivot_root": 155,
            "_sysctl": 156,
            "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
            "swapoff": 168,
            "reboot": 169, "iopl": 172, "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176,
            "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246,
            "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
            "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "kexec_file_load": 320,
            "bpf": 321, "userfaultfd": 323,
        },
        has_x32=True,
    ),
    "aarch64": _Machine(
        audit_arch=0xC00000B7,
        clone=220,
        sockets=(198, 199),
        by_process=(129, 130, 131, 138, 240, 261, 434),
        refused={
            "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
            "vhangup": 58, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
            "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142,
            "settimeofday": 170,
            "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
            "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268,
            "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
            "userfaultfd": 282, "kexec_file_load": 294,
        },
    ),
}  # fmt: skip
CLONE3 = 435


def supported(machine: str | None = None) -> bool:
    """Whether the tables know this machine."""
    return (machine or platform.machine()) in _MACHINES


def agent_program(machine: str) -> bytes:
    """The filter as classic BPF instructions (`struct sock_filter`, 8 bytes each).

    Raises:
        OSError: no table for this machine.
    """
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"seccomp: expected one of {', '.join(_MACHINES)}, found machine {machine!r}")
    table = _MACHINES[machine]
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, table.audit_arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if table.has_x32:
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ABSENT)]
    for number in sorted({*table.refused.values(), *_SAME_EVERYWHERE.values()}):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # Its flags lie in memory, where a filter cannot look; C libraries fall back to clone.
    steps += [(_EQUAL, 0, 1, CLONE3), (_RETURN, 0, 0, _ABSENT)]
    steps += _argument(table.clone, [(_ANY_BIT, _NEW_NAMESPACES)])
    for number in table.sockets:
        steps += _argument(number, [(_EQUAL, family) for family in _FAMILIES])
    for number in table.by_process:
        # Without a user of its own the agent could signal the supervisor, which is always process 1 here.
        steps += _argument(number, [(_EQUAL, 1)])
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def _argument(number: int, tests: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Refuses one call if the low half of its first argument passes one of the tests."""
    body: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for test, value in tests:
        body += [(test, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(body), number), *body]


def install_agent_filter() -> None:
    """Puts the filter on this process and all it will start, for good. Call it after `no_new_privs`, just before exec.

    Raises:
        OSError: the kernel refused, or there is no table for this machine.
    """
    program = ctypes.create_string_buffer(agent_program(platform.machine()))

    class Filter(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_void_p))

    given = Filter((len(program) - 1) // 8, ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(given), 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp filter: {errno.errorcode.get(error, error)}")

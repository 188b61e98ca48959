"""Where a kernel lives: its own user, mount, network, IPC and PID namespace, made by pid 1 before the kernel comes.

Pid 1's own code makes the namespaces, mounts the layer and leaves a stub init that only reaps. A forked kernel then
merely joins what is there: no request of an agent process decides what is mounted where. What it joined is checked
from outside.

Isolates: files (one overlay for each writable directory), processes and signals, sockets (abstract ones and the
loopback too, unless the network is shared), System V IPC, `/proc`. Does not isolate: the kernel of the machine, memory
and CPU (the cgroup does that), a kernel's forks from that kernel itself, which owns their user namespaces: it must
stay frozen while they live.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from research_gym.kernel.layers import Layer
from research_gym.kernel.mounting import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    NAMESPACES,
    attach,
    detach,
    drop_capabilities,
    join,
    make_private,
    new_mount,
    unshare,
)

MAX_GENERATIONS = 24
_PREPARE_S = 5.0
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_UCRED = struct.Struct("3i")
_libc = ctypes.CDLL(None, use_errno=True)


class NestError(OSError):
    """The namespaces or mounts of a kernel could not be prepared; the message says which step failed."""


@dataclass(frozen=True)
class AgentUser:
    """Who the agent is inside a nest: the only user that exists there."""

    uid: int
    gid: int
    rootless: bool = False
    """Pid 1 has its rights in a user namespace with one uid, its own: the agent is that uid under another number."""

    def drop_groups(self) -> None:
        """Leaves pid 1's supplementary groups; a rootless pid 1 has none that count and may not."""
        if not self.rootless:
            os.setgroups([])

    def become(self, *, inside: bool) -> None:
        """Takes the agent's uid and gid; to a rootless pid 1 they exist only inside a nest."""
        if inside or not self.rootless:
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)

    def maps(self, *, inside: bool) -> tuple[tuple[str, str], ...]:
        """What to write into the files of a new user namespace made by `become(inside=...)`."""
        outer_uid, outer_gid = (self.uid, self.gid) if inside or not self.rootless else (0, 0)
        return (
            ("setgroups", "deny"),
            ("uid_map", f"{self.uid} {outer_uid} 1"),
            ("gid_map", f"{self.gid} {outer_gid} 1"),
        )


@dataclass
class Nest:
    """One set of namespaces and the process that keeps them."""

    init_pid: int
    generation: int
    layer: Layer | None
    ns_fds: dict[str, int]
    links: dict[str, str]
    """Namespace kind -> `kind:[inode]`, to compare with what a process claims to have joined."""
    mounts: str
    """The mount table when it was ready; a later difference means that somebody mounted something."""
    lifeline_fd: int
    """While this stays open the stub init lives; it ends with pid 1, whatever ends pid 1."""
    pidfd: int
    own_proc: bool = True
    """Whether /proc shows this nest only. Not so in a zero-capability container whose /proc has masked parts."""
    closed: bool = field(default=False)

    def join_fds(self) -> list[int]:
        """Descriptors to pass to a forked kernel, in the order in which it joins them."""
        return list(self.ns_fds.values())

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of namespaces, in the same order."""
        return tuple(self.ns_fds)

    def close(self) -> None:
        """Ends the stub init, and with it every process inside, those of nests below too. Idempotent."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        for fd in (*self.ns_fds.values(), self.lifeline_fd, self.pidfd):
            os.close(fd)


def prepare(
    parent: Nest | None,
    *,
    agent: AgentUser,
    mounts: Mapping[str, int],
    hide: Sequence[str] = (),
    layer: Layer | None = None,
    share_network: bool = False,
) -> Nest:
    """Makes a nest inside a parent's (or inside pid 1's own namespaces).

    Blocks for the few milliseconds that three short-lived helper processes take, at most 5 s.

    Args:
        agent: The user inside.
        mounts: Directory -> mount descriptor to put there (closed by the caller).
        share_network: Leave the network as it is outside: siblings then reach each other through it.
        hide: Mounts of pid 1 that are taken away before the agent's namespace is made.

    Raises:
        NestError: a step failed, or 24 generations lie below pid 1 already.
    """
    generation = parent.generation + 1 if parent else 0
    if generation > MAX_GENERATIONS:
        raise NestError(
            f"generation {generation} is over the limit of {MAX_GENERATIONS}: namespaces nest at most 32 deep"
        )
    lifeline_read, lifeline_fd = os.pipe2(os.O_CLOEXEC)
    try:
        kinds = {kind: flags for kind, flags in NAMESPACES.items() if kind != "net" or not share_network}
        init_pid = _start_init(parent, lifeline_read, agent=agent, hide=hide, flags=sum(kinds.values()))
        pidfd = os.pidfd_open(init_pid)
        ns_fds = {kind: os.open(f"/proc/{init_pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}
    except OSError as error:
        os.close(lifeline_fd)
        raise NestError(f"namespaces of a kernel could not be made: {error}") from error
    finally:
        os.close(lifeline_read)
    links = {kind: os.readlink(f"/proc/self/fd/{fd}") for kind, fd in ns_fds.items()}
    nest = Nest(init_pid, generation, layer, ns_fds, links, "", lifeline_fd, pidfd)
    try:
        _helper(lambda: _mount_inside(nest, mounts, agent), "mounts of a kernel")
        nest.mounts = read_mounts(init_pid)
        nest.own_proc = " - proc none rw" in nest.mounts.splitlines()[-1] or not agent.rootless
    except OSError:
        nest.close()
        raise
    return nest


def read_mounts(pid: int) -> str:
    """The mount table that a process sees."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def enter(nest: Nest, *, agent: AgentUser) -> None:
    """Moves this trusted, single-threaded process of pid 1 into a nest as the agent, without capabilities.

    Its next child is in the PID namespace. `no_new_privs` and the system call filter are the caller's.
    """
    agent.drop_groups()
    for kind, fd in nest.ns_fds.items():
        join(fd, NAMESPACES[kind])
    agent.become(inside=True)
    drop_capabilities()


def _start_init(parent: Nest | None, lifeline: int, *, agent: AgentUser, hide: Sequence[str], flags: int) -> int:
    """Runs the helper that makes the namespaces; returns the stub init's pid as pid 1 sees it."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with ours, theirs:
        plan = _Plan(theirs, lifeline, agent, flags, os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            _helper(lambda: _make_namespaces(parent, plan, hide=hide), "namespaces of a kernel")
        finally:
            os.close(plan.proc_fd)
        _, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_SPACE(_UCRED.size), socket.MSG_DONTWAIT)
        for _, kind, body in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                return int(_UCRED.unpack(body[: _UCRED.size])[0])
    raise NestError("the init of a kernel's namespaces did not report")


@dataclass(frozen=True)
class _Plan:
    """What the helper that makes namespaces needs."""

    report: socket.socket
    lifeline: int
    agent: AgentUser
    flags: int
    proc_fd: int
    """Pid 1's own /proc: the one of a parent nest does not know this helper."""


def _make_namespaces(parent: Nest | None, plan: _Plan, *, hide: Sequence[str]) -> None:
    """In the helper: steps into the parent's namespaces, makes the new ones as the agent, leaves the init there."""
    plan.agent.drop_groups()
    if parent is None:
        unshare(CLONE_NEWNS)
        make_private()
        for path in hide:
            detach(path)  # before the agent's user namespace: mounts that it inherits can never be taken away
        _split(plan, inside=False)
    else:
        for kind, fd in parent.ns_fds.items():
            join(fd, NAMESPACES[kind])
        _through_child(lambda: _split(plan, inside=True))


def _split(plan: _Plan, *, inside: bool) -> None:
    plan.agent.become(inside=inside)
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # else this process's maps belong to the real root and cannot be written
    unshare(plan.flags)
    for name, text in plan.agent.maps(inside=inside):
        fd = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=plan.proc_fd)
        os.write(fd, text.encode("ascii"))
        os.close(fd)
    make_private()
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if plan.flags & CLONE_NEWNET:
        _raise_loopback()
    if os.fork() == 0:
        _be_init(plan.report, plan.lifeline)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _be_init(report: socket.socket, lifeline: int) -> NoReturn:
    """Pid 1 of the new namespace: reaps whatever ends there, and ends when pid 1 of the sandbox does."""
    try:
        os.setsid()
        os.chdir("/")
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)  # SIGCHLD too: the kernel then reaps without our doing
        _libc.prctl(_PR_SET_NAME, b"init", 0, 0, 0)
        drop_capabilities()
        report.send(b"1")
        os.closerange(0, lifeline)
        os.closerange(lifeline + 1, 1 << 16)
        os.read(lifeline, 1)
    finally:
        os._exit(0)


def _mount_inside(nest: Nest, mounts: Mapping[str, int], agent: AgentUser) -> None:
    """In the helper, still with pid 1's rights: a /proc of the new PID namespace, then everything to its place."""
    join(nest.ns_fds["pid"], CLONE_NEWPID)

    def place() -> None:
        # Made before entering the agent's mount namespace, where masked parts of the old /proc would forbid a new one.
        made = dict(mounts)
        try:
            made["/proc"] = new_mount("proc", [])
        except PermissionError:
            if not agent.rootless:
                raise
        join(nest.ns_fds["mnt"], CLONE_NEWNS)
        for path, fd in made.items():
            attach(fd, path)

    _through_child(place)


def _through_child(step: Callable[[], None]) -> None:
    """Does a step in a child of this helper: only a child is inside a PID namespace that was joined."""
    pid = os.fork()
    if pid == 0:
        _finish(step)
    if os.waitpid(pid, 0)[1] != 0:
        raise NestError("a helper inside the PID namespace failed")


def _helper(step: Callable[[], None], what: str) -> None:
    """Runs a step in a short-lived copy of pid 1, which may enter namespaces for it.

    Raises:
        NestError: the step failed (its reason is in the message) or took longer than 5 s.
    """
    reason_fd, reason_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.dup2(reason_end, 2, inheritable=False)
        _finish(step)
    os.close(reason_end)
    with open(reason_fd, "rb") as reasons:
        ready, _, _ = select.select([reasons], [], [], _PREPARE_S)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if status != 0 or not ready:
            reason = (
                os.read(reason_fd, 4096).decode("utf-8", "replace").strip()
                if ready
                else f"no end within {_PREPARE_S:g} s"
            )
            raise NestError(f"{what}: {reason or f'helper ended with status {status}'}")


def _finish(step: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        step()
        status = 0
    except BaseException as error:  # this process ends here, whatever happened
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)

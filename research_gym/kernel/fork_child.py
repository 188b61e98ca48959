"""The fork itself: what the parent does before, and the steps by which a child becomes a kernel of its own.

This code runs in a process whose Python the agent may have patched. Nothing depends on its honesty: pid 1 prepared the
namespaces that a child joins, and checks the child from outside before it lets it serve.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from research_gym.kernel import fork_state
from research_gym.kernel.fork_refusal import Refusal, find_refusal, fold_helpers
from research_gym.kernel.frames import encode
from research_gym.kernel.mounting import NAMESPACES, drop_capabilities, join

if TYPE_CHECKING:
    from research_gym.kernel.fork_kernel import ForkKernel

_FAILED_EXIT = 70


@dataclass(frozen=True)
class Inherited:
    """What a child needs to know of the moment of its fork."""

    own: list[int]
    passed: list[int]
    maps: fork_state.Maps
    random_state: Any


def refusal(kernel: ForkKernel) -> Refusal | None:
    """Why this kernel cannot be forked now; folds away idle helpers first."""
    fold_helpers(kernel.kernel.shell)
    return find_refusal(own_sockets=_own_sockets(kernel))


def count_fds(request: dict[str, Any]) -> int:
    """How many descriptors came with a fork request."""
    return sum(_fds_of(child) for child in request["children"])


def _fds_of(child: dict[str, Any]) -> int:
    return 2 + len(child["enter"])


def fork_children(kernel: ForkKernel, request: dict[str, Any]) -> None:
    """Makes the requested children. Returns in the parent, and in each child with `kernel` serving the child's link.

    Every child is made by a short-lived process in between, so that it is nobody's zombie: pid 1 or the init of its
    namespace reaps it, whether or not this kernel still runs.
    """
    children = request["children"]
    passed = [kernel.link.fds.popleft() for _ in range(count_fds(request))]
    maps = fork_state.read_maps()
    fork_state.pause_openmp(maps)
    kernel.flush()
    gc.freeze()  # else the first collection in a child unshares every page that holds an object
    random_state = random.getstate()
    pids: list[int] = []
    failure = ""
    at = 0
    for child in children:
        own = passed[at : at + _fds_of(child)]
        at += len(own)
        try:
            pid = os.fork()
        except OSError as error:
            failure = str(error)
            break
        if pid == 0:
            _become(kernel, child, Inherited(own, passed, maps, random_state))
            return
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    gc.unfreeze()
    for fd in passed:
        os.close(fd)
    if failure:
        message = f"no process could be made for a fork: {failure}"
        kernel.link.send({"type": "refused", "id": request["id"], "what": "processes", "message": message})
    else:
        kernel.link.send({"type": "forked", "id": request["id"], "pids": pids})


def _become(kernel: ForkKernel, child: dict[str, Any], inherited: Inherited) -> None:
    """Turns this fresh copy of the parent into the child's kernel; ends the process if any step fails."""
    link_fd, pipe_fd = inherited.own[:2]
    try:
        cwd = os.getcwd()
        for kind, fd in zip(child["enter"], inherited.own[2:], strict=True):
            join(fd, NAMESPACES[kind])
        if os.fork():
            os._exit(0)
        os.setsid()
        for fd in inherited.passed:
            if fd not in (link_fd, pipe_fd):
                os.close(fd)
        if child["enter"]:
            drop_capabilities()
        _take_over(kernel, child, link_fd=link_fd, pipe_fd=pipe_fd)
        lost = _renew_state(kernel, child, inherited, cwd=cwd)
    except BaseException:  # whatever it was, this process is neither the parent nor a kernel
        _fail(link_fd)
    kernel.listen()
    ready = {"type": "ready", "name": child["name"], "pid": os.getpid(), "interrupt": "signal", "lost": lost[:32]}
    kernel.link.send(ready)


def _take_over(kernel: ForkKernel, child: dict[str, Any], *, link_fd: int, pipe_fd: int) -> None:
    """Swaps the parent's infrastructure for the child's: loop, link, output pipe, session."""
    fork_state.renew_loop(kernel.loop, drop={kernel.link.fileno()})
    kernel.link.renew(link_fd)
    for number in (1, 2):
        os.dup2(pipe_fd, number, inheritable=True)
    os.dup2(pipe_fd, kernel.pipe.fd, inheritable=False)
    os.close(pipe_fd)
    kernel.pipe.renew(nonce=child["nonce"], fd=kernel.pipe.fd)
    kernel.session.pid = os.getpid()
    kernel.session.session = os.urandom(16).hex()
    kernel.renew_locks()


def _renew_state(kernel: ForkKernel, child: dict[str, Any], inherited: Inherited, *, cwd: str) -> list[str]:
    """Everything the agent can reach: directory, files, shared memory, pools, random numbers."""
    moved: dict[str, str] = child.get("moved", {})
    roots: list[str] = child.get("roots", [])
    os.chdir(fork_state.moved_path(cwd, moved))
    lost = fork_state.reopen_files(roots, moved=moved)
    fork_state.renew_shared_maps(inherited.maps, roots, moved=moved)
    fork_state.renew_pipes(keep={kernel.pipe.fd})
    fork_state.renew_pools()
    random.setstate(inherited.random_state)  # Python reseeds it in every fork; numpy and torch do not
    if child.get("seed") is not None:
        reseed(int(child["seed"]))
    return lost


def reseed(seed: int) -> None:
    """Seeds `random`, and numpy's and torch's global generators where they are loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _own_sockets(kernel: ForkKernel) -> set[int]:
    loop: Any = kernel.loop
    return {kernel.link.fileno(), *kernel.link.fds, loop._ssock.fileno(), loop._csock.fileno()}


def _fail(link_fd: int) -> NoReturn:
    """Says why on the child's own link, whatever state the objects are in."""
    reason = traceback.format_exc()[-4000:]
    try:
        os.write(link_fd, encode({"type": "failed", "message": reason}))
    finally:
        os._exit(_FAILED_EXIT)

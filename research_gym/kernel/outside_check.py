"""Is this process what a forked kernel must be? Read from outside, in pid 1's own /proc, before the kernel may serve.

The kernel's process runs code that the agent may have patched; here is where a child that skipped a step, kept a
capability or brought somebody along is found out. Pid 1 kills whatever does not pass.
"""

from __future__ import annotations

import os

from research_gym.kernel.nests import AgentUser, Nest, read_mounts

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_FILTERED = "2"


def findings(pid: int, nest: Nest, *, agent: AgentUser) -> list[str]:
    """What is wrong with the process that claims to be the kernel of a nest; an empty list means that it may serve.

    Pid 1 holds a pidfd of the process from before the check to after it: a recycled number is noticed there.
    """
    try:
        return _wrong(pid, nest, agent=agent)
    except (OSError, ValueError, KeyError) as error:
        return [f"process {pid} could not be looked at: {type(error).__name__}: {error}"]


def _wrong(pid: int, nest: Nest, *, agent: AgentUser) -> list[str]:
    wrong: list[str] = []
    for kind in nest.kinds:
        link = os.readlink(f"/proc/{pid}/ns/{kind}")
        if link != nest.links[kind]:
            wrong.append(f"{kind} namespace is {link}, expected {nest.links[kind]}")
    members = inhabitants(nest)
    if members != {pid, nest.init_pid}:
        wrong.append(f"processes of the namespace are {sorted(members)}, expected {sorted({pid, nest.init_pid})}")
    status = _status(pid)
    uid, gid = (0, 0) if agent.rootless else (agent.uid, agent.gid)  # as pid 1's namespace numbers them
    if status["Uid"].split() != [str(uid)] * 4 or status["Gid"].split() != [str(gid)] * 4:
        wrong.append(f"user is {status['Uid'].split()}:{status['Gid'].split()}, expected {uid}:{gid}")
    if status["Groups"].split() and not agent.rootless:
        wrong.append(f"supplementary groups {status['Groups'].split()}")
    wrong += [f"{name} is {status[name]}" for name in _CAPABILITIES if int(status[name], 16) != 0]
    if status["NoNewPrivs"] != "1" or status["Seccomp"] != _FILTERED:
        wrong.append(
            f"NoNewPrivs {status['NoNewPrivs']}, Seccomp {status['Seccomp']}: the system call filter is missing"
        )
    with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
        uids = file.read().split()
    if uids != [str(agent.uid), str(uid), "1"]:
        wrong.append(f"uid map is {uids}")
    if read_mounts(pid) != nest.mounts:
        wrong.append("the mount table is not the one that was prepared")
    root = os.stat(f"/proc/{pid}/root")
    expected = os.stat(f"/proc/{nest.init_pid}/root")
    if (root.st_dev, root.st_ino) != (expected.st_dev, expected.st_ino):
        wrong.append("its root directory is another one")
    return wrong


def inhabitants(nest: Nest) -> set[int]:
    """The processes in a nest's PID namespace, as pid 1 numbers them; those of nests below are not among them."""
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/ns/pid") == nest.links["pid"]:
                    found.add(int(name))
            except OSError:
                continue  # ended meanwhile
    return found


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}

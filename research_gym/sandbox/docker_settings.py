"""What a sandbox container may do: the settings asked of the engine, and the audit of what the engine made of them."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from research_gym.sandbox.base import SandboxSpec

LABEL = "research_gym"
OWNER_LABEL = "research_gym.owner"
STARTED_LABEL = "research_gym.owner_started"
AGENT_ID = 1000
"""User and group of the agent in every container."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
"""Of pid 1 only: it starts agent processes as another user, kills them, and hands files over. The agent has none."""
_INODE_BYTES = 16 << 10


def writable_areas(spec: SandboxSpec, *, home: str) -> dict[str, int]:
    """Where the agent may write, each with its size in bytes: work directory, `/tmp`, home and `/dev/shm`.

    `/tmp` and the home are a quarter of the work directory.

    All are tmpfs: sized without help of the host's file system, gone with the container, counted as the container's
    memory.
    """
    areas = spec.work_areas(home=home)
    areas["/dev/shm"] = spec.limits.shm_bytes  # the engine's own is sized, but takes any number of empty files
    return areas


def host_settings(spec: SandboxSpec, *, areas: Mapping[str, int], runtime: str | None) -> dict[str, Any]:
    """Arguments for the SDK's `create_host_config`."""
    from docker import types

    limits = spec.limits
    return {
        "auto_remove": True,
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {path: tmpfs_options(size) for path, size in areas.items()},
        "mounts": [types.Mount(bind.target, str(bind.source), type="bind", read_only=True) for bind in spec.binds],
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges:true"],
        "privileged": False,
        "pids_limit": limits.processes,
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": int(limits.cpus * 1e9),
        "shm_size": limits.shm_bytes,
        "ulimits": [
            types.Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            types.Ulimit(name="core", soft=0, hard=0),
        ],
        # The engine would write what pid 1 prints, and so whatever the agent prints, to the host's disk.
        "log_config": types.LogConfig(type="none"),
        "init": False,
        "ipc_mode": "private",
        "cgroupns": "private",
        "runtime": runtime,
    }


def tmpfs_options(size_bytes: int) -> str:
    """Mount options of a writable area. Owner by uid: `mode=1777` alone came up 0755 root on Engine 20.10."""
    inodes = max(4096, size_bytes // _INODE_BYTES)
    return f"rw,exec,nosuid,nodev,size={size_bytes},nr_inodes={inodes},uid={AGENT_ID},gid={AGENT_ID},mode=0755"


def container_settings(spec: SandboxSpec, *, image: str, program: Sequence[str], name: str) -> dict[str, Any]:
    """Arguments for the SDK's `create_container`, but for the host settings."""
    return {
        "image": image,
        # As entry point: the image's own would run in front of a mere command.
        "entrypoint": list(program),
        "command": [],
        "name": name,
        "hostname": "sandbox",
        "user": "0:0",
        "working_dir": "/",
        "stdin_open": True,  # with an attached start the SDK also sets StdinOnce: end of attach is end of input
        "tty": False,
        "healthcheck": {"test": ["NONE"]},
        "labels": {**spec.labels, LABEL: "1", **owner_labels()},
        "use_config_proxy": False,  # the user's proxies are not the agent's business
    }


def audit(inspected: Mapping[str, Any], *, spec: SandboxSpec, areas: Mapping[str, int]) -> list[str]:
    """Compares a container, as the engine describes it, with what a sandbox must be; each deviation in words.

    Looks at the container and not at what was asked for: an engine, a plug-in or an image may have changed it.
    """
    host, config = inspected["HostConfig"], inspected["Config"]
    limits = spec.limits
    wanted: list[tuple[str, object, object]] = [
        ("network mode", "none", host.get("NetworkMode")),
        ("privileged", False, host.get("Privileged")),
        ("read-only root", True, host.get("ReadonlyRootfs")),
        ("dropped capabilities", {"ALL"}, _capabilities(host.get("CapDrop"))),
        ("added capabilities", set(CAPABILITIES), _capabilities(host.get("CapAdd"))),
        ("process limit", limits.processes, host.get("PidsLimit")),
        ("memory limit", limits.memory_bytes, host.get("Memory")),
        ("CPU limit", int(limits.cpus * 1e9), host.get("NanoCpus")),
        ("shared memory", limits.shm_bytes, host.get("ShmSize")),
        ("log driver", "none", (host.get("LogConfig") or {}).get("Type")),
        ("removal on exit", True, host.get("AutoRemove")),
        ("host process namespace", False, host.get("PidMode") == "host"),
        ("host user namespace", False, host.get("UsernsMode") == "host"),
        ("host UTS namespace", False, host.get("UTSMode") == "host"),
        ("ipc mode", "private", host.get("IpcMode")),
        ("devices", [], host.get("Devices") or []),
        ("device requests", [], host.get("DeviceRequests") or []),
        ("published ports", {}, host.get("PortBindings") or {}),
        ("volumes from", [], host.get("VolumesFrom") or []),
        ("standard input ends with the stream", True, config.get("StdinOnce") and config.get("OpenStdin")),
        ("terminal", False, config.get("Tty")),
        ("user of pid 1", "0:0", config.get("User")),
        ("label", "1", (config.get("Labels") or {}).get(LABEL)),
        ("writable areas", set(areas), set(host.get("Tmpfs") or {})),
    ]
    wrong = [f"{what}: expected {want!r}, found {found!r}" for what, want, found in wanted if want != found]
    options = [option.replace("=", ":") for option in host.get("SecurityOpt") or []]
    if not {"no-new-privileges:true", "no-new-privileges"} & set(options):
        wrong.append(f"no-new-privileges: expected to be set, found {options!r}")
    wrong += [f"security option {option!r}: not allowed" for option in options if "unconfined" in option]
    binds = {bind.target: str(bind.source) for bind in spec.binds}
    for mount in inspected.get("Mounts") or []:
        target = mount.get("Destination")
        if mount.get("Type") == "tmpfs" and target in areas:
            continue
        if (
            target not in binds
            or mount.get("Type") != "bind"
            or mount.get("RW")
            or mount.get("Source") != binds[target]
        ):
            wrong.append(f"mount at {target}: expected only the read-only binds asked for, found {mount!r}")
    return wrong


def _capabilities(names: Sequence[str] | None) -> set[str]:
    return {name.upper().removeprefix("CAP_") for name in names or ()}


def owner_labels() -> dict[str, str]:
    """Says which process a container belongs to: its number, the machine and process namespace, and when it started."""
    return {OWNER_LABEL: f"{os.getpid()}@{machine_mark()}", STARTED_LABEL: process_started(os.getpid())}


def machine_mark() -> str:
    """Tells this boot of this machine, and this process namespace, from others, where process numbers mean nothing."""
    try:
        seen = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        seen = platform.node()
    return hashlib.sha256(seen.encode()).hexdigest()[:12]


def process_started(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if it does not exist or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def owner_is_gone(labels: Mapping[str, str]) -> bool:
    """Whether the process that a container's labels name is known to be gone; false where that cannot be known."""
    number, _, mark = labels.get(OWNER_LABEL, "").partition("@")
    if mark != machine_mark() or not number.isdecimal():
        return False
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
    return process_started(int(number)) != labels.get(STARTED_LABEL)

"""What the agent sees of this machine in a local sandbox: the plan of a root of read-only views and sized areas."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from research_gym.sandbox.base import SandboxSpec

HOME = "/home/agent"
AGENT_ID = 1000
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-x86_64.path", "ld-musl-aarch64.path", "alternatives",
    "ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted",
    "services", "protocols", "mime.types", "fonts",
)  # fmt: skip
_GENERATED = {
    "/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost sandbox\n",
    "/etc/nsswitch.conf": "".join(
        f"{name}: files\n" for name in ("passwd", "group", "shadow", "hosts", "services", "protocols")
    ),
    "/etc/hostname": "sandbox\n",
}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_FOLDERS = ("/home", "/root", "/opt", "/var", "/run", "/mnt", "/media", "/srv", "/sys")
_LINKS = {
    "/var/tmp": "/tmp", "/var/run": "/run",
    "/etc/localtime": "/usr/share/zoneinfo/Etc/UTC", "/etc/mtab": "/proc/self/mounts",
    "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx",
}  # fmt: skip
# As container engines do it: files of the whole machine that /proc shows to anybody, and switches.
_PROC_MASKS = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/scsi",
    "/proc/acpi",
)
_PROC_LOCKS = ("/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger")
_OURS = "research_gym"

Step = dict[str, Any]


def plan(spec: SandboxSpec, *, areas: Mapping[str, int], one_user: bool) -> list[Step]:
    """The steps for `kernel.jail.build`: parents before what lies in them.

    Args:
        spec: Binds, hidden folders and sizes.
        areas: Writable folders with their sizes in bytes.
        one_user: The namespace maps one user only, so the agent's files belong to its root.

    Raises:
        ValueError: the Python prefix is the root or a home folder, so that showing it would show everything.
    """
    owner = 0 if one_user else AGENT_ID
    shown = prefixes()
    steps: list[Step] = [{"do": "folder", "path": path} for path in _FOLDERS]
    steps += [{"do": "link", "path": path, "to": to} for path, to in _LINKS.items()]
    steps += [{"do": "file", "path": path, "text": text} for path, text in _GENERATED.items()]
    binds = dict(_system())
    binds |= {f"/etc/{name}": f"/etc/{name}" for name in _ETC if os.path.exists(f"/etc/{name}")}
    binds |= {path: path for path in shown}
    masks = [
        path + masked.removeprefix(os.path.realpath(path))
        for path in ("/usr", *shown)
        for masked in _masked(spec.hide, shown)
        if masked.startswith(os.path.realpath(path) + "/")
    ]
    sized = {path: tmpfs_options(size, owner=owner, mode="0755") for path, size in areas.items()}
    sized["/dev/shm"] = tmpfs_options(spec.limits.shm_bytes, owner=0, mode="1777")
    mounts: list[Step] = [{"do": "bind", "source": source, "path": path} for path, source in binds.items()]
    mounts += [{"do": "mask", "path": path} for path in dict.fromkeys(masks)]
    mounts += [{"do": "tmpfs", "path": path, "options": options} for path, options in sized.items()]
    mounts += [
        {"do": "device", "source": f"/dev/{name}", "path": f"/dev/{name}"}
        for name in _DEVICES
        if os.path.exists(f"/dev/{name}")
    ]
    mounts += [{"do": "bind", "source": str(bind.source), "path": bind.target} for bind in spec.binds]
    mounts += [{"do": "proc", "path": "/proc"}, {"do": "devpts", "path": "/dev/pts"}]
    mounts += [{"do": "mask", "path": path} for path in _PROC_MASKS]
    mounts += [{"do": "lock", "path": path} for path in _PROC_LOCKS]
    mounts.sort(key=lambda step: step["path"].count("/"))
    return [{"do": "link", "path": path, "to": to} for path, to in _system_links()] + steps + mounts


def tmpfs_options(size_bytes: int, *, owner: int, mode: str) -> str:
    """Mount options of a writable area; as many files as `docker_settings` allows."""
    return f"size={size_bytes},nr_inodes={max(4096, size_bytes // (16 << 10))},uid={owner},gid={owner},mode={mode}"


def prefixes() -> list[str]:
    """Folders that this Python needs beside the system's, each by every name under which it is looked up.

    Raises:
        ValueError: one of them is the root or a home folder.
    """
    named = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1])]
    found: list[str] = []
    for path in sorted({form for name in named for form in (os.path.abspath(name), os.path.realpath(name))}):
        if path in ("/", os.path.realpath(os.path.expanduser("~")), "/home", "/root"):
            raise ValueError(
                f"the Python prefix {path} holds more than Python; use a virtual environment in a folder of its own"
            )
        if not any(path == top or path.startswith(top + "/") for top in (*found, *_SYSTEM)):
            found.append(path)
    return found


def interpreter() -> str:
    """This Python by a path that exists in there too."""
    shown = (*prefixes(), *_SYSTEM)
    if any(sys.executable.startswith(top + "/") for top in shown):
        return sys.executable
    return os.path.realpath(sys.executable)


def _system() -> Iterator[tuple[str, str]]:
    for path in _SYSTEM:
        if os.path.isdir(path) and not os.path.islink(path):
            yield path, path


def _system_links() -> Iterator[tuple[str, str]]:
    for path in _SYSTEM:
        if os.path.islink(path):
            yield path, os.readlink(path)


def _masked(hide: Iterable[str], shown: Iterable[str]) -> list[str]:
    """Real paths that must not be seen: this package, and the data that tasks are made from, wherever installed."""
    names = list(hide)
    found: set[str] = set()
    for folder in _site_packages(shown):
        found |= {str(folder / name) for name in (_OURS, *names)}
        for pattern in (
            f"{_OURS}-*",
            f"{_OURS.replace('_', '-')}*.egg-link",
            f"__editable__*{_OURS}*",
            f"_{_OURS}*.pth",
        ):
            found |= {str(path) for path in folder.glob(pattern)}
    # Conda keeps every package a second time, as it was unpacked.
    found |= {f"{path}/pkgs" for path in shown if os.path.isdir(f"{path}/conda-meta")}
    return sorted(path for path in found if os.path.lexists(path))


def _site_packages(shown: Iterable[str]) -> set[Path]:
    tops = [Path(path).resolve() for path in (*shown, "/usr", "/usr/local")]
    patterns = (f"{lib}/python3*/{name}" for lib in ("lib", "lib64") for name in ("site-packages", "dist-packages"))
    return {folder.resolve() for pattern in patterns for top in tops for folder in top.glob(pattern) if folder.is_dir()}

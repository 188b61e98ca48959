"""Sandboxes without an engine: namespaces and a root of its own on Linux, a plain process where those do not work."""

from __future__ import annotations

import os
import platform
import posixpath
import secrets
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal

from research_gym.errors import SandboxError, SandboxStartError, SandboxUnavailable
from research_gym.kernel.bootstrap import BOOTSTRAP, bundle
from research_gym.kernel.seccomp import supported
from research_gym.sandbox import local_root
from research_gym.sandbox.agent_env import agent_env
from research_gym.sandbox.base import Finding, Sandbox, SandboxSpec
from research_gym.sandbox.local_stream import LocalStream
from research_gym.sandbox.session import Session
from research_gym.sandbox.waiting import Steps, drive

Isolation = Literal["auto", "namespaces", "none"]
_JAIL = "research_gym.kernel.jail"
_FIRST_HOST_ID = 1_900_000_000
"""Host users of agents when started as root: above what systemd and /etc/subuid hand out, and of nobody."""
_HOST_IDS = 1 << 24
_STAGES = ("/tmp", "/mnt", "/var/tmp", "/run", "/usr")
_PROBE_TIMEOUT_S = 20.0
_TOO_SLOW = "no answer within"
_worked: list[bool] = []
"""Whether namespaces worked before in this process: then they are never given up."""
_reasons: list[str] = []
"""Why namespaces do not work here, once known: found by trying, true for the whole process."""


class LocalSandbox(Sandbox):
    """Runs the supervisor and its kernel on this machine, with this Python and the packages installed for it.

    Isolates (Linux with working user namespaces): files (a new root: the system's programs and libraries, the Python
    prefix and the task's data, all read-only; nothing of /home, /root, /var, /etc but what programs need; sized tmpfs
    for the work directory, `/tmp`, the home and `/dev/shm`), network (loopback only), processes, IPC, host name, users
    (the agent is uid 1000 without capabilities, no-new-privileges, a seccomp filter), the host's environment.
    Everything ends with this process, however that dies.

    Does not isolate: the host's Linux kernel is shared; memory and CPU are limited per process (rlimits), not per
    sandbox; what is installed in the Python prefix can be read, but for this package and the folders a task hides.
    Started by a plain user, the agent's processes have that user's uid outside the namespace.

    Without namespaces (another system, or a host that forbids them) it isolates nothing but the environment: the agent
    has the rights of whoever started this process, and a warning says so. The work directory is then a temporary
    folder; paths under `spec.workdir`, `/tmp` and the home that the session is asked for are taken as paths in there.
    """

    name: ClassVar[str] = "local"

    def __init__(self, *, isolation: Isolation = "auto") -> None:
        """Starts nothing.

        Args:
            isolation: `auto`: namespaces, else none with a warning. `namespaces`: these or `SandboxUnavailable`.
                `none`: a plain process, said in a warning too.

        Raises:
            ValueError: another word.
        """
        if isolation not in ("auto", "namespaces", "none"):
            raise ValueError(f"LocalSandbox isolation: expected 'auto', 'namespaces' or 'none', found {isolation!r}")
        self.isolation = isolation

    def open(self, spec: SandboxSpec) -> Steps[Session]:
        """Starts the supervisor in namespaces of its own, or plainly where there are none.

        Raises:
            SandboxStartError: it did not come up; carries what it said. Nothing is left behind.
            SandboxUnavailable: `isolation="namespaces"` and this machine has none.
        """
        deadline = time.monotonic() + spec.limits.start_timeout_s
        for bind in spec.binds:
            if not bind.source.exists():
                raise SandboxStartError(
                    f"local sandbox: {bind.source}, to be shown at {bind.target}: there is no such file"
                )
        if self.isolation != "none" and not _reasons:
            try:
                session = yield from _open_isolated(spec, deadline=deadline)
            except SandboxStartError:
                if _worked:
                    raise
                # Only where an empty sandbox fails too is it the machine; neither a bad spec nor a slow machine may
                # cost the isolation.
                reason = yield from _probe()
                if not reason or _TOO_SLOW in reason:
                    raise
                _reasons[:] = [reason]
            else:
                _worked[:] = [True]
                return session
        if self.isolation == "namespaces":
            raise SandboxUnavailable(f"local sandbox: expected working user namespaces; {_reasons[0]}. {_mend()}")
        why = _reasons[0] if self.isolation == "auto" else 'isolation="none" was asked for'
        mend = _mend() if self.isolation == "auto" else 'Use isolation="auto" for namespaces.'
        warnings.warn(
            "local sandbox WITHOUT ISOLATION: the agent can read and change every file you can, use the network and "
            f"see your processes ({why}). {mend}",
            UserWarning,
            stacklevel=2,
        )
        deadline = max(deadline, time.monotonic() + spec.limits.start_timeout_s / 2)
        return (yield from _open_plain(spec, deadline=deadline))

    def findings(self) -> list[Finding]:
        """Opens a sandbox, and runs a command as the agent that writes a file."""
        reason = drive(_probe())
        if reason:
            users = "yours"
        else:
            users = "yours, as uid 1000 in there" if _one_user() else "an unprivileged host user of its own"
        return [
            Finding("local: system", sys.platform == "linux" and supported(), f"{sys.platform} {platform.machine()}"),
            Finding(
                "local: namespaces", not reason, reason or "a sandbox was opened and used", _mend() if reason else ""
            ),
            Finding("local: agent's user", True, users),
            _python_finding(),
        ]


def _python_finding() -> Finding:
    try:
        return Finding("local: Python", True, ", ".join(local_root.prefixes()) or "the system's")
    except ValueError as error:
        return Finding("local: Python", False, str(error), "use a virtual environment")


def _open_isolated(spec: SandboxSpec, *, deadline: float) -> Steps[Session]:
    if sys.platform != "linux" or not supported():
        raise SandboxStartError(
            f"local sandbox: expected Linux on x86_64 or aarch64, found {sys.platform} {platform.machine()}"
        )
    one_user = _one_user()
    areas = spec.work_areas(home=local_root.HOME)
    try:
        plan = local_root.plan(spec, areas=areas, one_user=one_user)
        python = local_root.interpreter()
    except ValueError as error:
        raise SandboxStartError(f"local sandbox: {error}") from error
    host_id = _FIRST_HOST_ID + secrets.randbelow(_HOST_IDS)
    own = (os.geteuid(), os.getegid())
    maps = {
        key: f"0 {mine} 1\n" + ("" if one_user else f"{local_root.AGENT_ID} {host_id} 1\n")
        for key, mine in zip(("users", "groups"), own, strict=True)
    }
    settings = {
        "plain": False, "program": _program(), "remove": None, "one_user": one_user, "plan": plan,
        "stage": next(path for path in _STAGES if os.path.isdir(path)), **maps,
    }  # fmt: skip
    config = _config(spec, python=python, workdir=spec.workdir, home=local_root.HOME, roots=list(areas)) | {
        "isolated": True,
        "seccomp": True,
        "userns_leaf": one_user,
    }
    stream = _start(settings)
    return (
        yield from Session.connect(
            stream, config=config, deadline=deadline, what="local sandbox", first=_first(settings)
        )
    )


def _open_plain(spec: SandboxSpec, *, deadline: float) -> Steps[Session]:
    top = Path(tempfile.mkdtemp(prefix="research_gym-"))
    paths = {spec.workdir: str(top / "work"), "/tmp": str(top / "tmp"), local_root.HOME: str(top / "home")}
    settings = {"plain": True, "program": _program(), "remove": str(top)}
    try:
        for folder in paths.values():
            os.mkdir(folder)
        for bind in spec.binds:
            target = Path(_translate(bind.target, paths))
            if target.is_relative_to(top):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(bind.source)
        stream = _start(settings)
    except OSError as error:
        shutil.rmtree(top, ignore_errors=True)
        raise SandboxStartError(f"local sandbox: {error}") from error
    config = _config(
        spec,
        python=sys.executable,
        workdir=paths[spec.workdir],
        home=paths[local_root.HOME],
        roots=list(paths.values()),
    )
    config["agent_env"]["TMPDIR"] = paths["/tmp"]
    config |= {"isolated": False, "agent_uid": os.geteuid(), "agent_gid": os.getegid()}
    return (
        yield from Session.connect(
            stream, config=config, deadline=deadline, what="local sandbox", first=_first(settings), paths=paths
        )
    )


def _config(spec: SandboxSpec, *, python: str, workdir: str, home: str, roots: list[str]) -> dict[str, Any]:
    return {
        "workdir": workdir,
        "agent_uid": local_root.AGENT_ID,
        "agent_gid": local_root.AGENT_ID,
        "agent_env": agent_env(spec, home=home, path=f"{posixpath.dirname(python)}:/usr/local/bin:/usr/bin:/bin"),
        "python": python,
        "limits": asdict(spec.limits),
        "writable": [{"path": root} for root in roots],
        "writable_roots": roots,
    }


def _program() -> list[str]:
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", BOOTSTRAP]


def _start(settings: Mapping[str, Any]) -> LocalStream:
    try:
        return LocalStream(settings["program"], env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    except OSError as error:
        raise SandboxStartError(f"local sandbox: {settings['program'][0]} did not start: {error}") from error


def _first(settings: Mapping[str, Any]) -> bytes:
    return bundle(settings, entry=_JAIL)


def _translate(path: str, paths: Mapping[str, str]) -> str:
    for top, real in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        if path == top or path.startswith(top + "/"):
            return real + path[len(top) :]
    return path


def _one_user() -> bool:
    """Whether only our own user can be mapped: always, unless root of a namespace that has the other one too."""
    if os.geteuid() != 0:
        return True
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        ranges = [tuple(map(int, line.split())) for line in lines]
    last = _FIRST_HOST_ID + _HOST_IDS - 1
    return not any(first <= _FIRST_HOST_ID and last < first + count for first, _, count in ranges)


def _probe() -> Steps[str]:
    """Opens a small isolated sandbox and writes a file as the agent; says why that failed, or nothing."""
    spec = SandboxSpec(workdir="/content")
    try:
        session = yield from _open_isolated(spec, deadline=time.monotonic() + _PROBE_TIMEOUT_S)
    except SandboxStartError as error:
        return str(error)
    try:
        argv = [local_root.interpreter(), "-I", "-c", "import os; open('probe', 'w').write('x'); print(os.getuid())"]
        done = yield from session.run(argv, timeout_s=_PROBE_TIMEOUT_S)
    except (SandboxError, OSError) as error:
        return str(error)
    finally:
        session.close()
    if done.exit_code == 0 and done.stdout.strip() == str(local_root.AGENT_ID).encode():
        return ""
    said = done.stderr.decode("utf-8", "replace")[-300:]
    return f"the agent could not write a file: exit code {done.exit_code}, {said!r}"


def _mend() -> str:
    if sys.platform != "linux":
        return "Use sandbox='docker' (Docker Desktop will do)."
    words = ["Use sandbox='docker', or allow unprivileged user namespaces"]
    switches = {
        "kernel.apparmor_restrict_unprivileged_userns": "0",
        "kernel.unprivileged_userns_clone": "1",
        "user.max_user_namespaces": "15000",
    }
    bad = {
        "kernel.apparmor_restrict_unprivileged_userns": "1",
        "kernel.unprivileged_userns_clone": "0",
        "user.max_user_namespaces": "0",
    }
    for name, value in switches.items():
        file = Path("/proc/sys") / name.replace(".", "/")
        if file.exists() and file.read_text().strip() == bad[name]:
            words.append(f"sysctl -w {name}={value}")
    return ": ".join(words) + "."

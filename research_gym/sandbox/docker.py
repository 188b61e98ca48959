"""Sandboxes in Docker containers: one container per sandbox, reached through its attach stream and nothing else."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, ClassVar

from research_gym.errors import SandboxStartError
from research_gym.kernel.bootstrap import BOOTSTRAP
from research_gym.sandbox import docker_findings
from research_gym.sandbox.agent_env import agent_env
from research_gym.sandbox.base import Finding, Sandbox, SandboxSpec
from research_gym.sandbox.docker_engine import Image, Launch
from research_gym.sandbox.docker_settings import AGENT_ID, writable_areas
from research_gym.sandbox.docker_stream import DockerStream
from research_gym.sandbox.engine_threads import call
from research_gym.sandbox.session import Session
from research_gym.sandbox.waiting import Steps, Wait

DEFAULT_IMAGE = "research-gym/kernel:latest"
"""What `make docker` builds."""
HOME = "/home/agent"
_PYTHON = "python3"
_FIND_DATA = """
import os, sys
for base in sys.path:
    for name in sys.argv[1:]:
        path = os.path.join(base, name)
        if os.path.isfile(path) or any(files for _, _, files in os.walk(path)):
            print(path)
"""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class DockerSandbox(Sandbox):
    """Gets sandboxes from a Docker engine (or Podman's Docker API); any image with Python 3.11 and ipykernel will do.

    Isolates: file system (read-only root; the work directory, `/tmp`, the home and `/dev/shm` are sized tmpfs of the
    container), network (none, not even a bridge), processes, users (the agent is uid 1000 without capabilities,
    no-new-privileges, the engine's seccomp profile), memory, CPU, process and file counts, the host's environment,
    and the host's disk (no log, no core file, no writable layer). The container ends with this process, however that
    dies.

    Does not isolate: the host's Linux kernel is shared, and a bug in it or in runc is a way out; `runtime="runsc"`
    (gVisor) is the answer for agents you do not trust. Data that an image carries can be read: tasks made from
    package data need an image without it, as the default image is. Read-only binds are as nosuid and nodev as their
    source's mount; setuid programs and devices are dead in the container anyhow.
    """

    name: ClassVar[str] = "docker"

    def __init__(self, *, image: str | None = None, runtime: str | None = None) -> None:
        """Starts nothing and asks no engine.

        Args:
            image: Image of all sandboxes whose spec names none; `research-gym/kernel:latest` by default. Never pulled.
            runtime: OCI runtime the engine knows by this name, such as `runsc`; its default runtime if `None`.
        """
        self.image = image or DEFAULT_IMAGE
        self.runtime = runtime

    def open(self, spec: SandboxSpec) -> Steps[Session]:
        """Starts a container with the supervisor as pid 1 and waits for its greeting.

        Raises:
            SandboxUnavailable: no engine answers, or the SDK is missing.
            SandboxStartError: the engine refused (its words are in the message) or nothing came up within
                `spec.limits.start_timeout_s`. Nothing is left behind.
        """
        deadline = time.monotonic() + spec.limits.start_timeout_s
        areas = writable_areas(spec, home=HOME)
        stream, image = yield from self._launch(spec, areas=areas, deadline=deadline)
        config = self._config(spec, image=image, areas=areas)
        session = yield from Session.connect(
            stream, config=config, deadline=deadline, what=f"docker sandbox {stream.name}"
        )
        try:
            if spec.hide and not image.recipe:
                yield from _refuse_data(session, spec, image=spec.image or self.image)
        except BaseException:
            session.close()
            raise
        return session

    def _launch(
        self, spec: SandboxSpec, *, areas: dict[str, int], deadline: float
    ) -> Steps[tuple[DockerStream, Image]]:
        launch = Launch(
            spec,
            image=spec.image or self.image,
            program=[_PYTHON, "-I", "-S", "-c", BOOTSTRAP],
            areas=areas,
            runtime=self.runtime,
            timeout_s=max(0.0, deadline - time.monotonic()),
        )
        work = call(launch.run)
        try:
            wait = next(work)
            while True:
                yield Wait(wait.reads, wait.writes, min(deadline, wait.until if wait.until is not None else deadline))
                if time.monotonic() >= deadline:
                    raise SandboxStartError(
                        f"docker sandbox: the engine did not start image {spec.image or self.image!r} within "
                        f"{spec.limits.start_timeout_s:g} s"
                    )
                wait = next(work)
        except StopIteration as stop:
            made: tuple[DockerStream, Image] = stop.value
            return made
        except BaseException:
            launch.give_up()
            work.close()
            raise

    def _config(self, spec: SandboxSpec, *, image: Image, areas: dict[str, int]) -> dict[str, Any]:
        return {
            "workdir": spec.workdir,
            "agent_uid": AGENT_ID,
            "agent_gid": AGENT_ID,
            "agent_env": agent_env(spec, home=HOME, path=image.path or _DEFAULT_PATH),
            "python": _PYTHON,
            "limits": asdict(spec.limits),
            "writable": [{"path": path} for path in areas],
            "writable_roots": list(areas),
            "isolated": True,
            "seccomp": True,  # on top of the engine's profile, which lets io_uring through before Engine 25
        }

    def findings(self) -> list[Finding]:
        """For `research-gym doctor`: engine, limits, runtime, security, storage, image, and a container tried."""
        return docker_findings.findings(image=self.image, runtime=self.runtime)


def _refuse_data(session: Session, spec: SandboxSpec, *, image: str) -> Steps[None]:
    """An image that is not ours may carry the very data that the task is made from, and nothing can be masked in it."""
    found = yield from session.run([_PYTHON, "-c", _FIND_DATA, *spec.hide], timeout_s=30.0)
    if found.exit_code != 0 or found.stdout.strip():
        what = (found.stdout or found.stderr).decode("utf-8", "replace").strip()[-500:]
        raise SandboxStartError(
            f"docker sandbox: expected image {image!r} without the data folders {', '.join(spec.hide)}, found {what}; "
            "remove them in the image, in the layer that installs them, as images/Dockerfile.kernel does"
        )

"""The few things asked of a Docker engine, each bounded in time, each with a connection of its own."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from research_gym.errors import SandboxStartError, SandboxUnavailable
from research_gym.sandbox.docker_settings import (
    LABEL,
    OWNER_LABEL,
    audit,
    container_settings,
    host_settings,
    owner_is_gone,
)
from research_gym.sandbox.docker_stream import DockerStream, take_socket

if TYPE_CHECKING:
    from research_gym.sandbox.base import SandboxSpec

REMOVE_WITHIN_S = 4.0
_EXPLAIN_WITHIN_S = 1.0


@contextlib.contextmanager
def engine(*, timeout_s: float) -> Iterator[Any]:
    """A client of the engine that the environment names (`DOCKER_HOST` and the like), closed at the end.

    One per use: a client that is kept would share its connections with forked children. `timeout_s` bounds each answer.

    Raises:
        SandboxUnavailable: the SDK is not installed, or no engine answers.
    """
    try:
        import docker
    except ImportError as error:
        raise SandboxUnavailable(
            "docker sandbox: expected the docker SDK, found none; `pip install 'research-gym[docker]'`, "
            "or use sandbox='local'"
        ) from error
    client = None
    try:
        client = docker.APIClient(version="auto", timeout=max(0.5, timeout_s), **docker.utils.kwargs_from_env())
    except (docker.errors.DockerException, OSError, ValueError) as error:
        raise SandboxUnavailable(
            f"docker sandbox: no engine answers: {error}; start one (`make docker` as root on Debian), "
            "set DOCKER_HOST, or use sandbox='local'"
        ) from error
    try:
        yield client
    finally:
        client.close()


def words(error: BaseException) -> str:
    """What the engine said, without the SDK's wrapping."""
    return str(getattr(error, "explanation", None) or error).strip()


def engine_errors() -> tuple[type[Exception], ...]:
    """What asking an engine can raise: no engine, its refusals, and a connection that broke or took too long."""
    import docker
    import requests

    return (SandboxUnavailable, docker.errors.DockerException, requests.exceptions.RequestException, OSError)


@dataclass(frozen=True)
class Image:
    """What the engine knows about an image."""

    id: str
    path: str
    """The image's own `PATH`; empty if it sets none."""
    recipe: str
    """Hash of the recipe of this project that made it; empty for every other image."""


def find_image(client: Any, name: str) -> Image:
    """Looks an image up.

    Raises:
        SandboxStartError: the engine does not have it; nothing is ever pulled silently.
    """
    import docker

    try:
        found = client.inspect_image(name)
    except docker.errors.ImageNotFound as error:
        raise SandboxStartError(
            f"docker sandbox: image {name!r} is not on the engine: {words(error)}; "
            "build it with `make docker`, or `docker pull` it"
        ) from error
    config = found.get("Config") or {}
    variables = dict(item.partition("=")[::2] for item in config.get("Env") or [])
    return Image(found["Id"], variables.get("PATH", ""), (config.get("Labels") or {}).get("research_gym.recipe", ""))


class Launch:
    """One container on its way up, made in an engine thread while another thread waits, and may stop waiting."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        image: str,
        program: Sequence[str],
        areas: Mapping[str, int],
        runtime: str | None,
        timeout_s: float,
    ) -> None:
        self.name = f"research-gym-{uuid.uuid4().hex[:12]}"
        self._spec = spec
        self._image = image
        self._program = program
        self._areas = areas
        self._runtime = runtime
        self._until = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._lock = Lock()  # between the engine thread that finishes and the waiting thread that gives up
        self._given_up = False
        self._made: DockerStream | None = None

    def run(self) -> tuple[DockerStream, Image]:
        """Creates, audits, attaches and starts; runs in an engine thread.

        Raises:
            SandboxUnavailable: no engine answers.
            SandboxStartError: the engine refused, with its words, or made something other than what was asked.
        """
        with engine(timeout_s=self._timeout_s) as client:
            _sweep_once(client)
            image = find_image(client, self._image)
            try:
                stream = self._start(client)
            except engine_errors() as error:
                remove(self.name)
                raise SandboxStartError(
                    f"docker sandbox: image {self._image!r} did not start: {words(error)}"
                ) from error
            except BaseException:
                remove(self.name)
                raise
        with self._lock:
            self._made = stream
            given_up = self._given_up
        if given_up:
            stream.close()
            raise SandboxStartError(f"docker sandbox: the engine took longer than {self._timeout_s:g} s")
        return stream, image

    def give_up(self) -> None:
        """Whoever waited does not any more: what is made, or will be, is removed. Never waits for the engine thread."""
        with self._lock:
            self._given_up = True
            made = self._made
        if made is not None:
            made.close()

    def _start(self, client: Any) -> DockerStream:
        host = client.create_host_config(**host_settings(self._spec, areas=self._areas, runtime=self._runtime))
        wanted = container_settings(self._spec, image=self._image, program=self._program, name=self.name)
        container = client.create_container(**wanted, host_config=host)["Id"]
        wrong = audit(client.inspect_container(container), spec=self._spec, areas=self._areas)
        if wrong:
            raise SandboxStartError(
                "docker sandbox: the engine made a container that is not what was asked: " + "; ".join(wrong)
            )
        # Attached before the start: nothing is missed, and from its first moment the container has a life line.
        response = client.post(
            client._url("/containers/{0}/attach", container),
            None,
            params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1},
            stream=True,
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
        )
        client._raise_for_status(response)
        connection, leftover = take_socket(response)
        kept = connection.fileno() == response.raw.fileno()
        if not kept:
            response.close()
        began = time.time()
        stream = DockerStream(
            connection,
            name=self.name,
            leftover=leftover,
            keep=response if kept else None,
            remove=lambda: remove(container),
            explain=lambda: explain(container, since=began),
        )
        try:
            if self._given_up or time.monotonic() > self._until:
                raise SandboxStartError(f"docker sandbox: the engine took longer than {self._timeout_s:g} s")
            client.start(container)
        except BaseException:
            stream.close()
            raise
        return stream


def remove(container: str, *, within_s: float = REMOVE_WITHIN_S) -> bool:
    """Removes a container by force, with its volumes, and says whether it is gone. Never raises, never takes longer.

    A container whose stream has ended is on its way out already; the engine then answers 404 or 409, and both are fine.
    """
    import docker

    until = time.monotonic() + within_s
    while True:
        try:
            with engine(timeout_s=max(0.5, until - time.monotonic())) as client:
                try:
                    client.remove_container(container, force=True, v=True)
                except docker.errors.APIError as error:
                    if error.status_code == 404:
                        return True
                while time.monotonic() < until:
                    client.inspect_container(container)
                    time.sleep(0.01)
        except docker.errors.NotFound:
            return True
        except engine_errors():
            time.sleep(0.05)
        if time.monotonic() >= until:
            return False


def explain(container: str, *, since: float, within_s: float = _EXPLAIN_WITHIN_S) -> str:
    """What the engine says about a container whose stream went silent or ended, in one line. Never raises.

    A removed container is looked up among the engine's last events, which is where an out-of-memory kill is still
    known.
    """
    import docker

    until = time.monotonic() + within_s
    try:
        with engine(timeout_s=within_s) as client:
            try:
                while True:
                    state = client.inspect_container(container)["State"]
                    if state["Status"] not in ("running", "removing") or time.monotonic() > until - within_s / 2:
                        break
                    time.sleep(0.05)
                more = ", out of memory" if state.get("OOMKilled") else ""
                code = f", exit code {state['ExitCode']}" if state["Status"] == "exited" else ""
                return f"the engine says: container {container[:12]} is {state['Status']}{code}{more}"
            except docker.errors.NotFound:
                seen = []
                told = client.events(
                    since=f"{since - 1:.3f}",
                    until=f"{time.time():.6f}",
                    filters={"container": container, "type": "container"},
                    decode=True,
                )
                for event in told:
                    code = event.get("Actor", {}).get("Attributes", {}).get("exitCode")
                    if event.get("Action") not in ("create", "attach", "start"):
                        seen.append(f"{event.get('Action')}" + (f" (exit code {code})" if code else ""))
                return f"the engine says: container {container[:12]} is gone: {', '.join(seen) or 'no event is known'}"
    except engine_errors() as error:
        return f"the engine does not say what happened: {words(error)[:300]}"


@dataclass(frozen=True)
class Leftover:
    """A container of ours whose owner is gone."""

    id: str
    name: str
    owner: str
    status: str


def leftovers(*, timeout_s: float = 10.0) -> list[Leftover]:
    """Lists containers of research_gym whose owning process no longer exists on this machine. Removes nothing.

    None is expected, a container ends with its owner's stream; an engine that was killed at the wrong moment can
    leave some. Containers of other machines and of other process namespaces are never listed: their owners cannot be
    seen from here.

    Raises:
        SandboxUnavailable: no engine answers.
    """
    with engine(timeout_s=timeout_s) as client:
        return _leftovers(client)


def _leftovers(client: Any) -> list[Leftover]:
    rows = client.containers(all=True, filters={"label": f"{LABEL}=1"})
    return [
        Leftover(row["Id"], (row["Names"] or ["/"])[0].lstrip("/"), row["Labels"].get(OWNER_LABEL, ""), row["Status"])
        for row in rows
        if owner_is_gone(row["Labels"])
    ]


_swept: set[int] = set()


def _sweep_once(client: Any) -> None:
    """Before the first container of a process: removes what dead ones left, mostly created and never started."""
    if os.getpid() in _swept:
        return
    _swept.add(os.getpid())
    with contextlib.suppress(*engine_errors()):
        for left in _leftovers(client):
            client.remove_container(left.id, force=True, v=True)

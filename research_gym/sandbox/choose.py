"""Which sandbox a word means."""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from typing import Any

from research_gym.errors import SandboxUnavailable
from research_gym.sandbox.base import Sandbox
from research_gym.sandbox.local import LocalSandbox

NAMES = ("auto", "docker", "local")
_OPTIONS = {"docker": frozenset(("image", "runtime")), "local": frozenset(("isolation",))}
_ENGINE_WITHIN_S = 3.0
_chosen: list[str] = []
"""What `auto` came to in this process; it is said once."""


def choose(sandbox: str | Sandbox = "auto", **options: Any) -> Sandbox:
    """The sandbox of that name; one that is passed comes back as it is.

    `auto` is Docker if an engine answers and has the kernel image, else local; which one is said in a warning, once per
    process.

    Args:
        sandbox: `auto`, `docker`, `local`, or a sandbox.
        options: Keyword arguments of the sandbox (`image`, `runtime`, `isolation`). `None` stands for an option
            that was not given. `auto` chooses Docker if an option is one that only Docker has.

    Raises:
        ValueError: another word, an option that this sandbox does not have, or options for one that is made.
        TypeError: neither a word nor a sandbox.

    Example:
        >>> choose("local").name
        'local'
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(sandbox, Sandbox):
        if given:
            raise ValueError(f"sandbox: {sandbox.name} is made already; give {', '.join(given)} to its constructor")
        return sandbox
    if not isinstance(sandbox, str):
        raise TypeError(f"sandbox: expected one of {', '.join(NAMES)} or a Sandbox, found {type(sandbox).__name__}")
    if sandbox not in NAMES:
        near = get_close_matches(sandbox, NAMES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"sandbox: expected one of {', '.join(NAMES)} or a Sandbox, found {sandbox!r}{hint}")
    if sandbox == "auto":
        sandbox = "docker" if given.keys() & _OPTIONS["docker"] else _best(frozenset(given))
    strange = given.keys() - _OPTIONS[sandbox]
    if strange:
        known = ", ".join(sorted(_OPTIONS[sandbox]))
        raise ValueError(f"sandbox {sandbox!r} has no option {', '.join(sorted(strange))}; it has {known}")
    if sandbox == "local":
        return LocalSandbox(**given)
    from research_gym.sandbox.docker import DockerSandbox  # the SDK is an extra

    return DockerSandbox(**given)


def _best(options: frozenset[str]) -> str:
    if options & _OPTIONS["local"]:
        return "local"
    if not _chosen:
        missing = _docker_missing()
        _chosen.append("local" if missing else "docker")
        why = f"Docker cannot be used: {missing}" if missing else "a Docker engine answers and has the kernel image"
        warnings.warn(f"sandbox='auto' is {_chosen[0]!r}: {why}. Name one to silence this.", UserWarning, stacklevel=4)
    return _chosen[0]


def _docker_missing() -> str:
    """Why there is no Docker sandbox here; empty where there is one."""
    from research_gym.sandbox.docker import DEFAULT_IMAGE
    from research_gym.sandbox.docker_engine import engine, engine_errors

    try:
        with engine(timeout_s=_ENGINE_WITHIN_S) as client:
            if client.images(name=DEFAULT_IMAGE):
                return ""
    except SandboxUnavailable as error:
        return str(error)
    except engine_errors() as error:
        return f"the engine fails: {error}"
    return f"the engine has no image {DEFAULT_IMAGE} (make docker)"

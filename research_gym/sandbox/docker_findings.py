"""What `research-gym doctor` says about Docker: found by asking the engine, and by doing what an episode would do."""

from __future__ import annotations

import json
import select
import time
from typing import Any

from research_gym.errors import SandboxError, SandboxUnavailable
from research_gym.limits import MIB, Limits
from research_gym.sandbox.base import Finding, SandboxSpec
from research_gym.sandbox.docker_engine import Launch, engine, engine_errors, words
from research_gym.sandbox.docker_settings import AGENT_ID, writable_areas

_PROBE_WITHIN_S = 30.0
_PROBE = r"""
import json, os, socket, sys
areas = json.loads(sys.argv[1])
said = {}
child = os.fork()
if child == 0:
    try:
        os.setgroups([]); os.setresgid(UID, UID, UID); os.setresuid(UID, UID, UID)
        for path, size in areas.items():
            try:
                written = 0
                with open(os.path.join(path, "probe"), "wb", buffering=0) as file:
                    while written <= size: written += file.write(bytes(1 << 18))
                said[path] = "no limit"
            except OSError as error:
                said[path] = "" if error.errno == 28 and written else str(error)
        try:
            open("/probe", "w"); said["/"] = "writable"
        except OSError:
            said["/"] = ""
        said["network"] = ",".join(name for _, name in socket.if_nameindex() if name != "lo")
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        for key, want in (("CapEff", "0" * 16), ("NoNewPrivs", "1"), ("Seccomp", "2")):
            found = status.get(key, "absent").strip()
            said[key] = "" if found == want else found
    finally:
        os.write(1, json.dumps(said).encode())
        os._exit(0)
os.waitpid(child, 0)
""".replace("UID", str(AGENT_ID))


def findings(*, image: str, runtime: str | None) -> list[Finding]:
    """One finding per thing that an episode needs; stops where no more can be known. Takes a second, never raises."""
    try:
        with engine(timeout_s=10) as client:
            version, info = client.version(), client.info()
            images = client.images(name=image)
    except SandboxUnavailable as error:
        return [Finding("engine", False, str(error), "make docker (as root, on Debian), or set DOCKER_HOST")]
    except engine_errors() as error:
        return [Finding("engine", False, words(error), "look at the engine's log")]
    found = [_engine(version, info), _cgroups(info), _runtime(info, runtime), _security(info), _storage(info)]
    if not images:
        mend = "make docker" if image.startswith("research-gym/") else f"docker pull {image}"
        return [*found, Finding("image", False, f"{image} is not on the engine", mend)]
    found.append(Finding("image", True, f"{image} ({images[0]['Id'][7:19]}, {images[0]['Size'] // MIB} MiB)", ""))
    return [*found, _probe(image=image, runtime=runtime)]


def _engine(version: dict[str, Any], info: dict[str, Any]) -> Finding:
    parts = [f"{part['Name']} {part['Version']}" for part in version.get("Components") or []] or [
        str(version.get("Version"))
    ]
    return Finding(
        "engine", True, f"{', '.join(parts)} on {info.get('OperatingSystem')}, Linux {info.get('KernelVersion')}", ""
    )


def _cgroups(info: dict[str, Any]) -> Finding:
    missing = [
        name
        for name, key in (("memory", "MemoryLimit"), ("CPU", "CpuCfsQuota"), ("pids", "PidsLimit"))
        if not info.get(key)
    ]
    detail = f"version {info.get('CgroupVersion', '1')}, driver {info.get('CgroupDriver')}"
    if missing:
        return Finding(
            "limits", False, f"{detail}; not enforced: {', '.join(missing)}", "enable these controllers for the engine"
        )
    return Finding("limits", True, detail, "")


def _runtime(info: dict[str, Any], wanted: str | None) -> Finding:
    known = sorted(info.get("Runtimes") or {})
    if wanted is not None and wanted not in known:
        return Finding(
            "runtime",
            False,
            f"{wanted} is not known; known: {', '.join(known)}",
            f"install {wanted} and register it with the engine",
        )
    chosen = wanted or info.get("DefaultRuntime")
    detail = (
        f"{chosen}"
        if wanted
        else f"{chosen} (shares the host's kernel; runsc is the option for agents that are not trusted)"
    )
    return Finding("runtime", True, detail, "")


def _security(info: dict[str, Any]) -> Finding:
    options = [str(option) for option in info.get("SecurityOptions") or []]
    seccomp = any("name=seccomp" in option and "unconfined" not in option for option in options)
    detail = ", ".join(option.removeprefix("name=") for option in options) or "none"
    return Finding("security", seccomp, detail, "" if seccomp else "run an engine with its default seccomp profile")


def _storage(info: dict[str, Any]) -> Finding:
    return Finding("storage", True, f"{info.get('Driver')} at {info.get('DockerRootDir')}", "")


def _probe(*, image: str, runtime: str | None) -> Finding:
    """Starts a container with the settings of an episode and does, as the agent, what must work and what must not."""
    spec = SandboxSpec(
        limits=Limits(disk_bytes=4 * MIB, memory_bytes=256 * MIB, shm_bytes=4 * MIB, start_timeout_s=_PROBE_WITHIN_S)
    )
    areas = writable_areas(spec, home="/home/agent")
    launch = Launch(
        spec, image=image, program=["python3", "-I", "-S", "-c", _PROBE, json.dumps(areas)], areas=areas,
        runtime=runtime, timeout_s=_PROBE_WITHIN_S,
    )  # fmt: skip
    until = time.monotonic() + _PROBE_WITHIN_S
    try:
        stream, _ = launch.run()
    except SandboxError as error:
        return Finding("container", False, str(error), "see the engine's words")
    try:
        data = b""
        while time.monotonic() < until:
            piece = stream.receive()
            if piece == b"":
                break
            if piece is None:
                select.select([stream], [], [], 0.2)
            else:
                data += piece
        said: dict[str, str] = json.loads(data or b"{}")
        wrong = [f"{what}: {how}" for what, how in said.items() if how]
        if not said:
            wrong = [stream.diagnostics() or "the probe said nothing"]
    except ValueError:
        wrong = ["the probe was cut short"]
    finally:
        stream.close()
    if wrong:
        return Finding(
            "container", False, "; ".join(wrong), "another engine version or image; see the README on sandboxes"
        )
    return Finding("container", True, "starts, writes only its sized areas as uid 1000, no network, no privileges", "")

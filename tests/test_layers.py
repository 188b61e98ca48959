"""Private files and namespaces of forked kernels, in both privilege designs, with a small pid 1 of the tests' own."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from research_gym.kernel.bootstrap import BOOTSTRAP, bundle, read_sources

HERE = Path(__file__).parent
IMAGE = "research-gym/kernel:latest"
ROOTLESS = ["unshare", "--user", "--map-root-user", "--mount"]
ROOTLESS_HERE = [*ROOTLESS, "--pid", "--fork", "--mount-proc"]
PRIVILEGES = ("SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT", "SETUID", "SETGID", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL")
"""FOWNER and DAC_OVERRIDE too: overlayfs acts on the layer with the rights of the pid 1 that mounted it."""
CONTAINER = [
    *(
        "docker",
        "run",
        "--rm",
        "-i",
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
    ),
    *("--tmpfs=/var/tmp:exec", "--tmpfs=/tmp", "--label=research_gym", "--log-driver=none"),
]
OPEN = ("--security-opt=seccomp=unconfined", "--security-opt=systempaths=unconfined")
"""No masked parts of /proc: with them, Linux lets no user namespace mount a /proc of its own."""
DESIGNS = {
    "privileged": [sys.executable],
    "rootless": [*ROOTLESS_HERE, sys.executable],
    "docker": [*CONTAINER, *(f"--cap-add={name}" for name in PRIVILEGES), IMAGE, "python"],
    "docker-zero": [*CONTAINER, "--user=1000:1000", *OPEN, IMAGE, *ROOTLESS, "python"],
}
design_marks = [pytest.param(name, marks=pytest.mark.docker) if name.startswith("docker") else name for name in DESIGNS]
each_design = pytest.mark.parametrize("design", design_marks)


@functools.cache
def _unavailable(design: str) -> str:
    if not sys.platform.startswith("linux"):
        return "namespaces need Linux"
    if design.startswith("docker"):
        if shutil.which("docker") is None:
            return "needs the docker command"
        probe = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, text=True, check=False)
        return "" if probe.returncode == 0 else f"no engine or no image: {probe.stderr.strip()}"
    if design == "privileged":
        return "" if os.geteuid() == 0 else "needs root (the pid 1 of a container has it)"
    if shutil.which("unshare") is None:
        return "needs the unshare command"
    command = [*ROOTLESS_HERE, "mount", "-t", "tmpfs", "none", "/tmp"]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else f"unprivileged user namespaces do not work here: {probe.stderr.strip()}"


@functools.cache
def observe(design: str, scenario: str, **options: int) -> dict[str, Any]:
    """Runs a scenario once and keeps what it found."""
    reason = _unavailable(design)
    if reason:
        pytest.skip(reason)
    own = {name: (HERE / f"{name}.py").read_text(encoding="utf-8") for name in ("fork_kernel_peer", "nest_world")}
    given = bundle({"scenario": scenario, "options": options}, entry="nest_world", sources={**read_sources(), **own})
    done = subprocess.run(
        [*DESIGNS[design], "-c", BOOTSTRAP], input=given, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


ORIGINAL = "['given', 'parent', 'parent', 'parent', 'parent']"
EXPECTED = {
    "inherited": ORIGINAL,
    "changed": "['one', 'one', 'one', 'one', 'one']",
    "sibling_files": ORIGINAL,
    "sibling_log": "'ac'",
    "parent_files": ORIGINAL,
    "original": "given",
    "kill_all": "ProcessLookupError",
    "sibling_alive": "'alive'",
    "kill_init": "PermissionError",
    "layers": "[]",
    "umount": "True",
    "mount": "True",
    "nsenter": "True",
    "init_memory": "True",
    "setns": "[(-1, 1), (-1, 1)]",
    "own_loopback": "",
    "sibling_loopback": "ConnectionRefusedError",
    "sibling_abstract": "ConnectionRefusedError",
    "refused": 2,
    "disk": "28",
    "inodes": "28",
    "sibling_disk": str(16 << 20),
    "orphans": "0",
    "grandchild_outlives_parent": "([1, 2], 'one')",
}


@each_design
@pytest.mark.parametrize("what", EXPECTED)
def test_forked_kernels_are_private(design: str, what: str) -> None:
    assert observe(design, "isolation")[what] == EXPECTED[what]


@each_design
def test_forked_kernel_has_no_capability_and_is_filtered(design: str) -> None:
    assert observe(design, "isolation")["caps"].count("'0000000000000000'") == 5
    assert observe(design, "isolation")["caps"].endswith("'1',\n '2']")


@each_design
def test_forked_kernel_sees_only_its_own_processes(design: str) -> None:
    own, listed = observe(design, "isolation")["pids"].strip("()").split(", ", 1)
    assert listed == f"[1, {own}]"


@each_design
@pytest.mark.parametrize(
    ("cheat", "caught"),
    [
        ("keeps_capabilities", "CapEff is"),
        ("brings_company", "Error"),
        ("does_not_join", "Error"),
        ("joins_its_own", "failed"),
    ],
)
def test_a_kernel_whose_fork_code_was_patched_is_found_out(design: str, cheat: str, caught: str) -> None:
    outcome = observe(design, "cheating")[cheat]
    assert outcome != "served"
    assert caught in outcome


@each_design
def test_twenty_four_generations_then_a_refusal_by_name(design: str) -> None:
    found = observe(design, "generations")
    assert found["depth"] == "(24, 24)"
    assert "generation 25 is over the limit of 24" in found["refused"]


@each_design
def test_resets_leave_no_descriptor_mount_or_process_behind(design: str) -> None:
    found = observe(design, "cycles", rounds=20)
    assert found["first"] == found["last"]

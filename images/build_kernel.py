#!/usr/bin/env python3
"""Builds the kernel image `research-gym/kernel` from Dockerfile.kernel, offline inside the build.

The wheels are downloaded on the host, with the host's own pip configuration, for Python 3.11 and the engine's
machine; the build context is a temporary folder with the recipe and the wheels and nothing of the checkout. Tagged
with a hash of the recipe and `latest`; a second run with the same recipe builds nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = "research-gym/kernel"
NEWEST_GLIBC = 36  # Debian bookworm


def recipe_hash(base: str) -> str:
    """Hash of everything that decides what is in the image."""
    digest = hashlib.sha256(base.encode())
    for name in ("Dockerfile.kernel", "requirements-kernel.txt"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:12]


def machine() -> str:
    """The engine's machine as wheels name it.

    Raises:
        SystemExit: no engine answers, or it runs on a machine for which there are no wheels.
    """
    told = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Arch}}"], capture_output=True, text=True, check=False
    )
    if told.returncode != 0:
        sys.exit(f"kernel image: no Docker engine answers: {told.stderr.strip()[-500:]}")
    names = {"amd64": "x86_64", "arm64": "aarch64"}
    arch = told.stdout.strip()
    if arch not in names:
        sys.exit(f"kernel image: the engine runs on {arch}; expected one of {', '.join(names)}")
    return names[arch]


def download_wheels(target: Path, *, arch: str) -> None:
    """Downloads the pinned wheels for the image's Python, not for the one that runs this.

    Raises:
        SystemExit: pip failed; its words are already on the screen.
    """
    platforms = [f"manylinux_2_{minor}_{arch}" for minor in range(NEWEST_GLIBC, 4, -1)]
    platforms += [f"{old}_{arch}" for old in ("manylinux2014", "manylinux2010", "manylinux1")]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "--no-deps",
        "--dest",
        str(target),
    ]
    command += [
        "--python-version",
        "3.11",
        "--implementation",
        "cp",
        "--abi",
        "cp311",
        "--abi",
        "abi3",
        "--abi",
        "none",
    ]
    for platform in platforms:
        command += ["--platform", platform]
    command += ["-r", str(HERE / "requirements-kernel.txt")]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit("kernel image: pip could not download the wheels (see above)")


def build(base: str, *, tag: str, wheels: Path | None) -> None:
    """Builds and tags.

    Raises:
        SystemExit: the build failed; the engine's words are already on the screen.
    """
    with tempfile.TemporaryDirectory(prefix="research-gym-kernel-") as folder:
        context = Path(folder)
        for name in ("Dockerfile.kernel", "requirements-kernel.txt"):
            shutil.copy(HERE / name, context / name)
        if wheels is None:
            (context / "wheels").mkdir()
            print("kernel image: downloading wheels ...", file=sys.stderr, flush=True)
            download_wheels(context / "wheels", arch=machine())
        else:
            shutil.copytree(wheels, context / "wheels")
        # Without buildx a new command line still knows the classic builder, but only when told.
        buildkit = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode == 0
        environment = {**os.environ, "DOCKER_BUILDKIT": "1" if buildkit else "0"}
        command = ["docker", "build", "--network", "host", "--build-arg", f"BASE_IMAGE={base}"]
        command += ["--build-arg", f"RECIPE={tag}", "--tag", f"{REPOSITORY}:{tag}", "--tag", f"{REPOSITORY}:latest"]
        command += ["--file", str(context / "Dockerfile.kernel"), str(context)]
        print("kernel image: building ...", file=sys.stderr, flush=True)
        if subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode != 0:
            sys.exit("kernel image: docker build failed (see above)")
    listing = subprocess.run(
        ["docker", "images", "--format", "{{.Tag}}", REPOSITORY], capture_output=True, text=True, check=False
    )
    for old in set(listing.stdout.split()) - {tag, "latest"}:
        # Images of earlier recipes pile up otherwise; one that a container uses stays.
        subprocess.run(["docker", "image", "rm", f"{REPOSITORY}:{old}"], capture_output=True, check=False)
    # The build stage holds the wheels a second time; nothing refers to it any more.
    prune = ["docker", "image", "prune", "--force", "--filter", "label=research_gym.stage=build"]
    subprocess.run(prune, capture_output=True, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="base image, as build_base.py prints it")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to use instead of downloading")
    args = parser.parse_args()
    tag = recipe_hash(args.base)
    known = subprocess.run(
        ["docker", "tag", f"{REPOSITORY}:{tag}", f"{REPOSITORY}:latest"], capture_output=True, check=False
    )
    if known.returncode == 0:
        print(f"kernel image: {REPOSITORY}:{tag} is here already", file=sys.stderr)
        return
    build(args.base, tag=tag, wheels=args.wheels)
    print(f"kernel image: built {REPOSITORY}:{tag}", file=sys.stderr)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes sure that a base image with Python 3.11 is on the engine, and prints its name.

The official `python:3.11-slim-bookworm` where it is here or can be pulled; else `research-gym/base:bookworm`, a
minimal Debian bootstrapped from the machine's own Debian mirror (root, debootstrap, about a minute). Never tags an
official name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OFFICIAL = "python:3.11-slim-bookworm"
OWN = "research-gym/base:bookworm"
PACKAGES = "python3,python3-venv,ca-certificates,git,procps"


def docker(*argv: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the docker command line; its words go to the caller."""
    return subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=timeout_s, check=False)


def present(image: str) -> bool:
    """Says whether the engine has the image."""
    return docker("image", "inspect", image).returncode == 0


def pulled(image: str, *, timeout_s: float) -> bool:
    """Tries to pull the image for a short while; an engine that reaches no registry says so at once."""
    try:
        result = docker("pull", "--quiet", image, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        print(f"{image}: not pulled within {timeout_s:.0f} s", file=sys.stderr)
        return False
    if result.returncode != 0:
        print(f"{image}: cannot be pulled: {result.stderr.strip()[-300:]}", file=sys.stderr)
    return result.returncode == 0


def mirror() -> str:
    """The Debian mirror that this machine's apt uses, or Debian's own."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for line in listing.stdout.splitlines():
        uri, _, rest = line.partition(" ")
        if rest.split()[:2] == ["bookworm", "main"] and uri.startswith(("http://", "https://", "file:/")):
            return uri.rstrip("/")
    return "http://deb.debian.org/debian"


def bootstrap() -> None:
    """Builds the Debian base and imports it.

    Raises:
        SystemExit: not root, no debootstrap, or debootstrap failed; with its last words.
    """
    if os.geteuid() != 0:
        sys.exit(f"{OWN}: {OFFICIAL} cannot be pulled and debootstrap needs root; run `make docker` as root")
    with tempfile.TemporaryDirectory(prefix="research-gym-base-") as folder:
        root = Path(folder) / "root"
        environment = {
            **os.environ,
            **apt_proxy(),
            "DEBIAN_FRONTEND": "noninteractive",
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root), mirror()]
        print("+", *command, file=sys.stderr)
        try:
            made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            sys.exit(f"{OWN}: debootstrap is not installed; `apt-get install debootstrap`, or `make docker` as root")
        if made.returncode != 0:
            sys.exit(f"{OWN}: debootstrap failed ({made.returncode}):\n{(made.stdout + made.stderr)[-3000:]}")
        clean(root)
        tar = subprocess.Popen(["tar", "-C", str(root), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE)
        change = ["-c", 'CMD ["python3"]', "-c", "ENV LANG=C.UTF-8", "-c", "LABEL research_gym=1"]
        taken = subprocess.run(
            ["docker", "import", *change, "-", OWN], stdin=tar.stdout, capture_output=True, text=True, check=False
        )
        if taken.returncode != 0 or tar.wait() != 0:
            sys.exit(f"{OWN}: docker import failed: {taken.stderr.strip()[-1000:]}")


def apt_proxy() -> dict[str, str]:
    """debootstrap fetches with wget: hand it the proxy that apt is told to use."""
    told = subprocess.run(
        ["apt-config", "shell", "p", "Acquire::http::Proxy"], capture_output=True, text=True, check=False
    )
    value = told.stdout.strip().removeprefix("p=").strip("'\"")
    return {"http_proxy": value} if value.startswith("http") else {}


def clean(root: Path) -> None:
    """Drops package caches, documentation, device files and this machine's names and name servers."""
    for pattern in (
        "var/cache/apt/archives/*.deb",
        "var/lib/apt/lists/*_*",
        "var/log/*.log",
        "etc/resolv.conf",
        "etc/hostname",
    ):
        for path in root.glob(pattern):
            path.unlink()
    for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale", "dev"):
        subprocess.run(["find", str(root / folder), "-mindepth", "1", "-delete"], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", default=os.environ.get("BASE_IMAGE", OFFICIAL), help="base image to prefer")
    parser.add_argument("--pull-timeout-s", type=float, default=120.0, help="how long a pull may take")
    args = parser.parse_args()
    if present(args.image):
        print(args.image)
    elif present(OWN):
        print(OWN)
    elif pulled(args.image, timeout_s=args.pull_timeout_s):
        print(args.image)
    else:
        bootstrap()
        print(OWN)


if __name__ == "__main__":
    main()

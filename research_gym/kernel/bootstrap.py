"""How the programs of this folder get into a sandbox: a small Python program and the bytes it reads from its stdin.

Any image with Python is enough: nothing is mounted or installed. The bytes are a 4-byte big-endian length and JSON with
the configuration and the sources; the bootstrap registers them under their package names and calls `main(config)` of
the entry.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

PACKAGE = "research_gym.kernel"
SUPERVISOR = f"{PACKAGE}.supervisor"

BOOTSTRAP = r"""
import sys
def boot():
    import importlib.machinery, json, os, types
    def read(count):
        data = b""
        while len(data) < count:
            piece = os.read(0, min(1 << 16, count - len(data)))
            if not piece:
                raise SystemExit("research_gym bootstrap: standard input ended before the program was complete")
            data += piece
        return data
    given = json.loads(read(int.from_bytes(read(4), "big")))
    sources = given["sources"]
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.machinery.ModuleSpec(name, Loader) if name in sources else None
    class Loader:
        @staticmethod
        def create_module(spec):
            return None
        @staticmethod
        def exec_module(module):
            exec(compile(sources[module.__name__], "<" + module.__name__ + ">", "exec"), module.__dict__)
    for name in ("research_gym", "research_gym.kernel"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    sys.meta_path.insert(0, Finder)
    sys.modules["research_gym.kernel"].sources = sources
    __import__(given["entry"])
    sys.modules[given["entry"]].main(given["config"])
boot()
"""
"""The program for `python3 -I -S -c BOOTSTRAP` (without `-S` where it needs installed packages)."""


def read_sources() -> dict[str, str]:
    """The sources of this package by module name, from the installed files."""
    from importlib import resources  # not needed inside the sandbox, where importing it costs milliseconds

    files = resources.files(PACKAGE)
    return {
        f"{PACKAGE}.{item.name[:-3]}": item.read_text(encoding="utf-8")
        for item in files.iterdir()
        if item.name.endswith(".py") and item.name != "__init__.py"
    }


def bundle(config: Mapping[str, Any], *, entry: str = SUPERVISOR, sources: Mapping[str, str] | None = None) -> bytes:
    """The bytes that `BOOTSTRAP` reads from descriptor 0 before anything else.

    Args:
        config: JSON value handed to `main(config)` of the entry module.
        entry: Module whose `main` runs; it must be among the sources.
        sources: Module name -> source text; the installed files of this package by default.
    """
    body = json.dumps({"config": dict(config), "entry": entry, "sources": dict(sources or read_sources())})
    data = body.encode("ascii")
    return struct.pack(">I", len(data)) + data

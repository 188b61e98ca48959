"""The documentation runs: Python blocks are executed, cheap commands are run, what they print is compared.

How a page is read, block by block, in its own folder and one namespace:

- ```` ```python ```` is executed.
- ```` ```console ````: of its `$` lines those that start with `research-gym` or `python` are run; lines below one are
  its output.
- ```` ```text ```` right after one of these is what it printed; `...` stands for anything.
- ```` ```{code-block} LANGUAGE ```` with a `:caption:` is a file of that name.
- `<!-- not run: reason -->` above a block leaves it out.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(
    not (DOCS / "conf.py").is_file(), reason="the suite runs outside the checkout: there are no pages to read"
)

PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]
COMMAND_TIMEOUT_S = 120
SEARCH_S = 3.0
"""Time for the search of `check`, which a machine with many packages needs a minute for."""
_FENCE = re.compile(
    r"(?P<skip><!-- not run: [^>]+-->\n+)?^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_printed: dict[str, str] = {}
"""Command -> what it printed: pages that show the same command share one run."""
_CAPTION = re.compile(r"\A:caption: (?P<name>\S+)\n\n?")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    body: str
    file: str | None
    skipped: bool


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        info, body = match["info"].strip(), match["body"]
        caption = _CAPTION.match(body) if info.startswith("{code-block}") else None
        if caption is not None:
            body = body[caption.end() :]
        line = text.count("\n", 0, match.start("info")) + 1
        yield Block(line, info, body, caption["name"] if caption else None, match["skip"] is not None)


def same(expected: str, found: str) -> bool:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected.strip() + "\n", found.strip() + "\n", options)


def run_console(body: str, folder: Path) -> str:
    """Runs the commands of a block and returns what the last one printed."""
    printed = ""
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "160",
        "PYTHONWARNINGS": "ignore",
    }
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        command = line.partition("  #")[0].strip()
        printed = ""
        if not command.startswith(("research-gym", "python ")):
            continue
        if command not in _printed:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, f"`{command}` exited with {done.returncode}:\n{done.stdout}{done.stderr}"
            _printed[command] = done.stdout
        printed = _printed[command]
        if expected.strip():
            assert same(expected, printed), f"`{command}`: expected\n{expected}\nfound\n{printed}"
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")  # so that `auto` is the local sandbox
    monkeypatch.setattr(importlib.import_module("research_gym.sandbox.choose"), "_chosen", [])
    monkeypatch.setattr(importlib.import_module("research_gym.testing.check_task.unreachable"), "SEARCH_S", SEARCH_S)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        if block.skipped:
            printed = None
        elif block.file is not None:
            target = tmp_path / block.file
            assert target.resolve().is_relative_to(tmp_path.resolve()), where
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.body, "utf-8")
            printed = None
        elif block.language == "python":
            code = compile("\n" * block.line + block.body, str(page), "exec")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "console":
            printed = run_console(block.body, tmp_path)
        elif block.language == "text":
            if printed is not None:
                assert same(block.body, printed), f"{where}: expected\n{block.body}\nfound\n{printed}"
            printed = None
        else:
            assert block.language.startswith("{"), f"{where}: {block.language or 'no language'}: expected a known block"


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_page_names_no_place_of_one_machine(page: Path) -> None:
    found = re.findall(r"(?<![\w}])/(?:root|work|home/(?!ubuntu|agent))[\w/.-]*", page.read_text("utf-8"))
    assert not found


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (DOCS / "index.md").read_text("utf-8")
    listed = {name for body in re.findall(r"```\{toctree\}(.*?)```", contents, re.DOTALL) for name in body.split()}
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= listed


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra 'docs'")
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "write-your-own-task.html").is_file()

"""Nobody types: whatever reads from standard input gets its end at once, and nothing waits for ever."""

from __future__ import annotations

from research_gym.testing.check_sandbox.kit import Box, Seen, expect, probe


def _ends(box: Box, code: str) -> Seen:
    seen = box.cell(code, timeout_s=8)
    expect(seen.result.status in ("ok", "error"), f"expected the cell to end by itself, found {seen}")
    expect(seen.wall_s < 7, f"expected it to end at once, found {seen.wall_s:.1f} s")
    after = box.cell("print(1)")
    expect(after.text == "1", f"expected the next cell to run, found {after}")
    return seen


@probe("stdin")
def input_fails_at_once(box: Box) -> None:
    """With an exception that says so."""
    seen = _ends(box, "input('name? ')")
    expect(seen.result.status == "error", f"expected an error, found {seen}")


@probe("stdin")
def reading_sys_stdin_ends(box: Box) -> None:
    """`sys.stdin.read()` gives the empty string."""
    _ends(box, "import sys; print(repr(sys.stdin.read()))")


@probe("stdin")
def a_shell_line_that_reads_ends(box: Box) -> None:
    """`!cat` gets no terminal to wait on."""
    _ends(box, "!cat")


@probe("stdin")
def a_shell_read_ends(box: Box) -> None:
    """And the lines behind it run."""
    seen = _ends(box, "!read v; echo got=$v")
    expect("got=" in seen.text, f"expected the line behind it to run, found {seen}")


@probe("stdin")
def a_shell_python_input_ends(box: Box) -> None:
    """EOFError in the child, not a hang."""
    _ends(box, "!python3 -c 'input()'")


@probe("stdin")
def a_bash_cell_that_reads_ends(box: Box) -> None:
    """`%%bash` hands its body as stdin or as a file; either way there is nothing more to read."""
    _ends(box, "%%bash\ncat\nread x || true\necho done")


@probe("stdin")
def a_subprocess_that_reads_ends(box: Box) -> None:
    """The inherited descriptor 0."""
    _ends(box, "import subprocess; subprocess.run(['cat'])")


@probe("stdin")
def programs_that_ask_do_not_wait(box: Box) -> None:
    """Editors, pagers and password prompts are switched off by the environment."""
    out = box.text(
        "import os; print(*(os.environ.get(k, '') for k in ('GIT_TERMINAL_PROMPT', "
        "'GIT_EDITOR', 'EDITOR', 'PAGER', 'DEBIAN_FRONTEND', 'PIP_NO_INPUT')))"
    )
    expect(out == "0 true true cat noninteractive 1", f"expected '0 true true cat noninteractive 1', found {out!r}")

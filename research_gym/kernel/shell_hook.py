"""Runs inside the agent's kernel before its first cell: makes `!command` safe to run with nobody at a terminal.

Executed as source text in a namespace of its own, on any Python that runs ipykernel; it belongs to the agent from then
on, so nothing here is a security boundary.

- `!command` gets no terminal: standard input is empty, stdout and stderr are one pipe, output streams as it comes.
  IPython's own version runs the command on a pty, where anything that asks a question hangs for ever.
- An interrupt ends the command and the cell; IPython's version ends the command only, so a loop around it runs on.
- A message with a lone surrogate is sent escaped instead of failing inside jupyter_client.
- What a thread prints belongs to the cell that started it (ipykernel 7 would attach it to whichever cell runs by then).
- `SystemExit` no longer adds the "To exit: use ..." warning, which is advice for a person at a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

_READ_BYTES = 1 << 16
_LAST_READS = 64
"""After the shell's end: more than a pipe holds; a background child that floods is not followed."""
_INTERRUPT_WAIT_S = 0.3


def run_command(command: str) -> int:
    """Runs a shell command, streaming its output to `sys.stdout`; returns its status as IPython's `_exit_code` has it.

    Ends with the shell: a background child that still holds the pipe is not waited for.
    """
    __tracebackhide__ = True
    process = subprocess.Popen(
        [os.environ.get("SHELL") or "/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        _relay(process, process.stdout.fileno(), decoder)
    except KeyboardInterrupt:
        _end(process)
        raise
    finally:
        process.stdout.close()
        sys.stdout.write(decoder.decode(b"", final=True))
    code = process.wait()
    return -(code - 128) if code > 128 else code


def _relay(process: subprocess.Popen[bytes], fd: int, decoder: Any) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    os.set_blocking(fd, False)
    exit_fd = -1
    with contextlib.suppress(OSError, AttributeError):
        exit_fd = os.pidfd_open(process.pid)
        poller.register(exit_fd, select.POLLIN)
    try:
        ended = False
        left = _LAST_READS
        while left:
            if not ended:
                poller.poll(None if exit_fd >= 0 else 50)
                ended = process.poll() is not None
            left -= ended
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                if ended:
                    return
                continue
            if not data:
                process.wait()  # the command may close its output and go on, as a daemon that detaches does
                return
            sys.stdout.write(decoder.decode(data))
    finally:
        if exit_fd >= 0:
            os.close(exit_fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Passes an interrupt on to the command's whole session, then kills it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        end = time.monotonic() + _INTERRUPT_WAIT_S
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)


def install(shell: Any) -> None:
    """Puts the hooks into an IPython shell."""

    def system(cmd: str) -> None:
        __tracebackhide__ = True
        if cmd.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        exit_code = run_command(shell.var_expand(cmd, depth=1))
        shell.user_ns["_exit_code"] = exit_code
        if shell.system_raise_on_error and exit_code != 0:
            raise subprocess.CalledProcessError(exit_code, cmd)

    shell.system = system
    warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)
    if hasattr(shell, "set_thread_parent"):
        _attach_threads(shell)
    session = getattr(getattr(shell, "kernel", None), "session", None)
    if session is not None:
        session.pack = _escaping(session.pack)


def _attach_threads(shell: Any) -> None:
    start = threading.Thread.start

    def attached_start(thread: threading.Thread) -> None:
        parent, run = shell.get_parent(), thread.run

        def attached_run() -> None:
            shell.set_thread_parent(parent)
            run()

        thread.run = attached_run  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = attached_start  # type: ignore[method-assign, assignment]


def _escaping(pack: Any) -> Any:
    def packed(value: Any) -> Any:
        try:
            return pack(value)
        except UnicodeEncodeError:
            return json.dumps(value, default=str).encode("ascii")

    return packed

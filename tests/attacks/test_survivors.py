"""Attacks: processes that hide from the end of a cell, of a command or of the agent's turn."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from research_gym.kernel.items import count
from research_gym.limits import MIB, Limits
from research_gym.sandbox.base import SandboxSpec
from research_gym.sandbox.choose import choose
from research_gym.sandbox.session import RequestRefused, Session
from research_gym.sandbox.waiting import drive

LIMITS = Limits(disk_bytes=8 * MIB, processes=64, start_timeout_s=60, grace_s=2)

BEAT = """
import os, sys, time
def beat():
    while True:
        with open('/tmp/beat', 'a') as file:
            file.write('.')
        time.sleep(0.02)
"""
SESSION = (
    BEAT
    + """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        beat()
    os._exit(0)
"""
)
LEADERLESS = (
    BEAT
    + """
import ctypes, threading
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=beat).start()
    ctypes.CDLL(None).syscall(60, 0)
"""
)
UNSTOPPABLE = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if ctypes.CDLL(None).syscall(56, 0x4000 | 17, 0, 0, 0, 0) == 0:  # CLONE_VFORK: the parent waits, not to be stopped
        time.sleep(1000)
    os._exit(0)
time.sleep(0.3)
"""
HIDING = pytest.mark.parametrize("hide", [SESSION, LEADERLESS], ids=["own-session", "first-thread-ended"])


@pytest.fixture
def session(sandbox_name: str) -> Iterator[Session]:
    with drive(choose(sandbox_name).open(SandboxSpec(limits=LIMITS))) as opened:
        if not opened.isolated:
            pytest.skip("hostile code runs in namespaces or a container only")
        drive(opened.start_kernel())
        yield opened


def beats(session: Session) -> int:
    return count(drive(session.stat("/tmp/beat")).size)


def dead(session: Session) -> bool:
    before = beats(session)
    time.sleep(0.3)
    return before > 0 and beats(session) == before


@HIDING
def test_a_timed_out_cell_leaves_nothing(session: Session, hide: str) -> None:
    result = drive(session.execute(hide + "\nwhile True: pass", timeout_s=2, on_timeout="interrupt"))
    assert result.status == "timeout"
    assert dead(session)


@HIDING
@pytest.mark.parametrize("last", ["time.sleep(100)", "time.sleep(0.5)"], ids=["timed-out", "ended"])
def test_a_command_leaves_nothing_and_spares_the_kernel(session: Session, hide: str, last: str) -> None:
    drive(
        session.execute(
            "import subprocess; kept = subprocess.Popen(['sleep', '1000'])", timeout_s=20, on_timeout="keep"
        )
    )
    result = drive(session.run(["python3", "-c", f"{hide}\n{last}"], timeout_s=2))
    assert result.timed_out == (last == "time.sleep(100)")
    assert dead(session)
    cell = drive(session.execute("assert kept.poll() is None", timeout_s=20, on_timeout="interrupt"))
    assert cell.status == "ok"


@HIDING
def test_frozen_means_all_threads(session: Session, hide: str) -> None:
    drive(session.execute(f"{hide}\ntime.sleep(0.3)", timeout_s=20, on_timeout="interrupt"))
    drive(session.freeze())
    assert dead(session)
    drive(session.thaw())
    assert not dead(session)


def test_what_cannot_be_frozen_is_a_refusal(session: Session) -> None:
    drive(session.execute(UNSTOPPABLE, timeout_s=20, on_timeout="interrupt"))
    with pytest.raises(RequestRefused, match="did not stop"):
        drive(session.freeze())
    assert drive(session.execute("1", timeout_s=20, on_timeout="interrupt")).status == "ok"

"""Opening, closing and losing a sandbox: in time, with the right error, leaving nothing behind."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from research_gym.errors import ResearchGymError, SandboxError, SandboxLost, SandboxStartError
from research_gym.sandbox.waiting import drive
from research_gym.testing.check_sandbox.kit import Box, CheckFailed, expect, probe, token


def _error_of(box: Box, code: str = "print(1)") -> tuple[Exception | None, float]:
    began = time.monotonic()
    try:
        drive(box.session.execute(code, timeout_s=10, on_timeout="interrupt"))
    except (ResearchGymError, RuntimeError) as error:
        return error, time.monotonic() - began
    return None, time.monotonic() - began


@probe("lifecycle", fresh=True)
def closing_takes_less_than_five_seconds_under_a_flood(box: Box) -> None:
    """A cell that floods, a daemon that floods, and processes that ignore every signal they can."""
    box.cell(
        "import subprocess, sys\n"
        "code = 'import signal, sys\\nfor n in range(1, 32):\\n    try: signal.signal(n, "
        "signal.SIG_IGN)\\n    except (OSError, ValueError): pass\\n"
        'while True: sys.stdout.write("x" * 4096)\'\n'
        "for _ in range(3): subprocess.Popen([sys.executable, '-c', code], start_new_session=True)",
        timeout_s=10,
    )
    box.cell("while True: print('y' * 1000)", timeout_s=1, on_timeout="keep")
    began = time.monotonic()
    box.close()
    expect(time.monotonic() - began < 5, f"expected close within 5 s, found {time.monotonic() - began:.1f} s")


@probe("lifecycle", fresh=True)
def closing_twice_is_fine_and_using_it_afterwards_is_an_error(box: Box) -> None:
    """Never a hang, never a descriptor of somebody else."""
    box.close()
    box.close()
    error, wall_s = _error_of(box)
    expect(isinstance(error, (SandboxError, RuntimeError)), f"expected an error after close, found {error!r}")
    expect(wall_s < 1, f"expected it at once, found {wall_s:.1f} s")


@probe("lifecycle", fresh=True)
def closing_ends_every_process(box: Box) -> None:
    """Seen from the host where the host can see them, else by the stream's end."""
    mark = token()
    box.text(
        f"import subprocess; _ = [subprocess.Popen(['bash', '-c', 'trap \"\" TERM HUP; "
        f"exec -a {mark} sleep 999'], start_new_session=True) for _ in range(3)]"
    )
    expect(len(box.alive(mark)) == 3, "expected three processes before")
    box.close()
    _none_on_host(mark)


@probe("lifecycle", fresh=True)
def a_lost_stream_is_an_error_not_a_result(box: Box) -> None:
    """The stream ends in the middle of the session: SandboxLost, at once, and everything inside dies with it."""
    mark = token()
    box.text(
        f"import subprocess; _ = subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 999'], start_new_session=True)"
    )
    with socket.socket(fileno=os.dup(box.session.fileno())) as stream:
        stream.shutdown(socket.SHUT_RDWR)
    error, wall_s = _error_of(box)
    expect(isinstance(error, SandboxLost), f"expected SandboxLost, found {error!r}")
    expect(wall_s < 2, f"expected it within 2 s, found {wall_s:.1f} s")
    _none_on_host(mark)


@probe("lifecycle", fresh=True)
def a_stream_lost_in_the_middle_of_a_cell_is_an_error(box: Box) -> None:
    """An execute that was sent and never answered."""
    work = box.session.execute("import time; time.sleep(30)", timeout_s=60, on_timeout="interrupt")
    next(work)
    with socket.socket(fileno=os.dup(box.session.fileno())) as stream:
        stream.shutdown(socket.SHUT_RDWR)
    began = time.monotonic()
    try:
        drive(work)
    except SandboxLost:
        expect(time.monotonic() - began < 2, "expected it within 2 s")
        return
    raise CheckFailed("expected SandboxLost, found a result")


@probe("lifecycle")
def an_unknown_kernelspec_is_said(box: Box) -> None:
    """With its name; the kernel that runs is not harmed."""
    try:
        drive(box.session.start_kernel(kernel="k9", kernelspec="no-such-kernelspec"))
    except SandboxStartError as error:
        expect("no-such-kernelspec" in str(error), f"expected the name in the message, found {error}")
    else:
        raise CheckFailed("expected SandboxStartError")
    expect(box.text("print(1)") == "1", "expected the first kernel to go on")


@probe("lifecycle")
def two_boxes_share_nothing(box: Box) -> None:
    """Files, variables and processes of one are not the other's."""
    mark = token()
    box.text(
        f"import subprocess; shared = 1; open('{mark}', 'w').write('x'); p = "
        f"subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 999'])"
    )
    try:
        with Box(box.sandbox, box.limits) as other:
            out = other.text(f"import os; print('shared' in globals(), os.path.exists('{mark}'))")
            expect(out == "False False", f"expected nothing of the first box, found {out!r}")
            if box.isolated:
                expect(not other.alive(mark), "expected the first box's process to be invisible")
    finally:
        box.cell("p.kill(); _ = p.wait()")


@probe("lifecycle", fresh=True, limits={"life_s": 4.0})
def a_box_ends_at_its_age(box: Box) -> None:
    """Whatever the host does."""
    mark = token()
    box.cell(
        f"import subprocess; _ = subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 999'], start_new_session=True)"
    )
    time.sleep(5.0)
    error, _ = _error_of(box)
    expect(isinstance(error, SandboxLost), f"expected SandboxLost at the end of life_s, found {error!r}")
    _none_on_host(mark)


@probe("lifecycle")
def the_status_is_known_without_the_kernel(box: Box) -> None:
    """Uptime, processes and memory from pid 1, also while a cell runs."""
    box.cell("import time; time.sleep(2)", timeout_s=0.3, on_timeout="keep")
    status = drive(box.session.status())
    expect(status["uptime_s"] > 0 and status["processes"] >= 1, f"expected figures, found {status}")
    expect(box.wait(timeout_s=10).result.status == "ok", "expected the cell to end as usual")


def _none_on_host(mark: str, *, within_s: float = 2.0) -> None:
    until = time.monotonic() + within_s
    while True:
        left = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if mark.encode() in line.split(b"\0")[0]:
                left.append(path.parent.name)
        if not left:
            return
        if time.monotonic() > until:
            raise CheckFailed(f"expected no process of the box after {within_s:g} s, found {left}")
        time.sleep(0.05)

"""Stands in for pid 1 in the tests of the forkable kernel: owns link and output pipe, puts their contents in order."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research_gym.kernel.bootstrap import BOOTSTRAP, bundle
from research_gym.kernel.frames import Decoder, encode
from research_gym.kernel.marks import MarkReader, Piece


@dataclass
class Answer:
    """What one request led to, in the program's order."""

    final: dict[str, Any] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)

    def show(self, pieces: Sequence[Piece]) -> None:
        """Adds text as stream items."""
        for piece in pieces:
            self.items.append({"kind": "stream", "name": piece.stream, "text": piece.data.decode("utf-8", "replace")})

    @property
    def text(self) -> str:
        """Everything a reader would see."""
        parts: list[str] = []
        for item in self.items:
            if item["kind"] == "stream":
                parts.append(item["text"])
            elif item["kind"] in ("display", "result"):
                parts.append(item["data"].get("text/plain", "") + "\n")
            elif item["kind"] == "error":
                parts.append(f"{item['ename']}: {item['evalue']}\n")
        return "".join(parts)


class Peer:
    """One kernel, seen from pid 1's side."""

    def __init__(self, link: socket.socket, pipe_fd: int, nonce: str) -> None:
        self.link = link
        self.pipe_fd = pipe_fd
        self.marks = MarkReader(nonce)
        self.decoder = Decoder()
        self.pid = 0
        self.waits_with: tuple[int, Callable[[], None]] | None = None
        """A descriptor to serve while waiting: pid 1's gate."""
        self._frames: list[dict[str, Any]] = []
        os.set_blocking(pipe_fd, False)

    def wait_ready(self, *, timeout_s: float = 30) -> dict[str, Any]:
        frame = self._finish({"ready", "failed"}, timeout_s).final
        assert frame["type"] == "ready", frame
        self.pid = frame["pid"]
        return frame

    def run(self, code: str, *, timeout_s: float = 60, interrupt_after_s: float | None = None) -> Answer:
        self.send({"type": "execute", "cell": 1, "code": code})
        return self._finish({"finished"}, timeout_s, interrupt_after_s)

    def say(self, code: str, **options: Any) -> str:
        return self.run(code, **options).text.strip()

    def send(self, header: dict[str, Any], fds: Sequence[int] = ()) -> None:
        data = encode(header)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.link.sendmsg([data], rights)

    def fork(
        self,
        count: int = 1,
        *,
        roots: Sequence[str] = (),
        seeds: Sequence[int] = (),
        nests: Sequence[Sequence[int]] = (),
        kinds: Sequence[str] = (),
    ) -> list[Peer]:
        """Forks and waits until the children serve; a refusal comes as `ForkRefusedByKernel`."""
        children, fds, peers, given = [], [], [], []
        for number in range(count):
            peer, theirs = make_peer(f"c{number}")
            child: dict[str, Any] = {
                "name": f"c{number}",
                "nonce": f"c{number}",
                "roots": list(roots),
                "enter": list(kinds),
            }
            if seeds:
                child["seed"] = seeds[number]
            children.append(child)
            fds += [*theirs, *(nests[number] if nests else [])]
            given += theirs
            peers.append(peer)
        self.send({"type": "fork", "id": 7, "children": children}, fds)
        for fd in given:
            os.close(fd)
        final = self._finish({"forked", "refused"}, 30).final
        if final["type"] == "refused":
            for peer in peers:
                peer.close()
            raise ForkRefusedByKernel(final["what"], final["message"])
        for peer in peers:
            peer.waits_with = self.waits_with
            peer.wait_ready()
        return peers

    def close(self) -> None:
        self.link.close()
        with contextlib.suppress(OSError):
            os.close(self.pipe_fd)

    def _finish(self, finals: set[str], timeout_s: float, interrupt_after_s: float | None = None) -> Answer:
        answer = Answer()
        start = time.monotonic()
        while True:
            for frame in self._frames[:]:
                self._frames.remove(frame)
                if isinstance(frame.get("mark"), int):
                    self._until_mark(frame["mark"], answer)
                if frame["type"] == "items":
                    answer.items += frame["items"]
                elif frame["type"] in finals:
                    answer.final = frame
                    return answer
            now = time.monotonic()
            if interrupt_after_s is not None and now - start > interrupt_after_s:
                os.kill(self.pid, signal.SIGINT)
                interrupt_after_s = None
            if now - start > timeout_s:
                raise TimeoutError(f"no {finals} within {timeout_s} s; so far: {answer.text[-500:]!r}")
            also = [self.waits_with[0]] if self.waits_with else []
            wait_s = 0.02 if interrupt_after_s else min(1.0, timeout_s)
            ready, _, _ = select.select([self.link.fileno(), self.pipe_fd, *also], [], [], wait_s)
            if self.waits_with and self.waits_with[0] in ready:
                self.waits_with[1]()
            if self.pipe_fd in ready:
                self._read_pipe(answer, 1 << 16)
            if self.link.fileno() in ready:
                try:
                    data = self.link.recv(1 << 18)
                except ConnectionResetError:
                    data = b""
                if not data:
                    raise EOFError(f"kernel is gone; so far: {answer.text[-500:]!r}")
                self._frames += [frame.header for frame in self.decoder.feed(data)]

    def _until_mark(self, number: int, answer: Answer) -> None:
        """The mark was written before the frame was sent: it is among the bytes that wait now."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.pipe_fd, termios.FIONREAD, waiting)
        self._read_pipe(answer, waiting[0])
        answer.show(self.marks.reach(number))

    def _read_pipe(self, answer: Answer, count: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if count:
                answer.show(self.marks.feed(os.read(self.pipe_fd, count)))


class ForkRefusedByKernel(Exception):
    """The kernel named what cannot be forked."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.what = what


def make_peer(nonce: str) -> tuple[Peer, list[int]]:
    """A peer and the two descriptors its kernel gets: link, pipe."""
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    return Peer(ours, read_end, nonce), [theirs.detach(), write_end]


def launch(cwd: Path, *, imports: Sequence[str] = ()) -> tuple[Peer, subprocess.Popen[bytes]]:
    """Starts a kernel in a directory."""
    peer, (link_fd, pipe_fd) = make_peer("root")
    process = subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP],
        cwd=cwd,
        stdin=link_fd,
        stdout=pipe_fd,
        stderr=pipe_fd,
        start_new_session=True,
        env={**os.environ, "HOME": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    os.close(link_fd)
    os.close(pipe_fd)
    peer.link.sendall(bundle({"nonce": "root", "imports": list(imports)}, entry="research_gym.kernel.fork_kernel"))
    return peer, process

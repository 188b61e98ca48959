"""A small synchronous client of the supervisor for tests, and the fixtures that own one (a pytest plugin)."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from research_gym.kernel.bootstrap import BOOTSTRAP, bundle
from research_gym.kernel.frames import Decoder, Frame, encode
from research_gym.limits import Limits


class Reply:
    """All frames of one request."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.last = frames[-1].header

    @property
    def items(self) -> list[dict[str, Any]]:
        return [item for frame in self.frames if frame.header["type"] == "output" for item in frame.header["items"]]

    @property
    def text(self) -> str:
        return "".join(item["text"] for item in self.items if item["kind"] == "stream")

    @property
    def data(self) -> bytes:
        return b"".join(frame.data for frame in self.frames if frame.header["type"] == "data")


class Client:
    """Owns one supervisor process."""

    def __init__(
        self, workdir: Path, *, limits: dict[str, Any] | None = None, prefix: Sequence[str] = (), **config: Any
    ) -> None:
        workdir.mkdir(parents=True, exist_ok=True)
        home = workdir.parent / f"{workdir.name}-home"
        home.mkdir(exist_ok=True)
        settings: dict[str, Any] = {
            "workdir": str(workdir),
            "writable_roots": [str(workdir)],
            "agent_uid": os.getuid(),
            "agent_gid": os.getgid(),
            "agent_env": {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "IPYTHONDIR": str(home)},
            "python": sys.executable,
            "isolated": False,
            "limits": asdict(Limits.of({"grace_s": 1.5, **(limits or {})})),
            **config,
        }
        if settings["isolated"]:
            for folder in (workdir, home):
                folder.chmod(0o777)
        self.settings = settings
        self.socket, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", "-c", BOOTSTRAP],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
        theirs.close()
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self._id = 0
        self.socket.sendall(bundle(settings))
        self.hello = self._next(time.monotonic() + 10).header

    def send(self, type: str, /, *, data: bytes = b"", kernel: str = "k0", id: int | None = None, **fields: Any) -> int:
        if id is None:
            self._id += 1
        number = self._id if id is None else id
        self.socket.sendall(encode({"id": number, "kernel": kernel, "type": type, **fields}, data))
        return number

    def reply(self, id: int, *, within_s: float = 30.0) -> Reply:
        end = time.monotonic() + within_s
        frames: list[Frame] = []
        skipped: list[Frame] = []
        try:
            while True:
                frame = self._next(end)
                if frame.header["id"] != id:
                    skipped.append(frame)
                    continue
                frames.append(frame)
                if frame.header["type"] in ("done", "error"):
                    return Reply(frames)
        finally:
            self._frames = skipped + self._frames

    def ask(self, type: str, /, *, within_s: float = 30.0, **fields: Any) -> Reply:
        return self.reply(self.send(type, **fields), within_s=within_s)

    def start(self, **fields: Any) -> Reply:
        reply = self.ask("start", kernelspec=fields.pop("kernelspec", "python3"), **fields)
        return reply

    def cell(self, code: str, *, timeout_s: float = 20.0, on_timeout: str = "interrupt") -> Reply:
        return self.ask("execute", code=code, timeout_s=timeout_s, on_timeout=on_timeout, within_s=timeout_s + 15)

    def close(self) -> None:
        self.socket.close()
        try:
            self.process.wait(5)
        finally:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, end: float) -> Frame:
        while not self._frames:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame from the supervisor in time")
            if select.select([self.socket], [], [], left)[0]:
                chunk = self.socket.recv(1 << 18)
                if not chunk:
                    raise EOFError("the supervisor's stream ended")
                self._frames += self._decoder.feed(chunk)
        return self._frames.pop(0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    # A long grace: on a busy machine an interrupted kernel takes its time to format the first traceback.
    with Client(tmp_path_factory.mktemp("shared") / "work", limits={"grace_s": 8.0}) as client:
        assert client.start().last["type"] == "done"
        yield client


@pytest.fixture
def box(shared: Client) -> Client:
    """A client with a live, idle kernel: started anew if an earlier test killed it."""
    if shared.ask("stat").last["kernels"][0]["state"] == "none":
        reply = shared.start()
        assert reply.last["type"] == "done", reply.last
    return shared


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Client]:
    """A client without a kernel."""
    with Client(tmp_path / "work") as client:
        yield client


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.02)
    return not alive(pid)


def ename(reply: Reply) -> str:
    return "".join(item["ename"] for item in reply.items if item["kind"] == "error")


def result(reply: Reply) -> str:
    return "".join(item["data"]["text/plain"] for item in reply.items if item["kind"] == "result")


def write(client: Client, path: str, data: bytes, *, size: int | None = None) -> Reply:
    request = client.send("write_file", path=path, mode=0o640, size=len(data) if size is None else size)
    step = 700_000
    chunks = [data[start : start + step] for start in range(0, len(data), step)] or [b""]
    for index, chunk in enumerate(chunks):
        client.send("chunk", id=request, last=index == len(chunks) - 1, data=chunk)
    return client.reply(request)

"""The kernel's end of its link to pid 1: frames and descriptors over one socket, Jupyter messages as output items.

The kernel has no ZeroMQ socket and no helper thread: whatever IPython publishes goes through `LinkSession.send`,
which turns it into an item of an `items` frame with the number of the mark that was written into the output pipe just
before.
"""

from __future__ import annotations

import array
import os
import socket
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from jupyter_client.session import Session

from research_gym.kernel.frames import Decoder, Frame, encode
from research_gym.kernel.items import Item, error, flat_metadata, mime_bundle, packs
from research_gym.kernel.pipe_text import OutputPipe, write_all

_READ_BYTES = 1 << 16
_MAX_FDS = 128
_CMSG_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)


class KernelLink:
    """One socket to pid 1. Sending blocks (natural back-pressure on the kernel), receiving does not."""

    def __init__(self, fd: int) -> None:
        self._adopt(fd)

    def _adopt(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)
        self.decoder = Decoder()
        self.fds: deque[int] = deque()
        """Descriptors that came with frames, in order; whoever handles the frame takes its own."""
        self._owner = os.getpid()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self.socket.fileno()

    def renew(self, fd: int) -> None:
        """Leaves the parent's socket (closed here, open there) and speaks over another one from now on."""
        self.socket.close()
        for inherited in self.fds:
            os.close(inherited)
        self._adopt(fd)

    def receive(self) -> list[Frame] | None:
        """The frames that arrived; `None` at the end of the stream.

        Raises:
            FrameError: what pid 1 sent is not frames; there is nothing to go on with.
        """
        fds = array.array("i")
        try:
            data, ancillary, _, _ = self.socket.recvmsg(
                _READ_BYTES, socket.CMSG_LEN(_MAX_FDS * fds.itemsize), socket.MSG_DONTWAIT | _CMSG_CLOEXEC
            )
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
        self.fds.extend(fds)
        return self.decoder.feed(data) if data else None

    def send(self, header: dict[str, Any]) -> None:
        """Sends one frame, unless this is a worker process that the agent's code forked."""
        if os.getpid() != self._owner:
            return
        data = encode(header)
        with self._sending:
            write_all(self.socket.fileno(), data)

    def send_items(self, items: Iterable[Item], *, mark: int | None) -> None:
        """Sends output items that belong after the numbered mark of the pipe."""
        for group in packs(items):
            self.send({"type": "items", "items": group, "mark": mark})


class LinkSession(Session):  # type: ignore[misc]  # jupyter_client is untyped
    """A Jupyter session whose messages become items on the link. Replies, status and comm messages end here."""

    link: KernelLink
    pipe: OutputPipe

    def send(self, stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None, **more: Any) -> Any:
        """Takes both call forms of `jupyter_client`: a finished message, or a type and its content."""
        message = (
            msg_or_type if isinstance(msg_or_type, dict) else self.msg(msg_or_type, content=content, parent=parent)
        )
        item = _item(message.get("header", {}).get("msg_type", ""), message.get("content"))
        if item is not None and os.getpid() == self.pid:
            self.link.send_items([item], mark=self.pipe.mark())
        return message


def _item(kind: str, content: Any) -> Item | None:
    if not isinstance(content, dict):
        return None
    if kind in ("display_data", "update_display_data"):
        return {
            "kind": "display",
            "data": mime_bundle(content.get("data")),
            "metadata": flat_metadata(content.get("metadata")),
            "update": kind == "update_display_data",
        }
    if kind == "execute_result":
        return {
            "kind": "result",
            "data": mime_bundle(content.get("data")),
            "execution_count": content["execution_count"],
        }
    if kind == "error":
        return error(content.get("ename"), content.get("evalue"), content.get("traceback"))
    if kind == "clear_output":
        return {"kind": "clear", "wait": bool(content.get("wait"))}
    if kind == "stream" and isinstance(content.get("text"), str):
        return {
            "kind": "stream",
            "name": "stderr" if content.get("name") == "stderr" else "stdout",
            "text": content["text"],
        }
    return None

"""What a notebook cell gave back: outputs as the kernel sent them, its end as the supervisor saw it, the text shown.

Outputs are the agent's word: they are shown, and nothing else is concluded from them. Status words `timeout`, `died`
and `interrupted`, the clocks and the counts are the supervisor's; `ok` and `error` are the kernel's.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from research_gym.output import Clear, Display, ErrorOutput, Output, Result, Stream, parse_item
from research_gym.text import clean, clip, join_cut

__all__ = [
    "CellResult",
    "CellStatus",
    "Clear",
    "Display",
    "ErrorOutput",
    "Output",
    "Rendered",
    "Result",
    "Stream",
    "clean",
    "clip",
    "parse_item",
    "render",
]

CellStatus = Literal["ok", "error", "timeout", "died", "interrupted"]

BACKGROUND = "(background output)"
"""The line above output that belongs to no running cell: threads and processes that outlived theirs."""


@dataclass(frozen=True)
class CellResult:
    """How one cell (or one `%wait`) ended."""

    status: CellStatus
    execution_count: int = 0
    duration_s: float = 0.0
    """Wall seconds by the supervisor's clock."""
    cpu_s: float = 0.0
    """CPU seconds of the kernel and its children, by the operating system's account."""
    omitted_chars: int = 0
    """Output that was dropped, in the sandbox (bytes) and in the rendering (characters)."""
    oom_kills: int = 0
    background_processes: int = 0
    """Processes of the agent still alive beside the kernel."""
    running: bool = False
    """The cell goes on (`on_timeout="keep"`)."""
    killed: bool = False
    """The kernel was killed and its variables are lost."""
    malformed: int = 0
    """Messages of the kernel that were none and were dropped."""
    outputs: tuple[Output, ...] = ()

    IDLE: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "status": "ok",
            "duration_s": 0.0,
            "cpu_s": 0.0,
            "omitted_chars": 0,
            "oom_kills": 0,
            "killed": False,
            "malformed": 0,
            "outputs": (),
        }
    )
    """What a step that ran no cell changes in the last one's result: nothing was spent and nothing came out."""

    @classmethod
    def none(cls) -> CellResult:
        """The result before the first cell."""
        return cls("ok")

    def to_info(self) -> dict[str, Any]:
        """`info["cell"]`: the same keys with the same types at every step, whatever the sandbox reported.

        Example:
            >>> CellResult.none().to_info()["duration_s"]
            0.0
        """
        return {
            "status": str(self.status),
            "execution_count": int(self.execution_count),
            "duration_s": float(self.duration_s),
            "cpu_s": float(self.cpu_s),
            "omitted_chars": int(self.omitted_chars),
            "oom_kills": int(self.oom_kills),
            "background_processes": int(self.background_processes),
        }


@dataclass(frozen=True)
class Rendered:
    """The text of a cell's outputs, and how much of them it leaves out."""

    text: str
    omitted_chars: int


def render(outputs: Iterable[Output], *, max_chars: int, omitted_bytes: int = 0) -> Rendered:
    """Makes the text an agent sees of a cell's outputs.

    Guarantees, for any outputs: valid Unicode without control characters but newline and tab (see `text.clean`), at
    most `max_chars` characters, head and tail kept and what was dropped stated in a line between them; never raises.

    Outputs stand in the order they came, pieces of stdout and stderr joined before they are cleaned (an escape
    sequence may be split over two of them). `clear_output` is applied. Neighbouring redraws of a display collapse to
    the last one. An image is a line such as `[image/png 640x480, 23 kB]` under its text. Late output stands at the
    end, under a line `(background output)`. IPython's advice on how to leave is taken out after a `SystemExit`: it is
    not for agents.

    Args:
        max_chars: longest text.
        omitted_bytes: what the sandbox dropped before it came here; added to the stated count.

    Example:
        >>> render([Stream("stdout", "a\\n"), Result({"text/plain": "42"})], max_chars=100).text
        'a\\n42'
    """
    current, late = _Page(), _Page()
    for output in outputs:
        (late if output.late else current).add(output)
    text = current.text()
    behind = late.text()
    if behind:
        text = f"{text}\n{BACKGROUND}\n{behind}" if text else f"{BACKGROUND}\n{behind}"
    shown, omitted = join_cut(text, max_chars=max_chars, omitted=max(0, omitted_bytes))
    return Rendered(shown, omitted)


class _Page:
    """Outputs laid one under the other; pieces of a stream stay together until they are cleaned as a whole."""

    def __init__(self) -> None:
        self._blocks: list[tuple[str, list[str]]] = []
        self._clear_next = False
        self._exited = False

    def add(self, output: Output) -> None:
        if isinstance(output, Clear):
            if output.wait:
                self._clear_next = True
            else:
                self._blocks.clear()
                self._clear_next = False
            return
        if self._clear_next:
            self._blocks.clear()
            self._clear_next = False
        if isinstance(output, Stream):
            self._put("stream", output.text, join=True)
        elif isinstance(output, ErrorOutput):
            self._exited = self._exited or output.ename == "SystemExit"
            self._put("error", "\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
        elif isinstance(output, Display) and output.update:
            if self._blocks and self._blocks[-1][0] == "update":
                self._blocks.pop()
            self._put("update", _shown(output.data))
        else:
            self._put("value", _shown(output.data))

    def _put(self, kind: str, text: str, *, join: bool = False) -> None:
        if join and self._blocks and self._blocks[-1][0] == kind:
            self._blocks[-1][1].append(text)
        else:
            self._blocks.append((kind, [text]))

    def text(self) -> str:
        parts: list[str] = []
        for kind, pieces in self._blocks:
            text = clean("".join(pieces))
            if kind == "stream" and self._exited:
                text = _without_exit_advice(text)
            text = text.removesuffix("\n")
            if text:
                parts.append(text)
        return "\n".join(parts)


_EXIT_ADVICE = "UserWarning: To exit: use 'exit', 'quit', or Ctrl-D."


def _without_exit_advice(text: str) -> str:
    if _EXIT_ADVICE not in text:
        return text
    kept: list[str] = []
    advice = False
    for line in text.split("\n"):
        if line.endswith(_EXIT_ADVICE):
            advice = True
        elif not (advice and line.strip().startswith('warn("To exit')):
            kept.append(line)
            advice = False
    return "\n".join(kept)


# One value in several MIME types.

_TEXTS = ("text/plain", "text/markdown", "text/latex", "text/html")


def _shown(data: Mapping[str, Any]) -> str:
    lines = []
    for kind in _TEXTS:
        text = _joined(data.get(kind))
        if text:
            lines.append(text.removesuffix("\n"))
            break
    lines += [_image_note(kind, _joined(data[kind])) for kind in data if kind.startswith("image/")]
    if not lines:
        lines = [f"[{kind}]" for kind in data if kind not in _TEXTS]
    return "\n".join(lines)


def _joined(value: object) -> str:
    """Text of a MIME value: nbformat also allows a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return ""


def _image_note(kind: str, encoded: str) -> str:
    if kind == "image/svg+xml":
        return f"[{kind}, {_kilobytes(len(encoded))}]"
    size = _image_size(_first_bytes(encoded))
    bytes_ = len(encoded) * 3 // 4
    return f"[{kind} {size[0]}x{size[1]}, {_kilobytes(bytes_)}]" if size else f"[{kind}, {_kilobytes(bytes_)}]"


def _kilobytes(count: int) -> str:
    return f"{max(1, round(count / 1000))} kB" if count else "0 kB"


_HEADER_CHARS = 1 << 18
"""Base64 text that is decoded to find an image's size; JPEG files may carry 64 KiB segments before it."""


def _first_bytes(encoded: str) -> bytes:
    head = "".join(encoded[:_HEADER_CHARS].split())
    try:
        return base64.b64decode(head[: len(head) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return b""


def _image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height by the file's own header (PNG, GIF, JPEG)."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data.startswith((b"GIF87a", b"GIF89a")) and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
        return width, height
    if data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            return None
        at += 2 + length
    return None

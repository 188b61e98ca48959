"""One output of a notebook cell, as the kernel sent it: the agent's word, shown and otherwise believed in nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True)
class Stream:
    """A piece of stdout or stderr."""

    name: Literal["stdout", "stderr"]
    text: str
    late: bool = False
    """It came from an earlier cell's thread or process."""

    def to_item(self) -> dict[str, Any]:
        """The item as `parse_item` reads it."""
        return {"kind": "stream", "name": self.name, "text": self.text, "late": self.late}


@dataclass(frozen=True)
class Display:
    """Rich output of `display(...)`: one value in several MIME types."""

    data: Mapping[str, Any]
    """MIME type -> text, base64 text for images, or a JSON value."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    update: bool = False
    """It redraws an earlier display."""
    late: bool = False

    def to_item(self) -> dict[str, Any]:
        """The item as `parse_item` reads it."""
        return {
            "kind": "display",
            "data": dict(self.data),
            "metadata": dict(self.metadata),
            "update": self.update,
            "late": self.late,
        }


@dataclass(frozen=True)
class Result:
    """The value of a cell's last expression."""

    data: Mapping[str, Any]
    execution_count: int = 0
    late: bool = False

    def to_item(self) -> dict[str, Any]:
        """The item as `parse_item` reads it."""
        return {
            "kind": "result",
            "data": dict(self.data),
            "execution_count": self.execution_count,
            "late": self.late,
        }


@dataclass(frozen=True)
class ErrorOutput:
    """An exception that ended a cell."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    late: bool = False

    def to_item(self) -> dict[str, Any]:
        """The item as `parse_item` reads it."""
        return {
            "kind": "error",
            "ename": self.ename,
            "evalue": self.evalue,
            "traceback": list(self.traceback),
            "late": self.late,
        }


@dataclass(frozen=True)
class Clear:
    """`clear_output()`: what was shown before is gone, with `wait` only once something new is shown."""

    wait: bool = False
    late: bool = False

    def to_item(self) -> dict[str, Any]:
        """The item as `parse_item` reads it."""
        return {"kind": "clear", "wait": self.wait, "late": self.late}


Output: TypeAlias = Stream | Display | Result | ErrorOutput | Clear


def parse_item(item: object) -> Output | None:
    """Reads one output item of a frame; `None` for anything that is not one, whatever it is.

    The supervisor speaks for a kernel that the agent owns, so no field is trusted to have its type.

    Example:
        >>> parse_item({"kind": "stream", "name": "stdout", "text": "hi"})
        Stream(name='stdout', text='hi', late=False)
        >>> parse_item({"kind": "stream", "name": "stdout", "text": 3}) is None
        True
    """
    if not isinstance(item, Mapping):
        return None
    late = item.get("late", False)
    kind = item.get("kind")
    if not isinstance(late, bool) or not isinstance(kind, str) or kind not in _READERS:
        return None
    return _READERS[kind](item, late)


def _stream(item: Mapping[str, Any], late: bool) -> Output | None:
    name, text = item.get("name"), item.get("text")
    if not isinstance(text, str):
        return None
    if name == "stdout":
        return Stream("stdout", text, late)
    return Stream("stderr", text, late) if name == "stderr" else None


def _bundle(value: object) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return None
    return dict(value)


def _display(item: Mapping[str, Any], late: bool) -> Output | None:
    data, metadata, update = _bundle(item.get("data")), _bundle(item.get("metadata", {})), item.get("update", False)
    if data is None or metadata is None or not isinstance(update, bool):
        return None
    return Display(data, metadata, update, late)


def _result(item: Mapping[str, Any], late: bool) -> Output | None:
    data, count = _bundle(item.get("data")), item.get("execution_count", 0)
    if data is None or not isinstance(count, int) or isinstance(count, bool):
        return None
    return Result(data, count, late)


def _error(item: Mapping[str, Any], late: bool) -> Output | None:
    ename, evalue, traceback = item.get("ename"), item.get("evalue"), item.get("traceback", [])
    if not isinstance(ename, str) or not isinstance(evalue, str) or not isinstance(traceback, (list, tuple)):
        return None
    if not all(isinstance(line, str) for line in traceback):
        return None
    return ErrorOutput(ename, evalue, tuple(traceback), late)


def _clear(item: Mapping[str, Any], late: bool) -> Output | None:
    wait = item.get("wait", False)
    return Clear(wait, late) if isinstance(wait, bool) else None


_READERS: Mapping[str, Callable[[Mapping[str, Any], bool], Output | None]] = {
    "stream": _stream,
    "display": _display,
    "result": _result,
    "error": _error,
    "clear": _clear,
}

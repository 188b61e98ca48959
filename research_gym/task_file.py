"""Reads a task file: a strict subset of YAML, and values that know where they stand so that errors can say it.

The subset is YAML 1.2's core schema without tags, anchors, aliases, merge keys and duplicate keys. `no` and
`2024-01-01` are text, `1e-3` is a number. No interpolation of any kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import yaml

from research_gym.errors import TaskFormatError
from research_gym.text import clean

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):
    """Composes only what the subset has; everything else is an error with its place."""

    depth = 0
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own interface

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it open
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not allowed", mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, f"tags such as {event.tag!r} are not allowed", mark)
        if self.depth >= MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nesting deeper than {MAX_DEPTH} is not allowed", mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be text: put it in quotes", mark)
            if key_node.value in found:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key_node.value!r} stands twice", mark)
            found[key_node.value] = self.construct_object(value_node, deep=True)
        return found

    def construct_map(self, node: yaml.MappingNode) -> Iterator[dict[Any, Any]]:
        yield self.construct_mapping(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_map)
for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read(path: Path) -> Node:
    """Reads a task file.

    Raises:
        TaskFormatError: it cannot be read, is over 1 MiB, not UTF-8, or not in the subset; the message names file, line
        and column.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TaskFormatError(f"{path}: expected a readable task file, found: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise TaskFormatError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, found more")
    return parse(data, name=str(path))


def parse(data: bytes, *, name: str) -> Node:
    """Reads the bytes of a task file; `name` stands in messages.

    Raises:
        TaskFormatError: as `read`.
    """
    try:
        loader = _Loader(data.decode("utf-8"))
        try:
            return Node(loader.get_single_data(), file=name)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise TaskFormatError(f"{name}: {where}expected plain YAML, found: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise TaskFormatError(f"{name}: expected plain YAML, found: {error}") from error
    except UnicodeDecodeError as error:
        raise TaskFormatError(f"{name}: expected UTF-8, found: {error.reason} at byte {error.start}") from error


class Node:
    """A value of a task file and its place. Each method checks and returns it as one type.

    Raises:
        TaskFormatError: from every method, naming file, key, what was expected and what was found.
    """

    def __init__(self, value: Any, *, file: str, key: str = "") -> None:
        self.value = value
        self.file = file
        self.key = key

    def fail(self, expected: str, *, found: str | None = None) -> NoReturn:
        """Raises the error for this place."""
        shown = found if found is not None else _shown(self.value)
        raise TaskFormatError(f"{self._place()}: expected {expected}, found {shown}")

    def wrong(self, error: Exception) -> NoReturn:
        """Raises the error for this place with what another check said of its value."""
        raise TaskFormatError(f"{self._place()}: {error}") from error

    def _place(self) -> str:
        return f"{self.file}: {self.key}" if self.key else self.file

    def mapping(self, *, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, Node]:
        """A mapping with these keys; an optional key that is absent or null is left out."""
        if not isinstance(self.value, dict):
            self.fail("a mapping")
        required = tuple(required)
        known = (*required, *optional)
        for key in self.value:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                raise TaskFormatError(f"{self._place()}: unknown key {key!r}; {hint}")
        for key in required:
            if self.value.get(key) is None:
                raise TaskFormatError(f"{self._place()}: the key {key!r} is missing")
        return {key: self._child(key, value) for key, value in self.value.items() if value is not None}

    def entries(self) -> dict[str, Node]:
        """A mapping with any keys."""
        if not isinstance(self.value, dict):
            self.fail("a mapping")
        return {key: self._child(key, value) for key, value in self.value.items()}

    def items(self) -> list[Node]:
        """A list."""
        if not isinstance(self.value, list):
            self.fail("a list")
        return [Node(value, file=self.file, key=f"{self.key}[{index}]") for index, value in enumerate(self.value)]

    def _child(self, key: str, value: Any) -> Node:
        return Node(value, file=self.file, key=f"{self.key}.{key}" if self.key else key)

    def text(self, *, max_chars: int = 100_000) -> str:
        """Text that is not blank and may be shown as it is (`research_gym.text.clean` would not change it)."""
        if not isinstance(self.value, str) or not self.value.strip():
            self.fail("text that is not blank")
        if clean(self.value) != self.value:
            self.fail("text without control characters, lone surrogates and turned writing direction")
        if len(self.value) > max_chars:
            self.fail(f"at most {max_chars} characters", found=str(len(self.value)))
        return self.value

    def line(self, *, max_chars: int = 300) -> str:
        """One line of text."""
        text = self.text(max_chars=max_chars)
        if not text.isprintable():
            self.fail("one line of text without control characters")
        return text

    def choice(self, *choices: str) -> str:
        """One of these words."""
        word = self.text()
        if word not in choices:
            near = get_close_matches(word, choices, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            self.fail(f"one of {', '.join(choices)}{hint}")
        return word

    def number(self) -> float:
        """A finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)) or not math.isfinite(self.value):
            self.fail("a finite number")
        return self.value

    def integer(self) -> int:
        """A whole number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.fail("a whole number")
        return self.value

    def flag(self) -> bool:
        """`true` or `false`."""
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return self.value

    def json(self) -> Any:
        """Any value of which JSON can be made: numbers finite, text valid Unicode."""
        for value in _leaves(self.value):
            if isinstance(value, float) and not math.isfinite(value):
                self.fail("finite numbers", found=repr(value))
            if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
                self.fail("valid Unicode", found=repr(value))
        return self.value

    def relative_path(self) -> str:
        """A path that stays beneath where it starts: no `..`, not absolute."""
        text = self.line()
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or "\\" in text or not path.parts:
            self.fail("a path relative to its folder, without '..'")
        return str(path)

    def absolute_path(self) -> str:
        """A path in the sandbox: absolute, in plain form, not the root."""
        text = self.line()
        path = PurePosixPath(text)
        if not path.is_absolute() or ".." in path.parts or str(path) != text or len(path.parts) < 2 or text[:2] == "//":
            self.fail("an absolute path without '..', such as /content")
        return text

    def file_beneath(self, folder: Path, *, directory: bool = False) -> Path:
        """A file (or folder) that is there, beneath `folder`, reached through no link."""
        path = folder
        for part in PurePosixPath(self.relative_path()).parts:
            path = path / part
            if path.is_symlink():
                self.fail("a path without links", found=f"the link {path.relative_to(folder)}")
        if not (path.is_dir() if directory else path.is_file()):
            self.fail("a folder beside the task file" if directory else "a file beside the task file")
        return path


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    shown = repr(value)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."

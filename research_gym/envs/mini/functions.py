"""Pairs of docstring and function, read from the source of an installed package, with names taken out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_QUERY_WORDS = 5
MIN_BODY_LINES = 4
MAX_CODE_CHARS = 2500


@dataclass(frozen=True)
class DocumentedFunction:
    """A function in two halves that belong together."""

    query: str
    """First paragraph of the docstring, on one line."""
    code: str
    """The function without docstring and decorators, called `function`, its parameters `arg_0`, `arg_1` and so on."""


def documented_functions(folder: Path) -> Iterator[DocumentedFunction]:
    """Yields the documented functions of a package at module level, tests left out, each docstring and body once."""
    queries: set[str] = set()
    codes: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        if "tests" in path.relative_to(folder).parts or path.name == "conftest.py":
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            pair = _pair(node)
            if pair is None or pair.query in queries or pair.code in codes:
                continue
            queries.add(pair.query)
            codes.add(pair.code)
            yield pair


def _pair(node: ast.FunctionDef) -> DocumentedFunction | None:
    paragraph = (ast.get_docstring(node) or "").split("\n\n")[0]
    query = " ".join(paragraph.split())
    if len(query.split()) < MIN_QUERY_WORDS:
        return None
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    names = {parameter.arg: f"arg_{number}" for number, parameter in enumerate(parameters)} | {node.name: "function"}
    bare = ast.FunctionDef(
        name="function", args=arguments, body=node.body[1:], decorator_list=[], returns=None, type_comment=None
    )
    for inner in ast.walk(bare):
        if isinstance(inner, ast.Name):
            inner.id = names.get(inner.id, inner.id)
        elif isinstance(inner, ast.arg):
            inner.arg = names.get(inner.arg, inner.arg)
    if not bare.body:
        return None
    code = ast.unparse(ast.fix_missing_locations(bare))
    if len(code.splitlines()) < MIN_BODY_LINES or len(code) > MAX_CODE_CHARS or query in code:
        return None
    return DocumentedFunction(query, code)

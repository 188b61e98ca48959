"""Splits CSV text into columns of cells, strictly: each row has its declared fields, or the file is refused.

RFC 4180 with `,` and `"`, line ends `\\n` or `\\r\\n`. The first wrong row stops the work, so that memory is bounded
by the declared number of rows. Not `csv.reader`: its limit on the length of a cell is a global of the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from research_gym.grading.schema import SubmissionInvalid, quote

_PLAIN = re.compile(r"[^,\r\n]*+")
_QUOTED = re.compile(r'[^"]*+(?:""[^"]*+)*+"')


def split(text: str, *, names: Sequence[str], rows: int | None) -> list[list[str]]:
    """Returns the cells, one list per name in the order of `names`, each of length `rows`.

    The header must hold exactly these names, in any order. Newlines at the end of the file are ignored; a blank line
    anywhere else is an error, also in a file of one text column, where an empty cell is written `""`.

    Args:
        text: the file, decoded.
        names: declared columns, all different.
        rows: declared number of rows under the header; `None` takes as many as there are.

    Raises:
        SubmissionInvalid: syntax, columns, header, rows, fields.
    """
    text = text.rstrip("\r\n")
    if '"' in text:
        return _split_quoted(text, names, rows)
    return _split_plain(text.replace("\r\n", "\n"), names, rows)


def header(text: str) -> list[str]:
    """Returns the cells of the first line, unchecked.

    Raises:
        SubmissionInvalid: syntax.
    """
    return next(_rows(text.rstrip("\r\n")))[0]


def _split_plain(text: str, names: Sequence[str], rows: int | None) -> list[list[str]]:
    head, _, body = text.partition("\n")
    if "\r" in text:
        row = text.count("\n", 0, text.index("\r"))
        raise SubmissionInvalid("syntax", f"{_place(row)}: a carriage return that is not part of a line end")
    order = _order(head.split(",", len(names)), names)
    if body.startswith("\n") or "\n\n" in body:
        row = 1 if body.startswith("\n") else body.count("\n", 0, body.index("\n\n")) + 2
        raise SubmissionInvalid("fields", f"{_place(row)}: expected {_fields(names)}, found a blank line")
    count = body.count("\n") + 1 if body else 0
    _check_rows(count, rows)
    if not body:
        return [[] for _ in names]
    lines = body.split("\n")
    if len(names) == 1:
        if "," in body:
            row = body.count("\n", 0, body.index(",")) + 1
            raise _wrong_fields(row, lines[row - 1].count(",") + 1, names, lines[row - 1])
        return [lines]
    columns: list[list[str]] = [[] for _ in names]
    for row, line in enumerate(lines, 1):
        cells = line.split(",")
        if len(cells) != len(names):
            raise _wrong_fields(row, len(cells), names, line)
        for column, place in zip(columns, order, strict=True):
            column.append(cells[place])
    return columns


def _split_quoted(text: str, names: Sequence[str], rows: int | None) -> list[list[str]]:
    table = _rows(text, most=len(names) + 1)
    order = _order(next(table)[0], names)
    columns: list[list[str]] = [[] for _ in names]
    count = 0
    for cells, blank in table:
        count += 1
        if blank:
            raise SubmissionInvalid("fields", f"{_place(count)}: expected {_fields(names)}, found a blank line")
        if len(cells) != len(names):
            raise _wrong_fields(count, len(cells), names, ",".join(cells)[:200])
        if rows is not None and count > rows:
            raise SubmissionInvalid("rows", f"expected {rows} rows under the header, found more")
        for column, place in zip(columns, order, strict=True):
            column.append(cells[place])
    _check_rows(count, rows)
    return columns


def _rows(text: str, *, most: int | None = None) -> Iterator[tuple[list[str], bool]]:
    """Yields the cells of each row and whether its line is blank; a row over `most` cells is cut and the last."""
    position, end, row = 0, len(text), 0
    cells: list[str] = []
    while True:
        quoted = text.startswith('"', position)
        found = (_QUOTED if quoted else _PLAIN).match(text, position + quoted)
        if found is None:
            raise SubmissionInvalid("syntax", f'{_place(row)}: a cell opens with " that is never closed')
        cell = found.group()[:-1].replace('""', '"') if quoted else found.group()
        cells.append(cell)
        position = found.end()
        if position == end or (most is not None and len(cells) > most):
            yield cells, False
            return
        if text[position] == ",":
            position += 1
            continue
        if text[position] == "\n" or text.startswith("\r\n", position):
            position += 1 if text[position] == "\n" else 2
        elif text[position] == "\r":
            raise SubmissionInvalid("syntax", f"{_place(row)}: a carriage return that is not part of a line end")
        else:
            after = quote(text[position : position + 20])
            raise SubmissionInvalid(
                "syntax", f'{_place(row)}: expected , or a line end after a closing ", found {after}'
            )
        yield cells, cells == [""] and not quoted
        cells = []
        row += 1


def _order(found: list[str], names: Sequence[str]) -> list[int]:
    """Returns where each declared column stands in the file."""
    expected = ",".join(names)
    if len(found) != len(names):
        number = f"{len(found)}" if len(found) <= len(names) else f"{len(names) + 1} or more"
        hint = "; with pandas write to_csv(..., index=False)" if found[0] == "" or len(found) > len(names) else ""
        shown = quote(",".join(found)[:200])
        raise SubmissionInvalid(
            "columns", f"header: expected {_fields(names)} ({quote(expected)}), found {number}: {shown}{hint}"
        )
    if sorted(found) != sorted(names):
        stripped = sorted(name.strip().lower() for name in found) == sorted(name.lower() for name in names)
        hint = "names are compared exactly: case and spaces count" if stripped else "the first line must be the header"
        raise SubmissionInvalid(
            "header", f"header: expected {quote(expected)}, found {quote(','.join(found)[:200])}; {hint}"
        )
    return [found.index(name) for name in names]


def _check_rows(count: int, rows: int | None) -> None:
    if rows is not None and count != rows:
        raise SubmissionInvalid("rows", f"expected {rows} rows under the header, found {count}")


def _wrong_fields(row: int, count: int, names: Sequence[str], line: str) -> SubmissionInvalid:
    found = "more" if count > len(names) else f"{count}"
    return SubmissionInvalid("fields", f"{_place(row)}: expected {_fields(names)}, found {found}: {quote(line)}")


def _fields(names: Sequence[str]) -> str:
    return "1 field" if len(names) == 1 else f"{len(names)} fields"


def _place(row: int) -> str:
    return f"row {row}" if row else "header"

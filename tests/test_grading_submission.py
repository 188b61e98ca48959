"""The strict CSV reader: each way to be wrong has its own stable code, and no bytes raise anything else."""

from __future__ import annotations

import gzip
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from research_gym.grading.schema import CODES, Column, SubmissionInvalid
from research_gym.grading.submission import read

INT = (Column("label", "int"),)
DIGIT = (Column("label", "int", low=0, high=4),)
FLOAT = (Column("y", "float"),)
TEXT = (Column("answer", "str"),)
TWO = (Column("answer", "str"), Column("has_answer", "str", choices=("True", "False")))
JSON = (Column("rankings", "json"),)


def refusal(data: bytes, columns: tuple[Column, ...], rows: int | None, **options: Any) -> SubmissionInvalid:
    with pytest.raises(SubmissionInvalid) as caught:
        read(data, columns=columns, rows=rows, **options)
    assert caught.value.code in CODES
    assert caught.value.message == str(caught.value)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500
    return caught.value


@pytest.mark.parametrize(
    ("data", "columns", "code", "says"),
    [
        # integrity.md R20, row by row
        pytest.param(b"label\n1,\n2,\n", INT, "fields", "row 1: expected 1 field", id="every row ends with a comma"),
        pytest.param(
            b"label\n1\nNA\n", INT, "dtype", "row 2, column 'label': expected an integer", id="NA for a number"
        ),
        pytest.param(b"label\nnull\n1\n", INT, "dtype", "row 1", id="null for a number"),
        pytest.param(b"label\n1\n\n2\n", INT, "fields", "row 2: expected 1 field, found a blank line", id="blank line"),
        pytest.param(b"label\n\n1\n2\n", INT, "fields", "row 1", id="blank first row"),
        pytest.param(b"label\r\n1\r\n\r\n2\r\n", INT, "fields", "row 2", id="blank line, CRLF"),
        pytest.param(b'label\n"1"\n\n2\n', INT, "fields", "row 2", id="blank line in a quoted file"),
        pytest.param(b'answer\n"a"\n\n"b"\n', TEXT, "fields", "row 2", id="blank line is not an empty text"),
        pytest.param(b"1\n2\n", INT, "header", "first line must be the header", id="no header"),
        pytest.param(b",label\n0,1\n1,2\n", INT, "columns", "index=False", id="index column"),
        pytest.param(b"label\n1\nx\n", INT, "dtype", "found 'x'", id="one x among ints"),
        pytest.param(b"y\ninf\n1\n", FLOAT, "finite", "row 1", id="inf"),
        pytest.param(b"y\n1\n-Infinity\n", FLOAT, "finite", "row 2", id="-Infinity"),
        pytest.param(b"y\n1\n1e999\n", FLOAT, "finite", "row 2", id="1e999"),
        pytest.param(b"y\n1\nNaN\n", FLOAT, "finite", "row 2", id="NaN"),
        pytest.param(b"label\n1\nnan\n", INT, "finite", "row 2", id="nan for an int"),
        pytest.param(b"answer,has_answer\na,True\nb,\n", TWO, "choices", "found an empty cell", id="blank bool"),
        pytest.param(b"answer,has_answer\na,True\nb,no\n", TWO, "choices", "'True', 'False'", id="no for a bool"),
        pytest.param(b"answer,has_answer\na,True\nb,False \n", TWO, "choices", "'False '", id="bool with a space"),
        pytest.param(b"label\n3.99\n1\n", INT, "dtype", "'3.99'", id="3.99 is not 3"),
        pytest.param(b"label\n1\n1\x00\n", INT, "nul", "NUL", id="NUL"),
        # airs.md 8.4, file level
        pytest.param(b"", INT, "empty", "0 bytes", id="empty file"),
        pytest.param(b"\xef\xbb\xbf\r\n \n", INT, "empty", "without text", id="nothing but BOM and space"),
        pytest.param(b"label\n1\n\xff\n", INT, "encoding", "offset 8", id="not UTF-8"),
        pytest.param("label\n1\n2\n".encode("utf-16"), INT, "encoding", "UTF-16", id="UTF-16 with BOM"),
        pytest.param("label\n1\n2\n".encode("utf-16-le"), INT, "nul", "NUL", id="UTF-16 without BOM"),
        pytest.param(gzip.compress(b"label\n1\n2\n", mtime=0), INT, "nul", "NUL", id="gzip"),
        pytest.param(b"label\n", INT, "rows", "found 0", id="header only"),
        pytest.param(b"prediction\n1\n2\n", INT, "header", "'prediction'", id="wrong header"),
        pytest.param(b"Label\n1\n2\n", INT, "header", "case and spaces", id="header in another case"),
        pytest.param(b"answer, has_answer\na,True\nb,True\n", TWO, "header", "case and spaces", id="space in header"),
        pytest.param(b"answer,answer\na,True\nb,True\n", TWO, "header", "answer,has_answer", id="duplicate header"),
        pytest.param(b"answer\na\nb\n", TWO, "columns", "expected 2 fields", id="column missing"),
        pytest.param(b"label\n1\n", INT, "rows", "expected 2 rows under the header, found 1", id="too few rows"),
        pytest.param(b"label\n1\n2\n3\n", INT, "rows", "found 3", id="too many rows"),
        pytest.param(b'label\n"1"\n2\n3\n', INT, "rows", "found more", id="too many rows in a quoted file"),
        pytest.param(
            b"answer,has_answer\na,True\nb\n", TWO, "fields", "row 2: expected 2 fields, found 1", id="short row"
        ),
        pytest.param(b"answer,has_answer\na,b,True\nb,True\n", TWO, "fields", "found more", id="unquoted comma"),
        pytest.param(b'answer\n"a\nb\n', TEXT, "syntax", "never closed", id="open quote"),
        pytest.param(b'answer\n"a"x\nb\n', TEXT, "syntax", "row 1: expected , or a line end", id="text after a quote"),
        pytest.param(b"answer\na\rb\nc\n", TEXT, "syntax", "row 1: a carriage return", id="lone carriage return"),
        pytest.param(b'answer\n"a"\rb\n', TEXT, "syntax", "row 1: a carriage return", id="the same after a quote"),
        # airs.md 8.4, numeric
        pytest.param(b'y\n1\n""\n', FLOAT, "dtype", "found an empty cell", id="empty number"),
        pytest.param(b"y\n1\nabout 3\n", FLOAT, "dtype", "'about 3'", id="text for a number"),
        pytest.param(b"y\n1\n[1.0]\n", FLOAT, "dtype", "'[1.0]'", id="list for a number"),
        pytest.param(b"y\n1\n1_000\n", FLOAT, "dtype", "'1_000'", id="underscore"),
        pytest.param(b"y\n1\n 2\n", FLOAT, "dtype", "' 2'", id="space before a number"),
        pytest.param("y\n1\n\u0661\n".encode(), FLOAT, "dtype", "row 2", id="digit that is not ASCII"),
        pytest.param(b"y\n1\n0x10\n", FLOAT, "dtype", "'0x10'", id="hexadecimal"),
        pytest.param(b"label\n1\n1e3\n", INT, "dtype", "'1e3'", id="exponent for an int"),
        pytest.param(b"label\n4\n5\n", DIGIT, "range", "a number from 0 to 4, found '5'", id="labels 1 to 5"),
        pytest.param(b"label\n4\n-1\n", DIGIT, "range", "found '-1'", id="below the range"),
        pytest.param(b"label\nneutral\n4\n", DIGIT, "dtype", "'neutral'", id="label names"),
        pytest.param(b"label\n1\n" + b"9" * 50_000 + b"\n", INT, "range", "at most 18 digits", id="50 000 digits"),
        # json cells
        pytest.param(b'rankings\n"[1, 2]"\n[1\n', JSON, "json", "row 2", id="not JSON"),
        pytest.param(b'rankings\n"[1, NaN]"\n[1]\n', JSON, "finite", "row 1", id="NaN in JSON"),
        pytest.param(b"rankings\n[1e999]\n[1]\n", JSON, "finite", "row 1", id="overflow in JSON"),
        pytest.param(b"rankings\n[1]\n" + b"[" * 100_000 + b"\n", JSON, "json", "row 2", id="JSON nested too deep"),
        pytest.param(b"rankings\n[1]\n" + b"9" * 50_000 + b"\n", JSON, "json", "row 2", id="JSON of 50 000 digits"),
    ],
)
def test_refusals(data: bytes, columns: tuple[Column, ...], code: str, says: str) -> None:
    error = refusal(data, columns, rows=2)
    assert error.code == code
    assert says in error.message


def test_size_limit_names_both_numbers() -> None:
    error = refusal(b"label\n1\n2\n", INT, 2, max_bytes=9)
    assert error.code == "too_large"
    assert "9 bytes" in error.message
    assert "found 10" in error.message


def test_int_choices() -> None:
    columns = (Column("Answer", "int", choices=(1, 2)),)
    assert refusal(b"Answer\n1\n3\n", columns, 2).code == "choices"
    assert read(b"Answer\n1\n2\n", columns=columns, rows=2)["Answer"].tolist() == [1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "data",
    [
        b"label\n1\n2\n",
        b"label\n1\n2",
        b"\xef\xbb\xbflabel\n1\n2\n",
        b"label\r\n1\r\n2\r\n",
        b"label\n1\n2\n\n\r\n",
        b'"label"\n"1"\n"2"\n',
        b"label\n1.0\n2.\n",
        b"label\n+1\n0002\n",
        b"label\n1\n" + b"0" * 50_000 + b"2\n",
    ],
)
def test_spellings_of_the_same_ints(data: bytes) -> None:
    values = read(data, columns=INT, rows=2)["label"]
    assert isinstance(values, np.ndarray)
    assert values.dtype == np.int64
    assert values.tolist() == [1, 2]


def test_negative_long_int() -> None:
    values = read(b"label\n-" + b"0" * 30 + b"7\n-0\n", columns=INT, rows=2)["label"]
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [-7, 0]


def test_floats_keep_their_last_bit() -> None:
    numbers = [0.1, -2.5e-308, 1e308, 5e-324, -0.0, 12345678.9]
    text = "y\n" + "\n".join(map(repr, numbers)) + "\n.5\n5.\n1E+2\n"
    values = read(text.encode(), columns=FLOAT, rows=9)["y"]
    assert isinstance(values, np.ndarray)
    assert values.dtype == np.float64
    assert values.tolist() == [*numbers, 0.5, 5.0, 100.0]


def test_one_row_is_a_column_of_one() -> None:
    values = read(b"y\n3\n", columns=FLOAT, rows=1)["y"]
    assert isinstance(values, np.ndarray)
    assert values.shape == (1,)


def test_text_survives_as_written() -> None:
    cells = [
        "None",
        "NA",
        "nan",
        "null",
        "007",
        "1066",
        "=SUM(A1)",
        "True",
        ' a "b" ',
        "x,y",
        "two\nlines",
        "é\u2028\u202e",
        "a\r\nb",
        "",
    ]
    body = "".join('"' + cell.replace('"', '""') + '"\r\n' for cell in cells)
    assert read(("answer\r\n" + body).encode(), columns=TEXT, rows=len(cells))["answer"] == cells
    plain = [cell for cell in cells if cell and not set(cell) & set(',"\r\n')]
    assert read(("answer\n" + "\n".join(plain)).encode(), columns=TEXT, rows=len(plain))["answer"] == plain


def test_quotes_inside_an_unquoted_cell_are_text() -> None:
    assert read(b'answer\n5" disk\n', columns=TEXT, rows=1)["answer"] == ['5" disk']


@pytest.mark.parametrize("quotes", ["", '"'])
def test_columns_are_taken_by_name(quotes: str) -> None:
    data = f"has_answer,answer\nTrue,{quotes}a{quotes}\nFalse,b\n".encode()
    table = read(data, columns=TWO, rows=2)
    assert table == {"answer": ["a", "b"], "has_answer": ["True", "False"]}
    assert list(table) == ["answer", "has_answer"]


def test_empty_cells_at_the_end_of_a_row() -> None:
    columns = (Column("a", "str"), Column("b", "str"))
    assert read(b'a,b\n"x",\n,', columns=columns, rows=2) == {"a": ["x", ""], "b": ["", ""]}


def test_json_cells() -> None:
    assert read(b'rankings\n"[1, ""a""]"\n{}\n', columns=JSON, rows=2)["rankings"] == [[1, "a"], {}]


def test_long_cells_are_read() -> None:
    """`csv.reader` stops at 131072 characters, which an honest list of document ids exceeds."""
    cell = "[" + ", ".join(map(str, range(50_000))) + "]"
    values = read(f'rankings\n"{cell}"\n'.encode(), columns=JSON, rows=1)["rankings"]
    assert isinstance(values, list)
    assert len(values[0]) == 50_000


def test_messages_quote_little_and_escape_it() -> None:
    evil = "\x1b]0;title\x07\u202e" + "A" * 10_000
    message = refusal(f"label\n1\n{evil}\n".encode(), INT, 2).message
    assert "A" * 101 not in message
    assert message.isprintable()


def test_many_rows_are_read_quickly() -> None:
    rows = 650_000
    data = ("y\n" + "\n".join(map(repr, np.random.default_rng(0).normal(size=rows).tolist()))).encode()
    start = time.process_time()
    read(data, columns=FLOAT, rows=rows)
    assert time.process_time() - start < 3.0


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "x", "dtype": "double"},
        {"name": "", "dtype": "int"},
        {"name": "a\nb", "dtype": "int"},
        {"name": "x"},
        {"name": "x", "dtype": "str", "low": 0},
        {"name": "x", "dtype": "int", "high": float("inf")},
        {"name": "x", "dtype": "int", "choices": ["1"]},
        {"name": "x", "dtype": "int", "choices": "12"},
        {"name": "x", "dtype": "float", "choices": [1.0]},
        {"name": "x", "dtype": "str", "choices": []},
    ],
)
def test_columns_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="column"):
        Column.of(fields)


def test_declarations_without_or_with_equal_columns_are_refused() -> None:
    for columns in ((), INT + INT):
        with pytest.raises(ValueError, match="each once"):
            read(b"label\n1\n", columns=columns, rows=1)


ALL = (Column("a", "int"), Column("b", "float", low=0), Column("c", "str"), Column("d", "json"))
bits = st.sampled_from(
    [b"a,b,c,d\n", b"\n", b"\r\n", b"\r", b",", b'"', b"1", b"1,2,x,[]\n", b"nan", b"-.e5", b"\x00", b"\xef\xbb\xbf"]
)


@settings(deadline=None)
@given(data=st.binary(max_size=200) | st.lists(bits, max_size=20).map(b"".join), rows=st.integers(0, 3) | st.none())
@example(data=b"a,b,c,d", rows=0)
@example(data=b'a,b,c,d\n"', rows=1)
@example(data=b"a,b,c,d\n\n", rows=None)
def test_any_bytes_give_columns_or_a_refusal(data: bytes, rows: int | None) -> None:
    for columns in (ALL, INT, FLOAT, TEXT, JSON):
        for content in (data, columns[0].name.encode() + b"\n" + data):
            try:
                table = read(content, columns=columns, rows=rows)
            except SubmissionInvalid as error:
                refused = error
            else:
                assert rows is None or {len(values) for values in table.values()} == {rows}
                continue
            assert refused.code in CODES
            assert refused.message.isprintable()


@settings(deadline=None)
@given(
    cells=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=5)
)
def test_what_the_csv_module_writes_is_read_back(cells: list[str]) -> None:
    import csv
    import io

    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], *([cell, cell] for cell in cells)])
    columns = (Column("a", "str"), Column("b", "str"))
    assert read(file.getvalue().encode(), columns=columns, rows=len(cells)) == {"a": cells, "b": cells}

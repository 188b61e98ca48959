"""Task files: strict, total, and never outside their folder."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research_gym.errors import TaskFormatError
from research_gym.grading.metrics import METRICS as GRADED
from research_gym.task import AnswerGrading, SubmissionGrading, Task, load_task, reference_cells
from research_gym.task_file import parse
from research_gym.task_grading import METRICS

FILE_TASK = """\
id: Mini/digits-v0
title: Classify digits
shape: submission
category: Vision
difficulty: easy
prompt: |
  Predict the digits. {columns} $HOME {{ x }} stay as they are.
workdir: /home/ubuntu
data: {mount: /home/ubuntu/data, prepare: digits}
files: files
repository: repo
limits: {memory_bytes: 1073741824, cell_timeout_s: 1e2}
environment: {OMP_NUM_THREADS: "1"}
hide: [sklearn/datasets/data]
grading:
  kind: submission
  file: submission.csv
  columns: [{name: label, dtype: int, labels: label, low: 0, high: 9}]
  metric: accuracy
  lower_is_better: false
  worst: 0.1
  optimal: 1.0
landmarks:
  - {id: wrote-submission, weight: 2, artefact: {path: submission.csv, format: csv, rows: 597, columns: [label]}}
  - {id: metrics, artefact: {path: metrics.json, format: json, key: accuracy, min: 0.8}}
  - {id: trained, output: "^accuracy"}
entrypoint: train.py
reference: reference.py
baselines: [{name: knn, score: 0.9}]
source: {package: scikit-learn, licence: BSD-3-Clause}
"""
ANSWER_TASK = """\
id: Mini/mend-v0
title: Mend it
shape: answer
prompt: Do it.
grading:
  kind: answer
  gold: {accuracy: 0.93, names: [a, no, 2024-01-01], a.b: 1}
  tolerance: {default: 0.01, keys: {a.b: 1e-3}}
  mode: strict
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files" / "data").mkdir(parents=True)
    (tmp_path / "files" / "README.md").write_text("read me")
    (tmp_path / "files" / "data" / "x.bin").write_bytes(b"\0\1")
    (tmp_path / "reference.py").write_text(
        "# %%\nimport os\n\n# %% [markdown]\n# words\n# %% two\nx = 1\n\n# %%\n\n# %%\n%submit"
    )
    return tmp_path


def load(folder: Path, text: str) -> Task:
    path = folder / "task.yaml"
    path.write_text(text, encoding="utf-8")
    return load_task(path)


def test_a_file_task_loads_whole(folder: Path) -> None:
    task = load(folder, FILE_TASK)
    assert (task.id, task.shape, task.workdir, task.repository) == (
        "Mini/digits-v0",
        "submission",
        "/home/ubuntu",
        "repo",
    )
    assert task.prompt == "Predict the digits. {columns} $HOME {{ x }} stay as they are.\n"
    assert task.data is not None
    assert task.data.mount == "/home/ubuntu/data"
    assert task.limits == {"memory_bytes": 1 << 30, "cell_timeout_s": 100.0}
    assert isinstance(task.grading, SubmissionGrading)
    request = task.grading.to_request({"worst": 0.5})
    assert request["worst"] == 0.1
    assert request["columns"] == [{"name": "label", "dtype": "int", "labels": "label", "low": 0, "high": 9}]
    json.dumps(request)
    assert [mark.id for mark in task.landmarks] == ["wrote-submission", "metrics", "trained"]
    assert list(task.read_files()) == [("README.md", b"read me"), ("data/x.bin", b"\0\1")]
    assert reference_cells(task) == ["import os", "x = 1", "%submit"]


def test_an_answer_task_loads_with_defaults(folder: Path) -> None:
    task = load(folder, ANSWER_TASK)
    assert isinstance(task.grading, AnswerGrading)
    assert task.grading.gold == {"accuracy": 0.93, "names": ["a", "no", "2024-01-01"], "a.b": 1}
    assert task.grading.tolerance == {"default": 0.01, "keys": {"a.b": 0.001}}
    assert task.workdir == "/content"
    assert list(task.read_files()) == []
    with pytest.raises(ValueError, match="reference"):
        reference_cells(task)


def test_worst_and_gold_may_come_from_the_prepared_data(folder: Path) -> None:
    answer = load(folder, re.sub("  gold: .*\\n", "", ANSWER_TASK)).grading
    assert answer.to_request({"gold": [1]})["gold"] == [1]
    grading = load(folder, FILE_TASK.replace("  worst: 0.1\n", "")).grading
    assert grading.to_request({"worst": 0.25})["worst"] == 0.25


def test_a_notebook_is_a_reference(folder: Path) -> None:
    cells = [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": ["a\n", "b"]}]
    (folder / "reference.ipynb").write_text(json.dumps({"cells": cells}))
    task = load(folder, FILE_TASK.replace("reference.py", "reference.ipynb"))
    assert reference_cells(task) == ["a\nb"]
    (folder / "reference.ipynb").write_text("{}")
    with pytest.raises(TaskFormatError, match=r"reference\.ipynb"):
        reference_cells(task)


def test_metrics_are_those_of_the_grader() -> None:
    assert {name: metric.lower_is_better for name, metric in GRADED.items()}.items() >= METRICS.items()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title:", "titel:", r"unknown key 'titel'; did you mean 'title'\?"),
        ("  metric:", "  metrics:", r"grading: unknown key 'metrics'; did you mean 'metric'\?"),
        ("weight: 2", "wieght: 2", r"landmarks\[0\]: unknown key 'wieght'; did you mean 'weight'"),
        ("id: Mini/digits-v0", "id: digits", "id: expected an id"),
        ("id: Mini/digits-v0", "id: Mini/../x-v0", "id: expected an id"),
        ("id: Mini/digits-v0\n", "", "'id' is missing"),
        ("shape: submission", "shape: submision", r"did you mean 'submission'\?"),
        ("shape: submission", "shape: answer", "grading.kind: expected 'answer'"),
        ("accuracy\n", "acuracy\n", r"did you mean 'accuracy'\?"),
        ("lower_is_better: false", "lower_is_better: true", "lower_is_better: expected false"),
        ("worst: 0.1", "worst: .nan", "grading.worst: expected a finite number"),
        ("worst: 0.1", "worst: 2", "grading.worst: expected a score that is worse"),
        ("memory_bytes", "memory_byte", "did you mean 'memory_bytes'"),
        ('"1"', "1", "OMP_NUM_THREADS: expected text"),
        ('output: "^accuracy"', 'output: "(?=a)"', r"landmarks\[2\]: pattern '\(\?=a\)'.*invalid perl operator"),
        ("id: metrics", "id: trained", "an id that no other landmark has"),
        ("labels: label,", "", "exactly one column with 'labels'"),
        ("weight: 2", "weight: -2", "weight"),
        ("rows: 597", "rows: yes", "rows: expected a whole number"),
        ("files: files", "files: ../files", "files: expected a path relative"),
        ("files: files", "files: /etc", "files: expected a path relative"),
        ("files: files", "files: nothing", "files: expected a folder"),
        ("reference: reference.py", 'reference: "a\\0b"', "reference: expected"),
        ("file: submission.csv", "file: ../submission.csv", "grading.file: expected a path relative"),
        ("path: metrics.json", "path: /etc/passwd", "artefact.path: expected a path relative"),
        ("workdir: /home/ubuntu", "workdir: /", "workdir: expected an absolute path"),
        ("workdir: /home/ubuntu", "workdir: /a/../b", "workdir: expected an absolute path"),
        ("title: Classify digits", "title: !!python/object/apply:os.system [id]", "tags"),
        ("title: Classify digits", "title: &a x", "anchors"),
        ("title: Classify digits", "title: *a", "aliases"),
        ("title: Classify digits", "title: x\ntitle: y", "stands twice"),
        ("title: Classify digits", "1: x", "key must be text"),
        ("title: Classify digits", "<<: {title: x}", "key must be text|unknown key '<<'"),
        ("title: Classify digits", "title: " + "[" * 100 + "]" * 100, "nesting"),
        ("title: Classify digits", "title: [", "line"),
        ("title: Classify digits", "title: ''", "title: expected text that is not blank"),
        ("title: Classify digits", "title: 3", "title: expected text"),
        ("title: Classify digits", 'title: "a\\eb"', "title: expected text without control"),
        ("title: Classify digits", 'title: "a\\ud800b"', "title: expected text without control"),
        ("title: Classify digits", 'title: "a\\nb"', "title: expected one line"),
        ("score: 0.9", "score: .inf", r"baselines\[0\]: expected finite numbers"),
        ("score: 0.9", 'score: "\\udc00"', r"baselines\[0\]: expected valid Unicode"),
    ],
)
def test_errors_name_file_key_and_nearest_key(folder: Path, old: str, new: str, said: str) -> None:
    assert old in FILE_TASK
    with pytest.raises(TaskFormatError, match=said) as caught:
        load(folder, FILE_TASK.replace(old, new, 1))
    assert "task.yaml" in str(caught.value)


def test_links_in_a_task_folder_are_refused(folder: Path) -> None:
    (folder / "outside.py").symlink_to("/etc/passwd")
    with pytest.raises(TaskFormatError, match="without links"):
        load(folder, FILE_TASK.replace("reference.py", "outside.py"))
    (folder / "files" / "link").symlink_to("/etc/passwd")
    with pytest.raises(TaskFormatError, match="files: link"):
        list(load(folder, FILE_TASK).read_files())


def test_what_is_no_regular_file_is_not_laid_out(folder: Path) -> None:
    os.mkfifo(folder / "files" / "pipe")
    with pytest.raises(TaskFormatError, match="regular file"):
        list(load(folder, FILE_TASK).read_files())


@pytest.mark.parametrize("data", [b"", b"\xff", b"\0", b"[]", b"3", b"x" * (1 << 21), b"--- a\n--- b\n", b"a: b: c"])
def test_what_is_no_task_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.yaml").write_bytes(data)
    with pytest.raises(TaskFormatError, match=re.escape("t.yaml")):
        load_task(tmp_path / "t.yaml")


def test_a_file_that_is_not_there_is_a_task_error(tmp_path: Path) -> None:
    with pytest.raises(TaskFormatError, match="No such file"):
        load_task(tmp_path / "t.yaml")
    with pytest.raises(TaskFormatError):
        load_task("a\0b")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-2E+3", -2000.0),
        ("12", 12),
        ("-0", 0),
        ("010", "010"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ("1_000", "1_000"),
        ("=", "="),
        ("9" * 30, "9" * 30),
        ("e5", "e5"),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    found = parse(f"a: {text}".encode(), name="t").value["a"]
    assert found == value
    assert type(found) is type(value)


PIECES = [
    "!!int ",
    "&a ",
    "*a",
    "? ",
    "- ",
    ": ",
    "[",
    "]",
    "{",
    "}",
    "|",
    ">",
    "'",
    '"',
    "%",
    "@",
    "\t",
    "\0",
    "\x85",
    "!!timestamp x",
    "2024-99-99",
    "9" * 5000,
    ".inf",
    "null",
    "<<: ",
    "---\n",
    "...\n",
    "../",
    "/etc",
    "\ud800",
    "é",
    "#",
    "\n",
    "1e999",
]


def test_mutated_task_files_give_a_task_or_a_task_error(folder: Path) -> None:
    rng = random.Random(0)
    loaded = 0
    said = []
    for _ in range(400):
        text = rng.choice([FILE_TASK, ANSWER_TASK])
        for _ in range(rng.randint(1, 3)):
            at, cut = rng.randrange(len(text)), rng.choice([0, 0, 1, 5])
            text = text[:at] + rng.choice(PIECES) + text[at + cut :]
        (folder / "task.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            load_task(folder / "task.yaml")
            loaded += 1
        except TaskFormatError as error:
            said.append(str(error))
    assert 0 < loaded < 400
    assert all("task.yaml" in message for message in said)


@given(st.text(alphabet="a1:-[]{},&*!|>'\"%@` \n#?~.e+", max_size=40))
def test_any_text_is_yaml_or_a_task_error(text: str) -> None:
    with contextlib.suppress(TaskFormatError):
        parse(text.encode(), name="t")


WORDS = st.text(
    alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co", "Zl", "Zp"]), max_size=5
)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    )
)
def test_json_is_a_subset(value: Any) -> None:
    assert parse(json.dumps({"a": value}, ensure_ascii=False).encode(), name="t").value == {"a": value}

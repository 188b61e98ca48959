"""A check refuses tasks that are broken, with the reason, and passes a sound one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from research_gym.cli import main
from research_gym.datastore import label_file, read_facts
from research_gym.envs.preparation import ensure_prepared, is_stale
from research_gym.errors import TaskFormatError
from research_gym.task import load_task
from research_gym.testing import TaskReport, check_task
from research_gym.testing.check_task import unreachable
from research_gym.testing.check_task.unreachable import rows_needed

ROWS = 40
SOLUTION = """# %%
import csv
rows = list(csv.DictReader(open("data/test/test.csv")))
with open("submission.csv", "w") as file:
    print("y", *[3 * float(row["x"]) for row in rows], sep="\\n", file=file)
# %%
%submit
"""
WriteTask = Callable[..., Path]


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file system takes a minute; what a task can put somewhere is looked at first."""
    monkeypatch.setattr(unreachable, "SEARCH_S", 1.0)


@pytest.fixture
def write(tmp_path: Path) -> WriteTask:
    """Writes a small regression task with data and labels beside its file; `y` is three times `x`."""

    def build(name: str = "sound", *, solution: str = SOLUTION, leak: bool = False, **changes: Any) -> Path:
        folder = tmp_path / name
        for part in ("train", "test"):
            (folder / "data" / part).mkdir(parents=True)
        draw = random.Random(7)
        rows = [(value := draw.uniform(0, 9), 3 * value) for _ in range(2 * ROWS)]
        table = [f"{x},{y}" for x, y in rows]
        (folder / "data/train/train.csv").write_text("\n".join(["x,y", *table[:ROWS]]) + "\n")
        test = table[ROWS:] if leak else [str(x) for x, _ in rows[ROWS:]]
        (folder / "data/test/test.csv").write_text("\n".join(["x,hint" if leak else "x", *test]) + "\n")
        (folder / "labels.csv").write_text("\n".join(["y", *(str(y) for _, y in rows[ROWS:])]) + "\n")
        (folder / "reference.py").write_text(solution)
        content: dict[str, Any] = {
            "id": f"Test/{name}-v0",
            "title": "Three times x",
            "shape": "submission",
            "prompt": "Predict y.",
            "data": {"mount": "/content/data", "folder": "data", "labels": "labels.csv"},
            "limits": {"memory_bytes": 512 << 20},
            "grading": {
                "kind": "submission",
                "file": "submission.csv",
                "columns": [{"name": "y", "dtype": "float", "labels": "y"}],
                "metric": "mae",
            },
            "landmarks": [
                {"id": "wrote-it", "artefact": {"path": "submission.csv", "format": "csv", "rows": ROWS}},
            ],
            "reference": "reference.py",
        }
        path = folder / "task.yaml"
        path.write_text(yaml.safe_dump(content | changes, sort_keys=False))
        return path

    return build


def failed(report: TaskReport, part: str) -> str:
    """The failures of one part; fails if another part failed."""
    assert not report.ok
    assert {failure.partition(":")[0] for failure in report.failures} == {part}, report.failures
    return "\n".join(report.failures)


def test_a_sound_task_passes_and_its_worst_is_what_the_best_constant_gets(write: WriteTask, sandbox_name: str) -> None:
    report = check_task(write(), sandbox=sandbox_name)
    assert report.failures == ()
    assert set(report.to_row()) == {
        "task", "metric", "lower_is_better", "optimal", "worst", "gold", "trivial", "noop", "ok", "failures",
    }  # fmt: skip
    row = report.to_row()
    assert (row["metric"], row["lower_is_better"], row["optimal"]) == ("mae", True, 0.0)
    assert (row["gold"], row["noop"], row["ok"]) == (1.0, 0.0, True)
    assert row["trivial"] == pytest.approx(0.0, abs=1e-6)
    assert row["worst"] > 1.0
    assert "files" in report.searched


def test_a_label_leak_in_the_agents_data_is_refused(write: WriteTask) -> None:
    found = failed(check_task(write("leaky", leak=True), sandbox="local"), "unreachable")
    assert "test/test.csv holds the labels in its column 'hint'" in found


def test_labels_in_a_file_that_is_no_table_are_found_from_inside_too(write: WriteTask) -> None:
    path = write("lying-about")
    labels = (path.parent / "labels.csv").read_text().splitlines()[1:]
    (path.parent / "data" / "notes.bin").write_bytes(b"\0\1" + "\n".join(labels[:30]).encode())
    found = failed(check_task(path, sandbox="local"), "unreachable")
    assert "the agent's file notes.bin holds labels in one piece" in found
    assert "inside the sandbox /content/data/notes.bin" in found


def test_a_reference_that_does_not_get_there_is_refused(write: WriteTask) -> None:
    found = failed(check_task(write("unreachable", solution="# %%\nprint('lost')\n"), sandbox="local"), "reference")
    assert "ended without a graded submission; it last saw: lost" in found


def test_a_landmark_that_the_reference_misses_is_refused(write: WriteTask) -> None:
    marks = [{"id": "far", "artefact": {"path": "model.bin"}}]
    found = failed(check_task(write("far", landmarks=marks), sandbox="local"), "reference")
    assert "the landmark 'far' is not reached" in found


def test_a_landmark_for_doing_nothing_is_refused(write: WriteTask) -> None:
    path = write("gameable", landmarks=[{"id": "free", "artefact": {"path": "start.txt"}}], files="files")
    (path.parent / "files").mkdir()
    (path.parent / "files" / "start.txt").write_text("here from the start")
    found = failed(check_task(path, sandbox="local"), "noop")
    assert "the landmark 'free' is reached by doing nothing" in found


def test_a_worst_that_a_constant_beats_is_refused_without_a_sandbox(write: WriteTask) -> None:
    path = write("cheap")
    content = yaml.safe_load(path.read_text())
    content["grading"]["worst"] = 100.0
    path.write_text(yaml.safe_dump(content))
    report = check_task(path, sandbox="local")
    parts = {failure.partition(":")[0] for failure in report.failures}
    assert parts == {"trivial"}
    assert any("expected reward 0" in failure for failure in report.failures)
    assert any("worst: expected" in failure for failure in report.failures)


def test_an_answer_that_an_empty_form_matches_is_refused(tmp_path: Path) -> None:
    content = {
        "id": "Test/zero-v0", "title": "Zero", "shape": "answer", "prompt": "Say it.", "reference": "reference.py",
        "grading": {"kind": "answer", "gold": {"loss": 0.001, "steps": 12}},
    }  # fmt: skip
    (tmp_path / "reference.py").write_text('# %%\n%submit {"loss": 0.001, "steps": 12}\n')
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(content))
    found = failed(check_task(tmp_path / "task.yaml", sandbox="local"), "trivial")
    assert "empty form: expected reward 0, found 0.5" in found


def test_the_command_prints_rows_and_exits_with_1_for_a_broken_task(write: WriteTask) -> None:
    names = [str(write("one", solution="# %%\n1\n")), str(write("two"))]
    done = CliRunner().invoke(main, ["check", *names, "--sandbox", "local", "--json"])
    assert done.exit_code == 1, done.output
    rows = json.loads(done.stdout)
    assert [(row["task"], row["ok"]) for row in rows] == [("Test/one-v0", False), ("Test/two-v0", True)]
    assert "Test/two-v0: ok" in done.stderr


def test_data_beside_the_task_file_are_copied_apart_and_again_when_they_change(write: WriteTask) -> None:
    path = write("copied")
    task = load_task(path)
    ensure_prepared(task)
    assert label_file(task.id).stat().st_mode & 0o777 == 0o600
    assert read_facts(task.id)["rows"] == ROWS
    assert not is_stale(task)
    (path.parent / "labels.csv").write_text("y\n1.0\n2.0\n")
    assert is_stale(task)
    ensure_prepared(load_task(path))
    assert label_file(task.id).read_text() == "y\n1.0\n2.0\n"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"mount": "/content/data"}, "exactly one of the keys"),
        ({"mount": "/content/data", "folder": "data", "prepare": "digits"}, "exactly one of the keys"),
        ({"mount": "/content/data", "folder": "data", "labels": "data/train/train.csv"}, "outside of the agent's data"),
        ({"mount": "/content/data", "folder": "nowhere", "labels": "labels.csv"}, "a folder beside the task file"),
    ],
)
def test_data_that_are_declared_wrongly_are_refused(write: WriteTask, data: dict[str, str], words: str) -> None:
    with pytest.raises(TaskFormatError, match=words):
        load_task(write("wrong", data=data))


def test_labels_that_say_little_are_searched_for_in_longer_runs() -> None:
    assert rows_needed([str(value) for value in range(100)]) == 20
    assert rows_needed(["0", "1"] * 500) == 64
    assert rows_needed(["0"] * 50) == 50

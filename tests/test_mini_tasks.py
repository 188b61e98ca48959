"""The Mini tasks: they load, prepare the same bytes twice, leak no label, and their defects and golds are real."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import research_gym.envs.mini
from research_gym import datastore
from research_gym.action import Edit, Invalid, Submit, parse
from research_gym.envs.mini.prepare import PREPARERS, prepare
from research_gym.envs.mini.repositories import mended_files
from research_gym.envs.mini.rows import ordered
from research_gym.envs.mini.wheels import build_wheel
from research_gym.envs.suites import shipped
from research_gym.errors import DataMissing, TaskFormatError
from research_gym.grading import worker
from research_gym.grading.score import Score
from research_gym.sandbox.waiting import drive
from research_gym.task import AnswerGrading, SubmissionGrading, Task, load_task, reference_cells

FOLDER = Path(research_gym.envs.mini.__file__).parent
FILES = {path.parent.name: path for path in sorted(FOLDER.glob("*/task.yaml"))}
SUBMISSIONS = [name for name, path in FILES.items() if "\nshape: submission\n" in path.read_text("utf-8")]
ANSWERS = [name for name in FILES if name not in SUBMISSIONS]
RUNS = {
    "mend-perceptron": ["train.py", "--data", "/data/wdbc.csv", "--epochs", "3", "--seed", "7"],
    "run-on-cpu": ["cluster.py", "--data", "/data/wine.csv", "--clusters", "3", "--seed", "5", "--device", "cpu"],
    "point-to-data": ["crossvalidate.py", "--config", "config.ini"],
    "install-dependency": ["evaluate.py", "--data", "/data/iris.csv", "--cutoff", "20"],
}
"""The command that the prompt of each repository task asks for."""


def prepared(name: str) -> Task:
    """Loads a task and prepares it once in the data folder of this test run."""
    task = load_task(FILES[name])
    if not datastore.is_prepared(task.id):
        try:
            prepare(task)
        except DataMissing as error:
            pytest.skip(str(error))
    return task


def graded(task: Task, *, submission: bytes | None = None, answer: Any = None) -> Score:
    request = task.grading.to_request(datastore.read_facts(task.id))
    labels = datastore.label_file(task.id)
    score: Score = drive(worker.grade(request, submission=submission, answer=answer, labels=labels))
    return score


def labels_of(task: Task) -> list[str]:
    with datastore.label_file(task.id).open(encoding="utf-8", newline="") as file:
        return [row[0] for row in csv.reader(file)][1:]


def run(files: dict[str, str], arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


# What stands in the package.


def test_the_suite_has_both_shapes_and_several_difficulties() -> None:
    tasks = [load_task(path) for path in FILES.values()]
    assert len(tasks) >= 10
    assert {task.shape for task in tasks} == {"submission", "answer"}
    assert {"easy", "medium", "hard"} <= {task.difficulty for task in tasks}


@pytest.mark.parametrize("name", FILES)
def test_task_is_complete(name: str) -> None:
    task = load_task(FILES[name])
    assert task.id == f"Mini/{name}-v0"
    assert task.data is not None
    assert task.data.prepare in PREPARERS
    assert task.landmarks
    assert all(landmark.artefact is not None for landmark in task.landmarks), "text of the kernel would never pay"
    assert task.hide, "the packages that the data come from are hidden in the sandbox"
    assert {"package", "licence", "url"} <= set(task.source)


@pytest.mark.parametrize("name", FILES)
def test_reference_is_made_of_actions_and_ends_with_the_only_submission(name: str) -> None:
    task = load_task(FILES[name])
    cells = reference_cells(task)
    actions = [parse("%submit {}" if cell == "%submit $LAST" else cell, shape=task.shape) for cell in cells]
    assert not [action for action in actions if isinstance(action, Invalid)]
    assert [isinstance(action, Submit) for action in actions] == [False] * (len(actions) - 1) + [True]


def test_registered_ids_name_these_files() -> None:
    mini = {task_id: path for task_id, path in shipped().items() if task_id.startswith("Mini/")}
    assert {"Mini/digits-v0", "Mini/mend-perceptron-v0"} <= set(mini)
    assert all(load_task(path).id == task_id for task_id, path in mini.items())


@pytest.mark.parametrize("name", ANSWERS)
def test_gold_is_in_no_file_of_the_package(name: str) -> None:
    task = prepared(name)
    assert isinstance(task.grading, AnswerGrading)
    assert task.grading.gold is None
    numbers = [value for value in datastore.read_facts(task.id)["gold"].values() if value != round(value)]
    assert numbers
    texts = [path.read_text("utf-8") for path in FOLDER.rglob("*") if path.suffix in {".py", ".md", ".yaml", ".ini"}]
    assert len(texts) > 30
    for number in numbers:
        assert not [text for text in texts if f"{number:.4f}" in text or f"{number:.6g}" in text]


# What preparing makes.


@pytest.mark.parametrize("name", FILES)
def test_preparing_twice_gives_the_same_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepared(name)
    first = datastore.read_manifest(task.id)
    monkeypatch.setenv("RESEARCH_GYM_HOME", str(tmp_path))
    prepare(task)
    assert datastore.read_manifest(task.id) == first
    assert any(file.startswith("data/") for file in first["files"])


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_labels_are_not_in_the_agents_data(name: str) -> None:
    task = prepared(name)
    labels = labels_of(task)
    assert len(labels) == datastore.read_facts(task.id)["rows"]
    needles = [
        joint.join(labels[start : start + 20]).encode()
        for start in range(0, len(labels) - 20, 7)
        for joint in ("\n", "\r\n", ",", ", ", " ", "")
    ]
    for path in datastore.agent_dir(task.id).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [needle for needle in needles if needle in data], path.name


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_test_table_has_all_columns_but_the_label_and_ids_of_its_own(name: str) -> None:
    task = prepared(name)
    assert isinstance(task.grading, SubmissionGrading)
    label = next(column.labels for column in task.grading.columns if column.labels)
    train, test = (next((datastore.agent_dir(task.id) / part).iterdir()) for part in ("train", "test"))
    if train.suffix == ".jsonl":
        tables = [[json.loads(line) for line in path.read_text("utf-8").splitlines()] for path in (train, test)]
    else:
        tables = [list(csv.DictReader(path.read_text("utf-8").splitlines())) for path in (train, test)]
    assert label not in tables[1][0]
    assert len(tables[1]) == len(labels_of(task))
    if "id" in tables[0][0]:
        assert set(tables[0][0]) - set(tables[1][0]) == {label}
        ids = [row["id"] for table in tables for row in table]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_prompt_tells_the_right_numbers_of_rows(name: str) -> None:
    task = prepared(name)
    numbers = {number.replace(",", "") for number in re.findall(r"\d[\d,]*\d", task.prompt)}
    for landmark in task.landmarks:
        if landmark.artefact is not None and landmark.artefact.rows is not None:
            assert landmark.artefact.rows == len(labels_of(task))
            assert str(landmark.artefact.rows) in numbers


def test_order_and_ids_of_rows_do_not_depend_on_the_label() -> None:
    rows = [{"x": value, "y": value % 3} for value in range(50)]
    other = [{"x": value, "y": 2 - value % 3} for value in range(50)]
    one, two = ordered(rows, salt="s", label="y"), ordered(other, salt="s", label="y")
    assert [(row["id"], row["x"]) for row in one] == [(row["id"], row["x"]) for row in two]
    assert [row["x"] for row in one] != list(range(50))


def test_queries_of_a_block_share_their_candidates_and_have_different_answers() -> None:
    """Candidates drawn for each query alone would give the answer away: it is the one the draw does not explain."""
    task = prepared("code-retrieval")
    blocks: dict[str, list[str]] = {}
    lines = (datastore.agent_dir(task.id) / "test" / "test.jsonl").read_text("utf-8").splitlines()
    for line, label in zip(lines, labels_of(task), strict=True):
        blocks.setdefault(json.dumps(json.loads(line)["candidates"]), []).append(label)
    assert all(sorted(labels) == [str(number) for number in range(10)] for labels in blocks.values())


# What is worth how much.


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_labels_earn_one_and_constants_nothing(name: str) -> None:
    task = prepared(name)
    labels = labels_of(task)
    assert graded(task, submission=datastore.label_file(task.id).read_bytes()).value == 1.0
    column = datastore.label_file(task.id).read_text("utf-8").splitlines()[0]
    assert isinstance(task.grading, SubmissionGrading)
    if task.grading.metric == "accuracy":
        for constant in sorted(set(labels))[:10]:
            data = "\n".join([column, *[constant] * len(labels)]).encode()
            assert graded(task, submission=data).value == pytest.approx(0.0, abs=1e-9)
    else:
        data = "\n".join([column, *["0"] * len(labels)]).encode()
        assert graded(task, submission=data).value == 0.0


@pytest.mark.parametrize("name", ANSWERS)
def test_gold_earns_one_and_the_template_of_the_prompt_nothing(name: str) -> None:
    """Echoing the template earned a seventh of the points on the published SUPER tasks."""
    task = prepared(name)
    gold = datastore.read_facts(task.id)["gold"]
    found = re.search(r"\{\".*\}", task.prompt)
    assert found is not None
    template = json.loads(found.group())
    assert set(template) == set(gold)
    assert graded(task, answer=gold).value == 1.0
    assert graded(task, answer=template).value == 0.0
    assert graded(task, answer=dict.fromkeys(gold, 1)).value == 0.0


# What the repositories do.


@pytest.mark.parametrize("name", ANSWERS)
def test_defect_breaks_the_run_as_it_stands(name: str, tmp_path: Path) -> None:
    task = prepared(name)
    data = datastore.agent_dir(task.id)
    files = {path: content.decode("utf-8") for path, content in task.read_files()}
    done = run(files, [text.replace("/data/", f"{data}/") for text in RUNS[name]], tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert task.entrypoint == RUNS[name][0]
    assert not (tmp_path / "results" / "metrics.json").exists()


@pytest.mark.parametrize("name", ["mend-perceptron", "run-on-cpu", "point-to-data"])
def test_mended_repository_gives_the_gold_answer(name: str, tmp_path: Path) -> None:
    task = prepared(name)
    data = datastore.agent_dir(task.id)
    files = {path: text.replace("/data/clinic", f"{data}/clinic") for path, text in mended_files(task).items()}
    done = run(files, [text.replace("/data/", f"{data}/") for text in RUNS[name]], tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text("utf-8"))
    gold = datastore.read_facts(task.id)["gold"]
    assert {key: metrics[key] for key in gold} == gold


@pytest.mark.parametrize(("version", "runs"), [("0.1.4", True), ("0.2.0", False)])
def test_only_the_required_version_of_the_dependency_runs(version: str, runs: bool, tmp_path: Path) -> None:
    task = prepared("install-dependency")
    data = datastore.agent_dir(task.id)
    wheel = data / "wheels" / f"tinyrank-{version}-py3-none-any.whl"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(tmp_path / "lib"), str(wheel)], check=True, timeout=120)
    files = {name: content.decode("utf-8") for name, content in task.read_files()}
    start = "import runpy, sys; sys.path.insert(0, 'lib'); runpy.run_path('evaluate.py', run_name='__main__')"
    arguments = [text.replace("/data/", f"{data}/") for text in RUNS["install-dependency"]]
    done = run(files, ["-c", start, *arguments[1:]], tmp_path)
    assert (done.returncode == 0) is runs, done.stderr
    if runs:
        metrics = json.loads((tmp_path / "results" / "metrics.json").read_text("utf-8"))
        assert metrics == pytest.approx(datastore.read_facts(task.id)["gold"])


@pytest.mark.parametrize("name", ANSWERS)
def test_a_repository_names_no_place_of_a_machine(name: str) -> None:
    task = load_task(FILES[name])
    for path, content in task.read_files():
        assert not re.search(rb"/(home|root|work|tmp)/", content), path
    edits = [parse(cell, shape="answer") for cell in reference_cells(task)]
    assert all(edit.path.startswith(f"{task.repository}/") for edit in edits if isinstance(edit, Edit))


# What is said when something is missing.


def test_missing_package_is_named_with_both_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESEARCH_GYM_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    task = load_task(FILES["co2"])
    with pytest.raises(DataMissing, match=r"pip install statsmodels.*RESEARCH_GYM_HOME"):
        prepare(task)
    assert not datastore.is_prepared(task.id)
    assert not list(tmp_path.glob("staging/*")), "nothing half-made is left"


def test_unknown_preparer_is_refused_with_the_nearest(tmp_path: Path) -> None:
    text = FILES["co2"].read_text("utf-8").replace("prepare: co2", "prepare: c02")
    text = text.replace("reference: reference.ipy\n", "")
    (tmp_path / "task.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(TaskFormatError, match=r"data\.prepare: unknown preparer 'c02'; did you mean 'co2'"):
        prepare(load_task(tmp_path / "task.yaml"))


def test_wheel_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    source = FILES["install-dependency"].parent / "wheels" / "0.1.4"
    wheels = [build_wheel(source, name="tinyrank", version="0.1.4", into=tmp_path / part) for part in ("a", "b")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()

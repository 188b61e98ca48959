"""The AIRS task on QM9: its sources agree, its labels stay out, its reward is the formula; also at full size."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

import research_gym  # noqa: F401  # registers the environments
from research_gym import datastore
from research_gym.action import Invalid, Submit, parse
from research_gym.cli import main
from research_gym.envs.airs import qm9, qm9pack
from research_gym.envs.airs.prepare import PREPARERS, prepare
from research_gym.envs.suites import shipped
from research_gym.errors import DataMissing
from research_gym.grading import worker
from research_gym.grading.score import Score
from research_gym.sandbox.waiting import drive
from research_gym.task import SubmissionGrading, Task, load_task, reference_cells

ID = "AIRS/CvMolecularPropertyPredictionQm9MeanAbsoluteError-v0"
ROWS = {"train": 40, "val": 5, "test": 12}
NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}

ROTATIONS = ["RotA_GHz", "RotB_GHz", "RotC_GHz"]
HEADER = ["XYZ_file", "Index", "SMILES", "Elements", "XYZ_Ang", *ROTATIONS, "ZPVE_au", "Heatcapacity_Cv_cal_mol_K"]
HUB_SCALARS = [
    *("mu", "alpha", "eps_HOMO", "eps_LUMO", "delta_eps", "R_2_Abs", "ZPVE", "U_0", "U", "H", "G", "c_v"),
    *("U_0_ATOM", "U_ATOM", "H_ATOM", "G_ATOM", "A", "B", "C"),
]


def made_up(count: int) -> list[dict[str, Any]]:
    """Molecules of no chemical sense in the package's columns; c_v grows with the number of atoms."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        elements = [str(random.choice(list(NUMBERS))) for _ in range(int(random.integers(2, 9)))]
        positions = [[round(float(value), 6) for value in random.normal(size=3)] for _ in elements]
        positions[0][0] = 7.4083e-06
        row: dict[str, Any] = dict.fromkeys(HEADER, "0.")
        row |= {"XYZ_file": f"dsgdb9nsd_{number:06d}.xyz", "Elements": str(elements), "XYZ_Ang": json.dumps(positions)}
        row |= {name: round(float(random.uniform(1, 9)), 5) for name in ROTATIONS}
        row["Heatcapacity_Cv_cal_mol_K"] = round(3 * len(elements) + float(random.uniform()), 3)
        rows.append(row)
    return rows


def lay_out(folder: Path, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a package qm9pack of these rows importable, and its three files the expected ones."""
    data = folder / "qm9pack" / "data"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "qm9pack" / "__init__.py").write_text("raise RuntimeError('read me, do not import me')\n", "utf-8")
    sums = {}
    for number, name in enumerate(qm9pack.FILES):
        with (data / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, HEADER, quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(rows[number::3])
        sums[name] = hashlib.sha256((data / name).read_bytes()).hexdigest()
    monkeypatch.setattr(qm9pack, "FILES", sums)
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task, with a data folder of its own and a made-up package qm9pack of 57 molecules."""
    monkeypatch.setenv("RESEARCH_GYM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(qm9, "DATASET", replace(qm9.DATASET, rows=ROWS))
    lay_out(tmp_path / "site", made_up(sum(ROWS.values())), monkeypatch)
    return load_task(shipped()[ID])


def table(split: str) -> dict[str, list[str]]:
    with (datastore.agent_dir(ID) / split / "molecules.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def labels() -> list[str]:
    return datastore.label_file(ID).read_text("utf-8").split()[1:]


def graded(task: Task, values: list[Any]) -> Score:
    request = task.grading.to_request(datastore.read_facts(ID))
    submission = "\n".join(["c_v", *map(str, values), ""]).encode()
    score: Score = drive(worker.grade(request, submission=submission, answer=None, labels=datastore.label_file(ID)))
    return score


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# The task file.


def test_the_task_declares_what_the_benchmark_does() -> None:
    task = load_task(shipped()[ID])
    assert task.id == ID
    assert (task.workdir, task.category, task.shape) == ("/home/ubuntu", "Molecules", "submission")
    assert task.data is not None
    assert task.data.mount == "/home/ubuntu/data"
    assert task.data.prepare in PREPARERS
    assert task.hide == ("qm9pack",)
    assert task.limits == {}, "one CPU and 2 GB are the default"
    grading = task.grading
    assert isinstance(grading, SubmissionGrading)
    assert ([column.name for column in grading.columns], grading.metric) == (["c_v"], "mae")
    assert (grading.worst, grading.optimal) == (None, 0.0), "the worst score is computed when the data are prepared"
    checks = [landmark.artefact for landmark in task.landmarks]
    assert [check.rows for check in checks if check is not None] == [None, 10_000]


def test_reference_is_made_of_actions_and_ends_with_the_only_submission() -> None:
    actions = [parse(cell, shape="submission") for cell in reference_cells(load_task(shipped()[ID]))]
    assert not [action for action in actions if isinstance(action, Invalid)]
    assert [isinstance(action, Submit) for action in actions] == [False] * (len(actions) - 1) + [True]


def test_the_data_set_has_the_published_number_of_rows() -> None:
    assert qm9.DATASET.rows == {"train": 110_831, "val": 10_000, "test": 10_000}
    assert sum(qm9.DATASET.rows.values()) == 130_831


# What preparing makes.


def test_agent_data_have_the_declared_columns_and_no_target_in_test(task: Task) -> None:
    prepare(task, source="qm9pack")
    names = ["id", "natoms", "A", "B", "C"]
    assert list(table("train")) == [*names, "c_v"]
    assert list(table("test")) == names
    for split in ("train", "test"):
        scalars = table(split)
        with np.load(datastore.agent_dir(ID) / split / "atoms.npz", allow_pickle=False) as arrays:
            found = dict(arrays)
        natoms = np.array(scalars["natoms"], dtype=int)
        assert len(natoms) == ROWS[split]
        assert sorted(found) == ["atomic_numbers", "composition", "offsets", "pos", "tags"]
        assert (np.diff(found["offsets"]) == natoms).all()
        assert found["offsets"][-1] == len(found["pos"]) == len(found["atomic_numbers"]) == len(found["tags"])
        assert found["composition"].shape == (ROWS[split], 120)
        for row, (start, end) in enumerate(zip(found["offsets"], found["offsets"][1:], strict=False)):
            counts = np.bincount(found["atomic_numbers"][start:end], minlength=120)
            assert (counts == found["composition"][row]).all()
        assert np.isclose(found["pos"][found["offsets"][:-1], 0], 7.4083e-06).all(), "atoms follow their molecule"


def test_each_label_stands_in_the_row_of_its_molecule(task: Task) -> None:
    prepare(task, source="qm9pack")
    for split, values in (("train", table("train")["c_v"]), ("test", labels())):
        natoms = np.array(table(split)["natoms"], dtype=int)
        assert (np.floor(np.array(values, dtype=float)) == 3 * natoms).all()


def test_labels_are_private_and_in_no_file_of_the_agent(task: Task) -> None:
    prepare(task, source="qm9pack")
    path = datastore.label_file(ID)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(labels()) == ROWS["test"]
    data = b"".join(files(datastore.agent_dir(ID) / "test").values())
    assert not [label for label in labels() if f",{label}".encode() in data]


def test_gold_earns_one_and_no_constant_earns_anything(task: Task) -> None:
    prepare(task, source="qm9pack")
    facts = datastore.read_facts(ID)
    train, test = (np.array(values, dtype=float) for values in (table("train")["c_v"], labels()))
    constants = {"median": float(np.median(train)), "mean": float(train.mean())}
    errors = {name: float(np.abs(test - value).mean()) for name, value in constants.items()}
    assert facts["rows"] == ROWS["test"]
    assert facts["worst"] == pytest.approx(min(errors.values()), rel=1e-6)
    assert facts["baselines"] == pytest.approx(errors, rel=1e-6)
    assert graded(task, labels()).value == 1.0
    for value in constants.values():
        assert graded(task, [value] * ROWS["test"]).value == pytest.approx(0.0, abs=1e-6)
    half = graded(task, list(test + facts["worst"] / 2))
    assert half.value == pytest.approx(0.5)
    assert half.raw == pytest.approx(facts["worst"] / 2)


def test_neither_order_nor_ids_follow_from_the_source(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(task, source="qm9pack")
    before = files(datastore.data_home() / "data"), labels()
    names = table("train")["id"] + table("test")["id"]
    assert len(set(names)) == ROWS["train"] + ROWS["test"]
    assert sorted(names) != names
    assert not [name for name in names if "dsgdb" in name]
    lay_out(tmp_path / "site", made_up(sum(ROWS.values()))[::-1], monkeypatch)
    prepare(task, source="qm9pack")
    assert (files(datastore.data_home() / "data"), labels()) == before


def test_molecules_that_look_the_same_get_different_ids(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = made_up(sum(ROWS.values()))
    lay_out(tmp_path / "site", [{**rows[0], "XYZ_file": row["XYZ_file"]} for row in rows], monkeypatch)
    prepare(task, source="qm9pack")
    assert len(set(table("train")["id"])) == ROWS["train"]


def test_progress_is_reported(task: Task) -> None:
    lines: list[str] = []
    prepare(task, source="qm9pack", report=lines.append)
    assert any("qm9_part3.csv" in line for line in lines)
    assert lines[-1] == "computing checksums"
    assert len([name for name in datastore.read_manifest(ID)["files"] if name.startswith("data/")]) == 4


# What is said where the data are not here.


def test_making_the_environment_without_data_names_both_ways_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RESEARCH_GYM_HOME", str(tmp_path))
    with pytest.raises(DataMissing) as found:
        gymnasium.make(ID, sandbox="local")
    for part in (ID, "nimashoghi/qm9", f"research-gym prepare {ID}", "--source qm9pack", "--source DIR"):
        assert part in str(found.value)
    assert not datastore.is_prepared(ID)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: (data / "qm9_part2.csv").unlink(), "no file qm9_part2.csv"),
        (lambda data: (data / "qm9_part1.csv").write_text("x", "utf-8"), "another qm9_part1.csv"),
    ],
)
def test_a_package_that_is_not_the_known_one_is_refused(
    spoil: Callable[[Path], Any], said: str, task: Task, tmp_path: Path
) -> None:
    spoil(tmp_path / "site" / "qm9pack" / "data")
    with pytest.raises(DataMissing, match=said):
        prepare(task, source="qm9pack")
    assert not datastore.is_prepared(ID)
    assert not list((datastore.data_home() / "staging").iterdir())


def test_another_number_of_molecules_is_refused(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qm9, "DATASET", replace(qm9.DATASET, rows=ROWS | {"test": 13}))
    with pytest.raises(DataMissing, match="57 molecules in the package qm9pack, not 58"):
        prepare(task, source="qm9pack")


def test_a_number_that_is_not_finite_is_refused(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made_up(sum(ROWS.values()))
    rows[3]["Heatcapacity_Cv_cal_mol_K"] = "nan"
    lay_out(tmp_path / "site", rows, monkeypatch)
    with pytest.raises(DataMissing, match="c_v: expected finite numbers"):
        prepare(task, source="qm9pack")


def test_a_folder_that_is_not_there_is_named(task: Task) -> None:
    with pytest.raises(DataMissing, match="no folder /nowhere"):
        prepare(task, source="/nowhere")


def test_command_line_takes_the_source_and_refuses_it_where_there_is_no_choice(task: Task) -> None:
    done = CliRunner().invoke(main, ["prepare", ID, "--source", "qm9pack", "--json"])
    assert done.exit_code == 0, done.output
    assert datastore.is_prepared(task.id)
    refused = CliRunner().invoke(main, ["prepare", "Mini/digits-v0", "--source", "qm9pack"])
    assert refused.exit_code == 1
    assert "one source only" in refused.output
    listed = CliRunner().invoke(main, ["list", "--suite", "AIRS", "--json"])
    assert [(row["id"], row["prepared"]) for row in json.loads(listed.output)] == [(ID, True)]


# The data set as the Hub has it.


def as_on_the_hub(package: Any) -> Any:
    """The molecules of the made-up package, split as ours are, in the 25 columns of the Hub."""
    floats = package.Sequence(package.Value("float32"))
    whole = package.Sequence(package.Value("int64"))
    features = package.Features(
        {"pos": package.Sequence(floats), "atomic_numbers": whole}
        | {name: package.Value("float32") for name in HUB_SCALARS}
        | {"tags": whole, "natoms": package.Value("int64"), "id": package.Value("string"), "composition": whole}
    )
    splits = qm9pack.read_splits(qm9pack.folder() or Path(), rows=ROWS, report=lambda line: None)
    found = {}
    for split, molecules in splits.items():
        ends = np.cumsum(molecules.natoms)
        rows = []
        for row, (start, end) in enumerate(zip(ends - molecules.natoms, ends, strict=True)):
            entry: dict[str, Any] = dict.fromkeys(HUB_SCALARS, 99.0)
            entry |= dict(zip("ABC", molecules.rotations[row].tolist(), strict=True))
            entry |= {"c_v": float(molecules.targets["c_v"][row]), "id": str(row), "natoms": int(end - start)}
            entry |= {"pos": molecules.pos[start:end].tolist(), "tags": molecules.tags[start:end].tolist()}
            entry |= {"atomic_numbers": molecules.atomic_numbers[start:end].tolist()}
            entry |= {"composition": molecules.composition()[row].tolist()}
            rows.append(entry)
        found[split] = package.Dataset.from_list(rows, features=features)
    return package.DatasetDict(found)


@pytest.fixture
def package() -> Any:
    return pytest.importorskip("datasets", reason="the package datasets is not installed")


@pytest.mark.parametrize("below", ["", "nimashoghi/qm9/default"])
def test_a_saved_data_set_gives_the_same_files_as_the_package(
    below: str, package: Any, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qm9, "_BATCH_ROWS", 7)
    as_on_the_hub(package).save_to_disk(str(tmp_path / "saved" / below))
    prepare(task, source="qm9pack")
    before = files(datastore.data_home() / "data"), labels(), datastore.read_facts(ID)
    prepare(task, source=str(tmp_path / "saved"))
    facts = datastore.read_facts(ID)
    assert facts.pop("origin") != before[2].pop("origin")
    assert (files(datastore.data_home() / "data"), labels(), facts) == before


def test_a_saved_data_set_of_other_rows_or_columns_is_refused(package: Any, task: Task, tmp_path: Path) -> None:
    saved = as_on_the_hub(package)
    saved["test"] = saved["test"].select(range(11))
    saved.save_to_disk(str(tmp_path / "short"))
    with pytest.raises(DataMissing, match="11 rows in its split 'test', not 12"):
        prepare(task, source=str(tmp_path / "short"))
    as_on_the_hub(package).remove_columns("c_v").save_to_disk(str(tmp_path / "narrow"))
    with pytest.raises(DataMissing, match="c_v"):
        prepare(task, source=str(tmp_path / "narrow"))
    without = as_on_the_hub(package)
    del without["val"]
    without.save_to_disk(str(tmp_path / "without"))
    with pytest.raises(DataMissing, match="no split 'val'"):
        prepare(task, source=str(tmp_path / "without"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="no saved data set"):
        prepare(task, source=str(tmp_path / "empty"))


def test_the_hub_is_asked_for_the_pinned_commit(
    package: Any, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    for split, rows in as_on_the_hub(package).items():
        rows.to_parquet(str(tmp_path / "parquet" / f"{split}-00000-of-00001.parquet"))
    asked: list[Any] = []
    real = package.load_dataset

    def load_dataset(name: str, config: str, *, revision: str) -> Any:
        asked.append((name, config, revision))
        patterns = {split: str(tmp_path / "parquet" / f"{split}-*") for split in ROWS}
        return real("parquet", data_files=patterns, cache_dir=str(tmp_path / "cache"))

    commits = [type("Commit", (), {"commit_id": commit * 20})() for commit in ("ff", "1c482d3")]
    monkeypatch.setattr(hub.HfApi, "list_repo_commits", lambda self, name, repo_type: commits)
    monkeypatch.setattr(package, "load_dataset", load_dataset)
    prepare(task)
    assert asked == [("nimashoghi/qm9", "default", "1c482d3" * 20)]
    assert datastore.read_facts(ID)["origin"].startswith("nimashoghi/qm9@1c482d3")
    monkeypatch.setattr(hub.HfApi, "list_repo_commits", lambda self, name, repo_type: commits[:1])
    with pytest.raises(DataMissing, match="no commit 1c482d3"):
        prepare(task)


def test_without_a_network_the_error_names_the_ways_out(
    package: Any, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    refused = "http://127.0.0.1:9/"
    monkeypatch.setattr(hub.HfApi, "list_repo_commits", lambda self, name, repo_type: hub.get_session().get(refused))
    with pytest.raises(DataMissing, match="no way to it on the Hub") as found:
        prepare(task)
    assert "--source qm9pack" in str(found.value)


# Full size.


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("qm9pack") is None, reason="the package qm9pack is not installed")
@pytest.mark.timeout(600)
def test_on_real_data_a_plain_model_beats_the_median(sandbox_name: str, tmp_path: Path) -> None:
    from research_gym.envs.research_env import ResearchEnv
    from research_gym.training.policies import ReferencePolicy
    from research_gym.training.rollout import run_episode

    task = load_task(shipped()[ID])
    if not datastore.is_prepared(ID):
        prepare(task, source="qm9pack")
    facts = datastore.read_facts(ID)
    assert 3.18 <= facts["worst"] <= 3.26
    assert (len(table("train")["id"]), len(table("test")["id"]), len(labels())) == (110_831, 10_000, 10_000)
    assert graded(task, labels()).value == 1.0
    env = ResearchEnv(ID, sandbox=sandbox_name)
    try:
        assert (env.limits.cpus, env.limits.memory_bytes) == (1.0, 2 << 30)
        episode = run_episode(env, ReferencePolicy(task), seed=0)
    finally:
        env.close()
    result = episode.info["result"]
    assert result.raw < facts["worst"] / 3
    assert result.score == pytest.approx((facts["worst"] - result.raw) / facts["worst"], rel=1e-9)
    assert set(episode.info["landmark_evidence"].values()) == {"artefact"}
    assert episode.reward_total == pytest.approx(result.score + 0.1)

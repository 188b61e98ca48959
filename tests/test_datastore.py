"""Prepared data: complete or absent, labels apart and closed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from research_gym import datastore
from research_gym.errors import DataMissing

TASK = "Mini/x-v0"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESEARCH_GYM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def prepare(text: str = "x") -> None:
    with datastore.staging(TASK) as staged:
        (staged.data / "train").mkdir()
        (staged.data / "train" / "data.csv").write_text(text)
        (staged.labels / "labels.csv").write_text("label\n1\n")
        datastore.commit_prepared(staged, facts={"worst": 0.1})


def test_home_is_the_variable_or_the_users_data_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert datastore.data_home() == home
    monkeypatch.delenv("RESEARCH_GYM_HOME")
    assert datastore.data_home().name == "research_gym"


def test_a_prepared_task_has_data_labels_facts_and_checksums(home: Path) -> None:
    assert not datastore.is_prepared(TASK)
    prepare()
    assert datastore.is_prepared(TASK)
    assert datastore.read_facts(TASK) == {"worst": 0.1}
    files = datastore.read_manifest(TASK)["files"]
    assert files["data/Mini/x-v0/train/data.csv"] == {"sha256": hashlib.sha256(b"x").hexdigest(), "size_bytes": 1}
    assert set(files) == {"data/Mini/x-v0/train/data.csv", "labels/Mini/x-v0/labels.csv"}
    assert list((home / "staging").iterdir()) == []


def test_labels_are_closed_and_data_are_open(home: Path) -> None:
    prepare()
    assert datastore.label_dir(TASK).stat().st_mode & 0o777 == 0o700
    assert datastore.label_file(TASK).stat().st_mode & 0o777 == 0o600
    assert datastore.manifest_file(TASK).stat().st_mode & 0o777 == 0o600
    assert datastore.manifest_file(TASK).parent.stat().st_mode & 0o777 == 0o700
    assert datastore.agent_dir(TASK).stat().st_mode & 0o777 == 0o755
    assert (datastore.agent_dir(TASK) / "train" / "data.csv").stat().st_mode & 0o777 == 0o644


def test_preparing_again_replaces_everything() -> None:
    prepare("old")
    (datastore.agent_dir(TASK) / "left over").touch()
    prepare("new")
    assert (datastore.agent_dir(TASK) / "train" / "data.csv").read_text() == "new"
    assert not (datastore.agent_dir(TASK) / "left over").exists()


def test_a_failed_preparation_leaves_nothing(home: Path) -> None:
    with pytest.raises(RuntimeError), datastore.staging(TASK):
        raise RuntimeError
    assert not datastore.is_prepared(TASK)
    assert list((home / "staging").iterdir()) == []


def test_links_are_not_committed() -> None:
    with datastore.staging(TASK) as staged:
        (staged.data / "x").symlink_to("/etc/passwd")
        with pytest.raises(ValueError, match="regular files"):
            datastore.commit_prepared(staged)
    assert not datastore.is_prepared(TASK)


def test_a_broken_manifest_is_no_preparation() -> None:
    prepare()
    datastore.manifest_file(TASK).write_text("{")
    assert not datastore.is_prepared(TASK)
    assert datastore.read_facts(TASK) == {}


def test_missing_data_name_both_ways_out(home: Path) -> None:
    with pytest.raises(DataMissing, match=r"research-gym prepare Mini/x-v0.*RESEARCH_GYM_HOME"):
        datastore.read_manifest(TASK)


@pytest.mark.parametrize(
    "task_id", ["", "x", "../x", "Mini/../x", "Mini/..", "/etc/passwd", "Mini/x/y", "Mini/\0", "Mini/x\n"]
)
def test_ids_cannot_leave_the_home(task_id: str) -> None:
    with pytest.raises(ValueError, match="task id"):
        datastore.agent_dir(task_id)

"""`gc` removes what dead processes left and nothing else; `prepare` goes on where it stopped."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from research_gym.cli import main
from research_gym.datastore import agent_dir, data_home, is_prepared
from research_gym.sandbox import docker_settings
from research_gym.sandbox.docker_engine import engine
from research_gym.sandbox.leftovers import collect

TASK = "Mini/digits-v0"


def gc(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["gc", "--json", *arguments])
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def old(folder: Path, *, age_s: float) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "half").write_bytes(b"x")
    for path in (folder / "data" / "half", folder / "data", folder):
        os.utime(path, (time.time() - age_s,) * 2)
    return folder


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESEARCH_GYM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_old_staging_folders_go_and_new_ones_stay() -> None:
    staging = data_home() / "staging"
    abandoned, working = old(staging / "a", age_s=7200), old(staging / "b", age_s=60)
    busy = old(staging / "c", age_s=7200)
    (busy / "data" / "half").write_bytes(b"still written to")
    folders = [row for row in gc("--dry-run") if row["kind"] == "folder"]
    assert [row["name"] for row in folders] == [str(abandoned)]
    assert abandoned.exists()
    (row,) = (row for row in gc() if row["kind"] == "folder")
    assert row["removed"]
    assert row["age_s"] >= 7200
    assert not abandoned.exists()
    assert working.exists()
    assert busy.exists()
    assert {Path(row["name"]).name for row in gc("--older-than-s", "30") if row["kind"] == "folder"} == {"b"}


def test_links_are_left_alone(tmp_path: Path) -> None:
    target = old(tmp_path / "elsewhere", age_s=7200)
    staging = data_home() / "staging"
    staging.mkdir(parents=True)
    (staging / "link").symlink_to(target)
    assert [row for row in gc("--older-than-s", "0") if row["kind"] == "folder"] == []
    assert target.exists()


def test_an_engine_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    done = CliRunner().invoke(main, ["gc"])
    assert done.exit_code == 0
    assert "containers were not looked at" in done.stderr
    assert "nothing is left over" in done.stderr


@pytest.mark.docker
def test_a_container_whose_owner_is_gone_is_removed_and_one_of_a_living_owner_is_not() -> None:
    from research_gym.sandbox.docker import DEFAULT_IMAGE

    owners = {"gone": 4_000_000, "living": os.getpid()}
    made: dict[str, str] = {}
    with engine(timeout_s=20) as client:
        try:
            for name, process in owners.items():
                labels = {
                    docker_settings.LABEL: "1",
                    docker_settings.OWNER_LABEL: f"{process}@{docker_settings.machine_mark()}",
                    docker_settings.STARTED_LABEL: docker_settings.process_started(process) or "0",
                }
                made[name] = client.create_container(DEFAULT_IMAGE, ["true"], labels=labels)["Id"]
            found = {leftover.name: leftover for leftover in collect(older_than_s=0).leftovers}
            names = {key: client.inspect_container(value)["Name"].lstrip("/") for key, value in made.items()}
            assert names["gone"] in found
            assert names["living"] not in found
            assert "4000000, is gone" in found[names["gone"]].why
            assert found[names["gone"]].remove()
            left = {row["Id"] for row in client.containers(all=True)}
            assert made["gone"] not in left
            assert made["living"] in left
        finally:
            for container in made.values():
                if any(row["Id"] == container for row in client.containers(all=True)):
                    client.remove_container(container, force=True)


def test_prepare_goes_on_where_it_stopped_and_mends_what_is_damaged() -> None:
    def prepare(*arguments: str) -> tuple[dict[str, Any], str]:
        done = CliRunner().invoke(main, ["prepare", TASK, "--json", *arguments])
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)
        return row, done.stderr

    row, said = prepare()
    assert row["made"]
    assert f"[1/1] {TASK}: preparing" in said
    row, said = prepare()
    assert not row["made"]
    assert "there already" in said
    assert prepare("--force")[0]["made"]
    (agent_dir(TASK) / "train" / "train.csv").write_text("cut off")
    row, said = prepare()
    assert row["made"]
    assert "differ from their checksum" in said


def test_prepare_without_its_source_names_both_ways_out_and_does_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["prepare", "Mini/co2-v0", TASK, "--json"])
    assert done.exit_code == 1
    assert "pip install statsmodels" in done.stderr
    assert "RESEARCH_GYM_HOME" in done.stderr
    rows = {row["id"]: row for row in json.loads(done.stdout)}
    assert rows["Mini/co2-v0"]["error"]
    assert not is_prepared("Mini/co2-v0")
    assert rows[TASK]["made"]

"""The command line: list, prepare, run, doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

import research_gym
from research_gym.cli import main

ROOT = str(Path(research_gym.__file__).resolve().parents[1])
PERCEPTRON = "Mini/mend-perceptron-v0"


def test_list_names_every_task_as_json() -> None:
    done = CliRunner().invoke(main, ["list", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert {row["id"] for row in rows} >= {"Mini/digits-v0", PERCEPTRON}
    assert set(rows[0]) >= {"id", "title", "shape", "prepared"}


def test_list_knows_suites() -> None:
    assert CliRunner().invoke(main, ["list", "--suite", "Mini"]).exit_code == 0
    done = CliRunner().invoke(main, ["list", "--suite", "Minni"])
    assert done.exit_code == 1
    assert "known: AIRS, Mini" in done.output


def test_an_unknown_id_is_one_sentence_with_the_nearest_id() -> None:
    done = CliRunner().invoke(main, ["run", "Mini/digit-v0", "--sandbox", "local"])
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert "Mini/digits" in done.output


def test_a_policy_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(main, ["run", PERCEPTRON, "--policy", "clever", "--sandbox", "local"])
    assert done.exit_code == 2
    assert "reference, random or a notebook file" in done.output


def test_prepare_makes_data_and_labels_apart() -> None:
    done = CliRunner().invoke(main, ["prepare", "Mini/digits-v0", "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    data = Path(row["data"])
    assert data.is_dir()
    labels = data.parents[2] / "labels" / "Mini" / data.name
    assert (labels / "labels.csv").stat().st_mode & 0o777 == 0o600
    assert labels.stat().st_mode & 0o777 == 0o700
    again = json.loads(CliRunner().invoke(main, ["prepare", "Mini/digits-v0", "--json"]).stdout)
    assert again[0]["id"] == "Mini/digits-v0"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Mini/digits-v0", PERCEPTRON])
def test_the_reference_solution_is_graded(task: str, sandbox_name: str) -> None:
    done = CliRunner().invoke(main, ["run", task, "--policy", "reference", "--sandbox", sandbox_name, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["terminated"]
    assert not result["truncated"]
    assert result["result"]["score"] > 0.9
    assert result["reward"] == pytest.approx(result["result"]["reward_total"])
    assert all(step >= 0 for step in result["result"]["landmarks"].values())


@pytest.mark.slow
def test_run_shows_observations_landmarks_and_reward_terms() -> None:
    done = CliRunner().invoke(main, ["run", PERCEPTRON, "--sandbox", "local"])
    assert done.exit_code == 0, done.output
    for words in ("step 1", "landmarks", "terms", "score", "landmark"):
        assert words in done.output


@pytest.mark.slow
def test_run_plays_a_notebook(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# a note"),
        nbformat.v4.new_code_cell("print('from a notebook')"),
        nbformat.v4.new_code_cell('%submit {"accuracy": 0.0}'),
    ]
    path = tmp_path / "play.ipynb"
    nbformat.write(notebook, path)
    done = CliRunner().invoke(main, ["run", PERCEPTRON, "--policy", str(path), "--sandbox", "local", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 2
    assert "from a notebook" in done.stderr


@pytest.mark.slow
def test_run_plays_random_cells_and_is_not_graded() -> None:
    done = CliRunner().invoke(main, ["run", PERCEPTRON, "--policy", "random", "--sandbox", "local", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["result"] is None
    assert result["reward"] == 0.0


def test_doctor_says_what_works_and_how_to_mend_the_rest() -> None:
    done = CliRunner().invoke(main, ["doctor", "--json"])
    assert done.exit_code in (0, 1), done.output
    rows = json.loads(done.stdout)
    assert {row["sandbox"] for row in rows} == {"docker", "local"}
    assert all(row["ok"] or row["mend"] for row in rows), "every finding that is not ok says how to mend it"


def test_the_program_runs_from_another_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "research_gym.cli", "list", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": ROOT},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)

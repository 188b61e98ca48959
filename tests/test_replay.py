"""A replay finds nothing in an honest recording and names the first cell of a tampered one."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from research_gym.cli import main
from research_gym.envs.research_env import ResearchEnv
from research_gym.envs.suites import Choice
from research_gym.testing.fakes import FakeSandbox
from research_gym.testing.tasks import write_answer_task
from research_gym.training.policies import ReferencePolicy
from research_gym.training.replay import normalise, replay
from research_gym.training.rollout import run_episode

RIGHT = '%submit {"value": 42.0, "name": "done"}'


def record(folder: Path, *, cells: tuple[str, ...] = ("a = 6", "print(a * 7)", "print('end')", RIGHT)) -> Path:
    """Records an episode of the smallest task in a fake sandbox that prints each cell back."""
    env = ResearchEnv(write_answer_task(folder), sandbox=FakeSandbox(lambda code: f"<{code}>"), record=folder)
    env.reset(seed=4)
    for cell in cells:
        env.step(cell)
    env.close()
    (path,) = folder.glob("*.jsonl")
    return path


def test_an_honest_recording_has_no_divergence(tmp_path: Path) -> None:
    path = record(tmp_path)
    for form in (path, path.with_suffix(".ipynb")):
        numbers: list[int] = []
        report = replay(
            form,
            sandbox=FakeSandbox(lambda code: f"<{code}>"),
            on_step=lambda number, _, to=numbers: to.append(number),  # type: ignore[misc]
        )
        assert report.divergence is None
        assert report.steps == 4
        assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("cell", [1, 2, 3])
def test_a_tampered_notebook_is_found_at_the_right_cell(tmp_path: Path, cell: int) -> None:
    path = record(tmp_path).with_suffix(".ipynb")
    notebook = nbformat.read(str(path), as_version=4)
    notebook.cells[cell].source += "  # changed"
    nbformat.write(notebook, path)
    report = replay(path, sandbox=FakeSandbox(lambda code: f"<{code}>"))
    assert report.divergence is not None
    assert report.divergence.step == cell == report.steps
    assert report.divergence.first_difference()[1].endswith("# changed>")


def test_an_episode_that_ends_too_early_diverges_at_the_next_cell(tmp_path: Path) -> None:
    path = record(tmp_path, cells=("a", "b"))
    text = path.read_text().replace('"action": "a"', f'"action": {json.dumps(RIGHT)}').replace("<a>", "")
    path.write_text(text)
    report = replay(path, sandbox=FakeSandbox(lambda code: f"<{code}>"))
    assert report.divergence is not None
    assert report.divergence.step == 1


def test_the_limits_of_the_recording_hold(tmp_path: Path) -> None:
    env = ResearchEnv(write_answer_task(tmp_path), sandbox=FakeSandbox(), record=tmp_path, limits={"max_steps": 2})
    env.reset(seed=0)
    env.step("a")
    assert env.step("b")[3]
    (path,) = tmp_path.glob("*.jsonl")
    assert replay(path, sandbox=FakeSandbox()).divergence is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<object at 0x7f0011223344>", "<object at 0x7fffeeddccbb>"),
        ("2026-12-01 04:46:16.123 start", "2027-01-02 11:00:01 start"),
        ("took 0.31 s", "took 12 s"),
        ("100%|##| 3/3 [00:01<00:00, 2.31it/s]", "100%|##| 3/3 [00:04<00:00, 0.80it/s]"),
        ("wrote /tmp/tmpab12/x.csv", "wrote /tmp/tmpzz99/x.csv"),
        ("/tmp/ipykernel_12/3.py", "/tmp/ipykernel_99/7.py"),
    ],
)
def test_what_differs_between_honest_runs_is_left_out(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


def test_numbers_are_not_left_out() -> None:
    assert normalise("accuracy 0.981") != normalise("accuracy 0.982")


@pytest.mark.slow
@pytest.mark.parametrize("task_id", ["Mini/digits-v0", "Mini/mend-perceptron-v0"])
def test_replay_of_a_reference_episode_finds_nothing_and_the_command_says_where(
    tmp_path: Path, sandbox_name: str, task_id: str
) -> None:
    env = ResearchEnv(task_id, sandbox=sandbox_name, record=tmp_path)
    try:
        episode = run_episode(env, ReferencePolicy(Choice.of(task_id).first()), seed=0)
    finally:
        env.close()
    assert episode.terminated
    (path,) = tmp_path.glob("*.ipynb")
    done = CliRunner().invoke(main, ["replay", str(path), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["sandbox"] == sandbox_name
    assert summary["cells"] == len(episode.turns)

    notebook = nbformat.read(str(path), as_version=4)
    notebook.cells[2].source = "print('something else')"
    nbformat.write(notebook, path)
    done = CliRunner().invoke(main, ["replay", str(path)])
    assert done.exit_code == 1
    assert "cell 2 differs" in done.stdout

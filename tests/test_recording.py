"""Recordings: complete after every step, valid as notebooks, loadable again, whatever was printed or killed."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import research_gym
from research_gym.cell import CellResult, Display, ErrorOutput, Result, Stream
from research_gym.envs.notebook import METADATA_KEY, RecordedEpisode, read_episode, to_notebook, write_notebook
from research_gym.envs.research_env import ResearchEnv
from research_gym.errors import SandboxLost
from research_gym.output import Clear
from research_gym.testing.fakes import FakeSandbox, printed
from research_gym.wrappers.faults import FaultsToTruncation
from research_gym.wrappers.recording import RecordEpisode

ROOT = str(Path(research_gym.__file__).resolve().parents[1])
RIGHT = '%submit {"value": 42.0, "name": "done"}'
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
MakeEnv = Callable[..., tuple[ResearchEnv, FakeSandbox]]

FIGURE = CellResult(
    status="ok",
    execution_count=3,
    outputs=(
        Stream("stdout", "one\n"),
        Stream("stderr", "two \ud800 \x00\x1b[31m"),
        Display({"image/png": PNG, "text/plain": "<Figure>"}, {"image/png": {"width": 3}}),
        Result({"text/plain": "42", "application/json": {"loss": math.nan}}, 3),
        ErrorOutput("ValueError", "bad \udfff", ("line 1", "line 2")),
    ),
)


def only(folder: Path, suffix: str) -> Path:
    (path,) = folder.glob(f"*{suffix}")
    return path


def load(path: Path) -> Any:
    notebook = nbformat.read(str(path), as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_an_episode_becomes_lines_and_a_notebook_with_reward_and_landmarks(make: MakeEnv, tmp_path: Path) -> None:
    env, fake = make({"draw()": FIGURE})
    recorded = RecordEpisode(env, tmp_path / "records")
    prompt, _ = recorded.reset(seed=3)
    observation, *_ = recorded.step("draw()")
    fake.session.files["/content/report.txt"] = b"x"
    recorded.step("1 + 1")
    recorded.step(RIGHT)

    notebook = load(only(tmp_path / "records", ".ipynb"))
    head = notebook.metadata[METADATA_KEY]
    assert head["task"] == "Test/smallest-v0"
    assert head["seed"] == 3
    assert head["result"]["score"] == 1.0
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells] == ["draw()", "1 + 1", RIGHT]
    assert cells[0].execution_count == 3
    kinds = [output.output_type for output in cells[0].outputs]
    assert kinds == ["stream", "stream", "display_data", "execute_result", "error"]
    assert cells[0].outputs[2].data["image/png"].strip() == PNG
    assert cells[0].outputs[2].metadata["image/png"] == {"width": 3}
    assert cells[0].metadata[METADATA_KEY]["observation"] == observation
    assert cells[1].metadata[METADATA_KEY]["landmarks"]["wrote-report"] == 2
    assert cells[1].metadata[METADATA_KEY]["reward"] == pytest.approx(0.05)
    assert cells[2].metadata[METADATA_KEY]["reward_terms"]["score"] == 1.0

    for suffix in (".jsonl", ".ipynb"):
        episode = read_episode(only(tmp_path / "records", suffix))
        assert (episode.task, episode.seed, episode.prompt) == ("Test/smallest-v0", 3, prompt)
        assert [step["action"] for step in episode.steps] == ["draw()", "1 + 1", RIGHT]
        assert [step["reward"] for step in episode.steps] == [0.0, pytest.approx(0.05), 1.0]
        assert episode.steps[0]["outputs"][2]["data"]["image/png"].strip() == PNG
        assert episode.steps[0]["observation"] == observation
        assert episode.result is not None
        assert episode.sandbox == "fake"
        assert episode.limits["max_steps"] == env.limits.max_steps
        assert episode.file == str(tmp_path / "smallest.yaml")


def test_the_constructor_argument_records_the_same(make: MakeEnv, tmp_path: Path) -> None:
    env, _ = make({"draw()": FIGURE}, record=tmp_path / "inner")
    outer = RecordEpisode(env, tmp_path / "outer", notebook=False)
    outer.reset(seed=1)
    outer.step("draw()")
    outer.step(RIGHT)
    inner, wrapped = (only(tmp_path / name, ".jsonl").read_text() for name in ("inner", "outer"))
    assert inner == wrapped
    assert load(only(tmp_path / "inner", ".ipynb")).cells
    assert not list((tmp_path / "outer").glob("*.ipynb"))


def test_each_line_is_there_before_step_returns(make: MakeEnv, tmp_path: Path) -> None:
    env, _ = make(record=str(tmp_path / "records"))
    for count in range(1, 4):
        if count == 1:
            env.reset(seed=0)
        env.step(f"cell {count}")
        lines = only(tmp_path / "records", ".jsonl").read_text().splitlines()
        assert len(lines) == count + 1
        assert json.loads(lines[-1])["action"] == f"cell {count}"


def test_reset_and_close_end_an_unfinished_recording(make: MakeEnv, tmp_path: Path) -> None:
    env, _ = make(record=tmp_path / "records")
    for _ in range(2):
        env.reset(seed=0)
        env.step("x")
    env.close()
    env.close()
    assert len(list((tmp_path / "records").glob("*.ipynb"))) == 2
    for path in (tmp_path / "records").glob("*.jsonl"):
        episode = read_episode(path)
        assert episode.result is None
        assert len(episode.steps) == 1


@pytest.mark.parametrize("by_wrapper", [True, False])
def test_a_fault_is_recorded_and_raised(make: MakeEnv, tmp_path: Path, by_wrapper: bool) -> None:
    folder = tmp_path / "records"
    env, _ = make({"break": SandboxLost("the stream ended")}, **({} if by_wrapper else {"record": folder}))
    recorded: gym.Env[str, str] = RecordEpisode(env, folder) if by_wrapper else env
    recorded.reset(seed=0)
    recorded.step("fine")
    with pytest.raises(SandboxLost):
        recorded.step("break")
    last = json.loads(only(folder, ".jsonl").read_text().splitlines()[-1])
    assert last == {"event": "fault", "action": "break", "error": "SandboxLost: the stream ended"}
    assert len(load(only(folder, ".ipynb")).cells) == 2


def test_a_masked_fault_is_strict_json(make: MakeEnv, tmp_path: Path) -> None:
    env, _ = make({"break": SandboxLost("gone")})
    recorded = RecordEpisode(FaultsToTruncation(env), tmp_path / "records")
    recorded.reset(seed=0)
    _, reward, *_ = recorded.step("break")
    assert math.isnan(reward)
    text = only(tmp_path / "records", ".jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert lines[1]["reward"] is None
    assert lines[1]["fault"] == "sandbox_lost: gone"
    load(only(tmp_path / "records", ".ipynb"))


@pytest.mark.parametrize(
    "action",
    ["print('\ud800')", "a\x00b\x1b[31m\r\x0b\x85\u2028c", "\\ud800 stays", "x\n" * 3, "é\udfff\\n", "", "#\tü"],
)
def test_any_action_survives_both_forms(make: MakeEnv, tmp_path: Path, action: str) -> None:
    env, _ = make(lambda code: printed(code), record=tmp_path / "records")
    env.reset(seed=0)
    env.step(action)
    env.close()
    for suffix in (".jsonl", ".ipynb"):
        assert read_episode(only(tmp_path / "records", suffix)).steps[0]["action"] == action


_texts = st.text(st.characters(codec=None), max_size=20)
_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_bundles = st.dictionaries(
    _texts | st.sampled_from(["text/plain", "image/png", "application/json"]), _values, max_size=3
)
_outputs = st.one_of(
    st.builds(Stream, st.sampled_from(["stdout", "stderr"]), _texts),
    st.builds(Display, _bundles, _bundles),
    st.builds(Result, _bundles, st.integers()),
    st.builds(ErrorOutput, _texts, _texts, st.lists(_texts, max_size=2).map(tuple)),
    st.builds(Clear),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=_texts, outputs=st.lists(_outputs, max_size=4).map(tuple), count=st.integers(-1, 3))
def test_whatever_a_kernel_sends_the_notebook_is_valid(
    make: MakeEnv, tmp_path: Path, action: str, outputs: tuple[Any, ...], count: int
) -> None:
    env, _ = make(lambda code: CellResult(status="ok", execution_count=count, outputs=outputs))
    recorded = RecordEpisode(env, tmp_path / "records", notebook=False)
    recorded.reset(seed=0)
    recorded.step(action)
    recorded.close()
    assert recorded.path is not None
    path = write_notebook(recorded.path)
    load(path)
    (step,) = read_episode(path).steps
    assert step["action"] == action


def test_deeply_nested_values_are_cut() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    item = {"kind": "display", "data": {"application/json": deep}, "metadata": {}}
    step = {"action": "x", "observation": "", "outputs": [item]}
    notebook = to_notebook(RecordedEpisode("T/x-v0", None, "p", [step]))
    nbformat.validate(notebook)
    assert "too deep" in nbformat.writes(notebook)


def test_an_edited_notebook_gives_the_edited_source(make: MakeEnv, tmp_path: Path) -> None:
    env, _ = make(record=tmp_path / "records")
    env.reset(seed=0)
    env.step("print('\ud800')")
    env.close()
    path = only(tmp_path / "records", ".ipynb")
    notebook = load(path)
    notebook.cells[1].source = "print('edited')"
    nbformat.write(notebook, path)
    assert read_episode(path).steps[0]["action"] == "print('edited')"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", "", "begins with a reset"),
        ("x.jsonl", '{"event": "step"}\n', "begins with a reset"),
        ("x.jsonl", 'nonsense\n{"event": "reset"}\n', "line 1"),
        ("x.jsonl", "[1]\n", "a JSON object"),
        ("x.jsonl", '{"event": "reset", "task": 3}\n', "'task'"),
        ("x.jsonl", '{"event": "reset", "task": "T/x-v0", "seed": null}\n{"event": "step"}\n', "step 1"),
        ("x.ipynb", "{}", "notebook"),
        ("x.ipynb", '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', METADATA_KEY),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        read_episode(path)


_VICTIM = """
import sys
from pathlib import Path
from research_gym.envs.research_env import ResearchEnv
from research_gym.testing.fakes import FakeSandbox
from research_gym.testing.tasks import write_answer_task

folder = Path(sys.argv[1])
env = ResearchEnv(write_answer_task(folder), sandbox=FakeSandbox(), limits={"max_steps": 10**9},
    record=folder / "records")
env.reset(seed=0)
for number in range(10**9):
    env.step(f"cell {number} " + "x" * 5000)
    if number == 50:
        print("going", flush=True)
"""


def test_a_killed_trainer_loses_at_most_the_step_it_was_in(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_VICTIM), str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ROOT},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        assert process.stdout is not None
        process.stdout.close()
    path = only(tmp_path / "records", ".jsonl")
    for cut in (0, 3000):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - cut])
        episode = read_episode(path)
        assert len(episode.steps) >= 50
        assert [step["action"].split()[1] for step in episode.steps] == [str(n) for n in range(len(episode.steps))]
        assert len(load(write_notebook(path)).cells) == len(episode.steps) + 1


def test_recording_a_step_takes_less_than_a_millisecond_or_two(make: MakeEnv, tmp_path: Path) -> None:
    def best(**arguments: Any) -> float:
        env, _ = make(lambda code: printed("x" * 2000), limits={"max_steps": 10_000}, **arguments)
        env.reset(seed=0)
        times = []
        for _ in range(200):
            began = time.perf_counter()
            env.step("cell")
            times.append(time.perf_counter() - began)
        return sorted(times)[20]

    assert best(record=tmp_path / "records") - best() < 0.002


def test_only_a_research_environment_can_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ResearchEnv"):
        RecordEpisode(gym.make("CartPole-v1"), tmp_path)

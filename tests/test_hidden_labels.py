"""Labels, gold answers and landmark patterns are in no file, process or package that the agent can read."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest

from research_gym.datastore import label_dir
from research_gym.task import Task

pytestmark = pytest.mark.slow

_SEARCH = """
import gzip, json, os
needles = [bytes.fromhex(n) for n in {needles!r}]
found, looked = [], 0
def look(path, data):
    for number, needle in enumerate(needles):
        if needle in data: found.append((path, number))
for top, folders, names in os.walk("/", followlinks=False):
    if top == "/":
        folders[:] = [f for f in folders if f not in ("proc", "sys", "dev")]
    for name in names:
        path = os.path.join(top, name)
        try:
            if not os.path.isfile(path) or os.path.islink(path) or os.path.getsize(path) > 200 << 20: continue
            with open(path, "rb") as file: data = file.read()
            looked += 1
            look(path, data)
            if name.endswith(".gz"): look(path, gzip.decompress(data))
        except (OSError, EOFError): pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{{pid}}/{{name}}", "rb") as file: look(f"/proc/{{pid}}/{{name}}", file.read())
        except OSError: pass
print(json.dumps([looked, found]))
"""

_LOAD = """
from sklearn import datasets
names = ["digits", "iris", "wine", "breast_cancer", "diabetes", "linnerud"]
for name in names:
    try: print("LOADED", name, len(getattr(datasets, "load_" + name)().target))
    except Exception: pass
print("tried", len(names))
"""


def _search(env: gym.Env[str, str], needles: list[bytes]) -> tuple[int, list[list[object]]]:
    observation, *_ = env.step(_SEARCH.format(needles=[needle.hex() for needle in needles]))
    looked, found = json.loads(observation.splitlines()[-1])
    return looked, found


def test_packages_do_not_bring_the_data_sets_along(sandbox_name: str) -> None:
    """A sandbox that can load a data set can read its labels."""
    env = gym.make("Mini/digits-v0", sandbox=sandbox_name, limits={"cell_timeout_s": 120})
    try:
        env.reset(seed=0)
        observation, *_ = env.step(_LOAD)
        assert observation == "tried 6"
    finally:
        env.close()


@pytest.mark.parametrize("env_id", ["Mini/digits-v0", "Mini/mend-perceptron-v0"])
def test_labels_patterns_and_task_files_are_nowhere(sandbox_name: str, env_id: str) -> None:
    """A search of every readable byte: twenty rows of labels in a row, the task file, the ids of landmarks."""
    env = gym.make(env_id, sandbox=sandbox_name, limits={"cell_timeout_s": 280, "cpus": 2})
    try:
        env.reset(seed=0)
        task: Task = env.get_wrapper_attr("task")
        assert task.path is not None
        needles = [Path(task.path).read_bytes()[:400]]
        needles += [landmark.id.encode() for landmark in task.landmarks if len(landmark.id) >= 12][:2]
        if task.shape == "submission":
            rows = (label_dir(task.id) / "labels.csv").read_text("utf-8").splitlines()[1:]
            assert len(rows) > 60
            needles += [joint.join(rows[40:60]).encode() for joint in ("\n", ",", ", ")]
        looked, found = _search(env, needles)
        assert looked > 1000, "the search really saw the file system"
        assert not found
    finally:
        env.close()

"""Records every episode as JSON lines while it runs, and as a notebook when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from research_gym.envs.recorder import Recorder
from research_gym.envs.research_env import ResearchEnv
from research_gym.errors import ResearchGymError


class RecordEpisode(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Writes `FOLDER/<episode>.jsonl` line by line, and `FOLDER/<episode>.ipynb` when the episode ends.

    One line at reset, one per step (action, observation, the kernel's outputs with their images, reward, landmarks,
    cell status), one at the end. Each line is complete and flushed before `step` returns: a killed trainer loses at
    most the step it was in, and `research_gym.envs.notebook.write_notebook` makes the notebook from what is there.
    Any text an agent can write or print is recorded: the lines are ASCII JSON, the notebook is valid for nbformat.
    `read_episode` reads both.

    It records what passes through it, so put it outside of the wrappers whose effect you want to see. Without any,
    `gym.make(..., record=FOLDER)` does the same.

    Args:
        env: a research environment, wrapped or not.
        folder: where the files go; made if it is missing.
        notebook: also write the `.ipynb`.

    Raises:
        OSError: the folder cannot be written.
        TypeError: there is no `ResearchEnv` inside.
    """

    def __init__(self, env: gymnasium.Env[str, str], folder: str | Path, *, notebook: bool = True) -> None:
        RecordConstructorArgs.__init__(self, folder=str(folder), notebook=notebook)
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(self.unwrapped, ResearchEnv):
            raise TypeError(f"RecordEpisode: expected a ResearchEnv inside, found {type(self.unwrapped).__name__}")
        self._inner: ResearchEnv = self.unwrapped
        self._recorder = Recorder(folder, notebook=notebook)

    @property
    def path(self) -> Path | None:
        """The JSON lines file of the running (or last) episode; `None` before the first reset."""
        return self._recorder.path

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Resets; an episode still being recorded is closed as it stands."""
        self._recorder.end()
        observation, info = self.env.reset(seed=seed, options=options)
        self._inner.begin_recording(self._recorder, seed=seed, prompt=observation)
        return observation, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Steps and records the step before it returns; an error of ours is recorded, then raised."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except ResearchGymError as error:
            self._recorder.fault(action, error)
            raise
        self._recorder.step(
            action,
            observation=observation,
            outputs=() if info["fault"] else self._inner.last_cell.outputs,
            reward=float(reward),
            terminated=terminated,
            truncated=truncated,
            info=info,
        )
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Ends the recording and the environment."""
        self._recorder.end()
        super().close()

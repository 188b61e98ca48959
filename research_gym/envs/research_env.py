"""The environment: a research task whose step is a notebook cell in a sandboxed live kernel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium
from gymnasium.error import ResetNeeded

from research_gym.cell import CellResult
from research_gym.envs import suites
from research_gym.envs.episode_run import EpisodeRun, StepOutcome
from research_gym.envs.preparation import ensure_prepared
from research_gym.envs.prompt import first_observation
from research_gym.envs.recorder import Recorder
from research_gym.envs.spaces import Unicode
from research_gym.errors import ResearchGymError
from research_gym.limits import Limits
from research_gym.reward import RewardSpec
from research_gym.sandbox.base import Sandbox
from research_gym.sandbox.choose import choose
from research_gym.sandbox.waiting import Steps, drive
from research_gym.task import Task

MAX_ACTION_CHARS = 1 << 20


class ResearchEnv(gymnasium.Env[str, str]):
    """A research task as a Gymnasium environment.

    `reset` starts a sandbox (a container, or namespaces on this machine) with a live Jupyter kernel and returns the
    task's prompt. `step` runs one notebook cell and returns what it printed; landmarks passed on the way pay small
    intermediate rewards, the graded submission pays the terminal one.

    Everything that comes out of the kernel is text for the agent and never a fact: reward, termination, times and the
    state of a cell come from the supervisor, the host or the grader.

    Observation space: `Unicode`, valid text without control characters, at most `limits.observation_chars` characters
    and, at reset, the prompt. Action space: `Unicode`; see `research_gym.action.parse` for the grammar.

    Args:
        task: a registered id (`Mini/digits-v0`), a set that draws its task on reset (`Mini/All`), or the path of a
            task file.
        sandbox: `auto` (Docker if an engine and the kernel image are there, else local, said once in a warning),
            `docker`, `local`, or a `Sandbox` of your own.
        limits: changes to the task's limits, as `Limits` (replaces them) or as a mapping (changes some).
        reward: a `RewardSpec` or a mapping of its fields.
        kernel: `jupyter`, any installed kernelspec behind the supervisor.
        isolation: `container`, a fresh sandbox per episode.
        network: `none`; sandboxes have no network.
        runtime: container runtime of the engine, e.g. `runsc`; `None` is the engine's default.
        record: folder for a recording of every episode, JSON lines and a notebook
            (`research_gym.wrappers.RecordEpisode`).
        render_mode: `None` or `ansi` (the transcript of the episode so far as a string).

    Raises:
        ValueError: an argument is not one of its values; the message lists them.
        TaskFormatError: the task file breaks the schema.
        DataMissing: the data of the task are not on this machine.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("research_gym:Mini/digits-v0", sandbox="local")  # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)  # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step("print(6 * 7)")  # doctest: +SKIP
        >>> env.close()  # doctest: +SKIP
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # as Gymnasium types it

    def __init__(
        self,
        task: str | Path,
        *,
        sandbox: str | Sandbox = "auto",
        limits: Limits | Mapping[str, Any] | None = None,
        reward: RewardSpec | Mapping[str, Any] | None = None,
        kernel: Literal["jupyter"] = "jupyter",
        isolation: Literal["container"] = "container",
        network: Literal["none"] = "none",
        runtime: str | None = None,
        record: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        _one_of("kernel", kernel, ("jupyter",))
        _one_of("isolation", isolation, ("container",))
        _one_of("network", network, ("none",))
        if not isinstance(sandbox, Sandbox):
            _one_of("sandbox", sandbox, ("auto", "docker", "local"))
        if runtime is not None and not isinstance(runtime, str):
            raise ValueError(f"ResearchEnv(runtime=...): expected the name of a container runtime, found {runtime!r}")
        _one_of("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.render_mode = render_mode
        self.reward_spec = RewardSpec.of(reward)
        self._limits_change = limits
        self._choice = suites.Choice.of(task)
        self.task: Task = self._choice.first()
        """The task of the running episode (before the first reset: the first of the set)."""
        if len(self._choice.ids) == 1:
            ensure_prepared(self.task)
        self.limits = self._limits_of(self.task)
        self._sandbox_wanted = sandbox
        self._runtime = runtime
        self._sandbox: Sandbox | None = sandbox if isinstance(sandbox, Sandbox) else None
        self._recorder = Recorder(record) if record is not None else None
        self._run: EpisodeRun | None = None
        self._ended = True
        longest = max(self.limits.observation_chars, *(len(self._prompt(t)) for t in self._choice.tasks()))
        self.observation_space = Unicode(longest, clean=True)
        self.action_space = Unicode(MAX_ACTION_CHARS)

    # Gymnasium's API: each call drives one generator to its end.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode and returns the task's prompt and `info`.

        Args:
            seed: seeds `np_random`, which draws the task where the id is a set.
            options: `{"task": id}` chooses the task of a set.

        Raises:
            SandboxError: no sandbox came up within `limits.start_timeout_s`; nothing is left behind.
            ValueError: an option is unknown, or names a task outside the set.
        """
        return drive(self.reset_steps(seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs one action: a cell, an edit, `%wait`, `%interrupt` or a submission.

        Returns within the cell's timeout plus `limits.grace_s` and a margin, whatever the cell does.

        Raises:
            ResetNeeded: before the first reset, and after the end of an episode.
            SandboxError: the sandbox failed (never for anything that the agent did); the next `reset` starts a fresh
            one. GraderError: the grader broke, not the submission. TypeError: the action is not a string.
        """
        return drive(self.step_steps(action))

    def render(self) -> str | None:
        """The transcript of the episode so far with `render_mode="ansi"`, else `None`."""
        if self.render_mode is None:
            return None
        return self._run.transcript() if self._run is not None else ""

    def close(self) -> None:
        """Ends the sandbox and everything in it; idempotent, at most 5 s."""
        self._ended = True
        if self._run is not None:
            self._run.close()
        if self._recorder is not None:
            self._recorder.end()

    # The same two calls as generators of waits, for whoever drives many environments at once.

    def reset_steps(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Steps[tuple[str, dict[str, Any]]]:
        """`reset` as a generator of waits."""
        super().reset(seed=seed)
        began = time.monotonic()
        self.close()
        self.task = self._choice.draw(options, self.np_random)
        ensure_prepared(self.task)
        self.limits = self._limits_of(self.task)
        if self._sandbox is None:
            assert isinstance(self._sandbox_wanted, str)
            self._sandbox = choose(self._sandbox_wanted, runtime=self._runtime)
        prompt = self._prompt(self.task)
        run = EpisodeRun(self.task, limits=self.limits, reward=self.reward_spec, prompt=prompt)
        yield from run.open(self._sandbox)
        self._run, self._ended = run, False
        run.reset_info = {"how": "container", "wall_s": time.monotonic() - began, "cached": False}
        if self._recorder is not None:
            self.begin_recording(self._recorder, seed=seed, prompt=prompt)
        return prompt, run.info()

    def step_steps(self, action: str) -> Steps[tuple[str, float, bool, bool, dict[str, Any]]]:
        """`step` as a generator of waits."""
        run = self._run
        if run is None or self._ended:
            raise ResetNeeded("step() needs a running episode: call reset() first, and after terminated or truncated")
        if not isinstance(action, str):
            raise TypeError(f"action: expected str (a notebook cell), found {type(action).__name__}")
        try:
            outcome: StepOutcome = yield from run.step(action)
        except ResearchGymError as error:
            if self._recorder is not None:
                self._recorder.fault(action, error)
            self.close()
            raise
        if self._recorder is not None:
            self._recorder.step(action, outputs=run.cell.outputs, **vars(outcome))
        if outcome.terminated or outcome.truncated:
            self._ended = True
            run.close()
        return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, outcome.info

    @property
    def last_cell(self) -> CellResult:
        """The last cell with its outputs as the kernel sent them (images too); an empty result before the first."""
        return self._run.cell if self._run is not None else CellResult.none()

    def fault_info(self, error: ResearchGymError) -> dict[str, Any]:
        """The `info` of a step that `error` ended: the usual keys, with `fault` saying `kind: message`."""
        run = self._run or EpisodeRun(self.task, limits=self.limits, reward=self.reward_spec, prompt="")
        return run.info() | {"fault": f"{getattr(error, 'kind', 'error')}: {error}"}

    def begin_recording(self, recorder: Recorder, *, seed: int | None, prompt: str) -> None:
        """Begins a recording of the episode that `reset` has just started."""
        sandbox = self._sandbox.name if self._sandbox is not None else ""
        known = suites.shipped().get(self.task.id) == self.task.path
        recorder.begin(self.task, seed=seed, prompt=prompt, limits=self.limits, sandbox=sandbox, shipped=known)

    def _limits_of(self, task: Task) -> Limits:
        return Limits.of(self._limits_change, base=Limits.of(task.limits))

    def _prompt(self, task: Task) -> str:
        return first_observation(task, self._limits_of(task))


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"ResearchEnv({name}=...): expected one of {', '.join(map(repr, allowed))}, found {value!r}")

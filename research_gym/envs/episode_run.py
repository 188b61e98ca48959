"""One episode: actions in, outcomes out, over one sandbox session."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from research_gym.action import Edit, Execute, Interrupt, Invalid, Submit, Wait, parse
from research_gym.cell import CellResult, render
from research_gym.datastore import agent_dir
from research_gym.edit import apply_edit
from research_gym.envs import notices
from research_gym.envs.judge import Judge
from research_gym.episode import EpisodeResult
from research_gym.errors import FileRefused
from research_gym.grading.score import Score
from research_gym.landmark import LandmarkState
from research_gym.limits import MIB, Limits
from research_gym.reward import RewardSpec, RewardTerms, terms
from research_gym.sandbox.base import Bind, Sandbox, SandboxSpec
from research_gym.sandbox.session import Session
from research_gym.sandbox.waiting import Steps
from research_gym.task import AnswerGrading, Task
from research_gym.text import clip

MAX_EDIT_BYTES = 4 * MIB
_LIFE_MARGIN_S = 60.0
"""Pid 1 outlives the episode by so much, so that the end of an episode's life is a truncation and no lost sandbox."""


@dataclass(frozen=True)
class StepOutcome:
    """What one step of an episode gave."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class EpisodeRun:
    """The state of one episode and the session it runs in. `open` starts the session, `close` ends it (idempotent)."""

    def __init__(self, task: Task, *, limits: Limits, reward: RewardSpec, prompt: str) -> None:
        self.task = task
        self.limits = limits
        self.reward_spec = reward
        self.judge = Judge(task)
        self.landmarks = LandmarkState.initial(task.landmarks)
        self.steps = 0
        self.restarts = 0
        self.compute_s = 0.0
        self.reward_total = 0.0
        self.score: Score | None = None
        self.result: EpisodeResult | None = None
        self.reset_info: dict[str, Any] = {"how": "", "wall_s": 0.0, "cached": False}
        self._session: Session | None = None
        self._began = time.monotonic()
        self.cell = CellResult.none()
        self._terms = RewardTerms(0.0, 0.0, 0.0)
        self._transcript: list[str] = [prompt] if prompt else []

    @property
    def session(self) -> Session:
        """The live session.

        Raises:
            RuntimeError: before `open` or after `close`.
        """
        if self._session is None:
            raise RuntimeError("the episode has no open session")
        return self._session

    def open(self, sandbox: Sandbox) -> Steps[None]:
        """Starts the sandbox, its kernel, and lays the task's files; on any error nothing is left behind."""
        task = self.task
        binds = (Bind(agent_dir(task.id), task.data.mount),) if task.data is not None else ()
        spec = SandboxSpec(
            workdir=task.workdir,
            limits=replace(self.limits, life_s=self.limits.life_s + self.limits.start_timeout_s + _LIFE_MARGIN_S),
            binds=binds,
            env=dict(task.environment),
            labels={"research_gym.task": task.id},
            hide=task.hide,
        )
        session = yield from sandbox.open(spec)
        try:
            for name, data in task.read_files():
                folder = f"{task.workdir}/{task.repository}" if task.repository else task.workdir
                yield from session.write_file(f"{folder}/{name}", data)
            yield from session.start_kernel()
        except BaseException:
            session.close()
            raise
        self._session = session
        self._began = time.monotonic()

    def close(self) -> None:
        """Ends the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def step(self, text: str) -> Steps[StepOutcome]:
        """Runs one action to its outcome."""
        self.steps += 1
        action = parse(text, shape=self.task.shape)
        before = self.landmarks
        terminated = False
        self.cell = replace(self.cell, **CellResult.IDLE)
        if self._life_left_s() <= 0:  # spent between two steps: nothing is run any more, and the sandbox may be gone
            return self._outcome(text, "", before=before, terminated=False)
        match action:
            case Execute(code):
                observation = yield from self._cell_step(
                    self.session.execute(code, timeout_s=self._time_left_s(), on_timeout=self.limits.on_timeout)
                )
            case Wait():
                observation = yield from self._cell_step(self.session.wait_cell(timeout_s=self._time_left_s()))
            case Interrupt():
                observation = yield from self._cell_step(self.session.interrupt())
            case Edit():
                observation = yield from self._edit(action)
            case Submit():
                observation, terminated = yield from self._submit(action)
            case Invalid(reason):
                observation = reason
        yield from self._look_for_landmarks()
        return self._outcome(text, observation, before=before, terminated=terminated)

    def info(self) -> dict[str, Any]:
        """A fresh `info`: the same keys with the same types at every step."""
        info: dict[str, Any] = {
            "cell": self.cell.to_info(),
            "landmarks": self.landmarks.steps(),
            "landmark_evidence": self.landmarks.evidence(),
            "reward_terms": self._terms.to_info(),
            "score": self.score.value if self.score is not None else float("nan"),
            "fault": "",
            "reset": dict(self.reset_info),
        }
        if self.result is not None:
            info["grade"] = self.score
            info["result"] = self.result
        return info

    def transcript(self) -> str:
        """The prompt, then every action and observation so far."""
        return "\n".join(self._transcript)

    # One action.

    def _life_left_s(self) -> float:
        return self.limits.life_s - (time.monotonic() - self._began)

    def _time_left_s(self) -> float:
        budget = min(self.limits.compute_s - self.compute_s, self._life_left_s())
        return max(0.1, min(self.limits.cell_timeout_s, budget))

    def _cell_step(self, work: Steps[CellResult]) -> Steps[str]:
        try:
            result = yield from work
        except FileRefused as refusal:
            if refusal.code != "not_running":
                raise
            return notices.NOTHING_RUNS
        self.cell = result
        self.compute_s += result.duration_s
        shown = render(
            result.outputs,
            max_chars=self.limits.observation_chars // 2 * 2 - notices.ROOM,
            omitted_bytes=result.omitted_chars,
        )
        self.cell = replace(result, omitted_chars=shown.omitted_chars)
        notes = notices.after_cell(result, self.limits)
        if result.killed or result.status == "died":
            self.restarts += 1
            if self.restarts <= self.limits.kernel_restarts:
                yield from self.session.start_kernel()
            notes.append(notices.restarted(self.restarts, self.limits))
        return notices.join(shown.text, notes)

    def _edit(self, action: Edit) -> Steps[str]:
        path = action.path if action.path.startswith("/") else f"{self.task.workdir}/{action.path}"
        try:
            data = yield from self.session.read_file(path, max_bytes=MAX_EDIT_BYTES)
            edited = apply_edit(data.decode("utf-8"), action)
            yield from self.session.write_file(path, edited.text.encode("utf-8"))
        except UnicodeError:
            return f"Edit refused: {path} is not UTF-8 text."
        except FileRefused as refusal:
            return f"Edit refused: {refusal}"
        except ValueError as refusal:
            return f"Edit refused: {refusal}"
        return edited.feedback

    def _submit(self, action: Submit) -> Steps[tuple[str, bool]]:
        data: bytes | None = None
        if not isinstance(self.task.grading, AnswerGrading):
            try:
                yield from self.session.freeze()
                data = yield from self.judge.collect(self.session)
            except FileRefused as refusal:
                yield from self.session.thaw()
                return notices.refused(refusal.code, str(refusal)), False
        score = yield from self.judge.grade(answer=action.answer, data=data)
        if not score.valid:
            if data is not None:
                yield from self.session.thaw()
            return notices.refused(score.reason, score.message), False
        self.score = score
        return notices.graded(score), True

    def _look_for_landmarks(self) -> Steps[None]:
        if self._session is not None and self.task.landmarks:
            self.landmarks = yield from self.judge.look(
                self.session, self.landmarks, outputs=self.cell.outputs, step=self.steps
            )

    # The end of a step.

    def _outcome(self, action: str, observation: str, *, before: LandmarkState, terminated: bool) -> StepOutcome:
        reason = "" if terminated else self._why_truncated()
        truncated = bool(reason)
        if truncated:
            self.score = self.judge.no_submission()
            observation = notices.join(observation, [f"The episode ends here: {reason}."])
        self._terms = terms(
            self.reward_spec,
            potential_before=before.potential(self.task.landmarks),
            potential=self.landmarks.potential(self.task.landmarks),
            score=self.score.value if self.score is not None else None,
            terminated=terminated,
            truncated=truncated,
        )
        self.reward_total += self._terms.total
        observation = clip(observation, max_chars=self.limits.observation_chars)
        self._transcript += [f"[{self.steps}] {action}", observation]
        if terminated or truncated:
            self.result = self._finish("submitted" if terminated else reason)
        return StepOutcome(observation, self._terms.total, terminated, truncated, self.info())

    def _why_truncated(self) -> str:
        if self.restarts > self.limits.kernel_restarts:
            return f"the kernel died {self.restarts} times"
        if self.compute_s >= self.limits.compute_s:
            return f"{self.limits.compute_s:g} s of cell time are used up"
        if self._life_left_s() <= 0:
            return f"{self.limits.life_s:g} s have passed"
        if self.steps >= self.limits.max_steps:
            return f"{self.limits.max_steps} actions are used up"
        return ""

    def _finish(self, reason: str) -> EpisodeResult:
        assert self.score is not None
        return EpisodeResult(
            task=self.task.id,
            reason=reason,
            steps=self.steps,
            reward_total=self.reward_total,
            score=self.score.value,
            metric=self.score.metric,
            raw=self.score.raw,
            landmarks=self.landmarks.steps(),
            landmark_evidence=self.landmarks.evidence(),
            wall_s=time.monotonic() - self._began,
            compute_s=self.compute_s,
        )

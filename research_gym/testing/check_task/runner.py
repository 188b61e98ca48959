"""Runs all parts of a check: first on the host, then episodes in sandboxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from research_gym.envs.judge import Judge
from research_gym.envs.preparation import ensure_prepared
from research_gym.envs.research_env import ResearchEnv
from research_gym.envs.suites import Choice
from research_gym.errors import DataMissing, GraderError, ResearchGymError, SandboxError, TaskFormatError
from research_gym.sandbox.base import Sandbox
from research_gym.sandbox.choose import choose
from research_gym.task import AnswerGrading, Task
from research_gym.testing.check_task import grades, unreachable
from research_gym.testing.check_task.report import TaskReport
from research_gym.training.policies import ReferencePolicy
from research_gym.training.rollout import Episode, run_episode

AT_ONCE = 2
"""Tasks that are checked at a time, each with one sandbox."""
_SCORE_TOLERANCE = 1e-9
_TAIL_CHARS = 300


def check_tasks(
    tasks: Sequence[Task],
    *,
    sandbox: str | Sandbox = "auto",
    on_report: Callable[[TaskReport], None] | None = None,
) -> list[TaskReport]:
    """Checks several tasks, two at a time, and returns their reports in the same order.

    Args:
        tasks: the tasks.
        sandbox: where episodes run.
        on_report: called from this thread with each report as it comes.
    """
    chosen = choose(sandbox)
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="check")
    try:
        work = {pool.submit(check_task, task, sandbox=chosen): number for number, task in enumerate(tasks)}
        done: dict[int, TaskReport] = {}
        for future in as_completed(work):
            done[work[future]] = future.result()
            if on_report is not None:
                on_report(future.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [done[number] for number in range(len(tasks))]


def check_task(task: Task | str | Path, *, sandbox: str | Sandbox = "auto") -> TaskReport:
    """Checks that a task can be learned from, and that its reward cannot be had for nothing.

    - gold: the labels (or the gold answer) earn 1 from the real grader.
    - trivial: the task's baselines earn 0, and the best of them is where `worst` comes from; an answer without content
      earns 0.
    - defects: files that break the format are refused with their codes.
    - unreachable: neither the agent's data nor anything readable inside a fresh sandbox (files, environments, command
      lines) holds a run of labels or the gold answer. Labels that are encoded or reordered are not found.
    - noop: `pass` and `%submit` reach no landmark and are not graded.
    - reference: the reference solution reaches every landmark, is graded, and beats the trivial models; an answer earns
      1.
    - stable: a second run of it gets the same score.

    Needs three sandboxes, one after the other. What the sandbox or the grader break is a failure in the report too.

    Args:
        task: a task, a registered id, or the path of a task file.
        sandbox: where episodes run.

    Raises:
        ValueError: no task has that id.
        TaskFormatError: the task file breaks the schema.
    """
    if not isinstance(task, Task):
        task = Choice.of(task).first()
    judge = Judge(task)
    report = TaskReport(task.id, judge.metric, judge.lower_is_better)
    try:
        ensure_prepared(task)
        report = _on_the_host(task, report)
    except (DataMissing, TaskFormatError) as error:
        return _failed(report, [f"data: {error}"])
    except GraderError as error:
        return _failed(report, [f"grader: {error}"])
    try:
        chosen = choose(sandbox)
        report = _noop(task, report, sandbox=chosen)
        return _reference(task, report, sandbox=chosen)
    except SandboxError as error:
        return _failed(report, [f"sandbox: {error}"])
    except ResearchGymError as error:
        return _failed(report, [f"grader: {error}"])


def _failed(report: TaskReport, failures: Iterable[str]) -> TaskReport:
    return replace(report, failures=(*report.failures, *failures))


def _on_the_host(task: Task, report: TaskReport) -> TaskReport:
    limits = grades.bounds(task)
    gold = grades.gold(task)
    trivial = grades.trivial(task)
    report = replace(
        report,
        worst=limits.worst,
        optimal=limits.optimal,
        gold=gold.value,
        trivial=max((score.value for score in trivial.values()), default=None),
    )
    if not gold.valid:
        report = _failed(report, [f"gold: the labels are refused ({gold.reason}): {gold.message}"])
    elif gold.value != 1.0:
        report = _failed(report, [f"gold: expected 1.0 for the labels themselves, found {gold.value:.6g}"])
    report = _failed(report, grades.trivial_failures(task, trivial))
    report = _failed(report, grades.defect_failures(task))
    return _failed(report, unreachable.leaks_in_data(task))


def _environment(task: Task, sandbox: Sandbox, **limits: float) -> ResearchEnv:
    return ResearchEnv(task.path, sandbox=sandbox, limits=limits)


def _noop(task: Task, report: TaskReport, *, sandbox: Sandbox) -> TaskReport:
    """Does nothing, submits nothing, then searches the sandbox from inside."""
    env = _environment(task, sandbox, cell_timeout_s=unreachable.SEARCH_S + 60.0)
    failures = []
    try:
        env.reset(seed=0)
        terminated = False
        for action in ("pass", "%submit"):
            _, reward, terminated, truncated, info = env.step(action)
            if reward > 0:
                failures.append(f"noop: expected no reward for {action!r}, found {reward:.6g}")
            if terminated or truncated:
                break
        gained = [name for name, step in info["landmarks"].items() if step >= 0]
        failures += [f"noop: the landmark {name!r} is reached by doing nothing" for name in gained]
        score = 0.0 if math.isnan(info["score"]) else info["score"]
        searched = ""
        if terminated:
            failures.append("noop: a submission of nothing was graded instead of refused")
        else:
            found, searched = unreachable.search_inside(env)
            failures += found
    finally:
        env.close()
    return _failed(replace(report, noop=score, searched=searched), failures)


def _reference(task: Task, report: TaskReport, *, sandbox: Sandbox) -> TaskReport:
    """Plays the reference solution twice."""
    if task.reference is None:
        return _failed(report, ["reference: expected a reference solution, the task file names none"])
    env = _environment(task, sandbox)
    try:
        first = run_episode(env, ReferencePolicy(task), seed=0)
        failures = _reference_failures(task, first, trivial=report.trivial or 0.0)
        if failures:
            return _failed(report, failures)
        second = run_episode(env, ReferencePolicy(task), seed=0)
    finally:
        env.close()
    scores = [float(episode.info["score"]) for episode in (first, second)]
    if not abs(scores[0] - scores[1]) <= _SCORE_TOLERANCE:
        return _failed(report, [f"stable: two runs of the reference scored {scores[0]!r} and {scores[1]!r}"])
    return report


def _reference_failures(task: Task, episode: Episode, *, trivial: float) -> list[str]:
    if not episode.terminated:
        last = episode.turns[-1].observation.strip()[-_TAIL_CHARS:] if episode.turns else "no step"
        how = "was cut off" if episode.truncated else "ended without a graded submission"
        return [f"reference: the episode {how}; it last saw: {last}"]
    evidence = episode.info["landmark_evidence"]
    failures = [f"reference: the landmark {name!r} is not reached" for name, kind in evidence.items() if kind == "none"]
    score = float(episode.info["score"])
    if isinstance(task.grading, AnswerGrading) and score != 1.0:
        failures.append(f"reference: expected score 1.0, found {score:.6g}")
    elif score <= trivial:
        failures.append(f"reference: expected a score over that of trivial models, {trivial:.6g}, found {score:.6g}")
    return failures

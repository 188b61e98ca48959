"""`run` and `replay`: one episode played, and a recorded one played again."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from research_gym.cli.group import json_option, main, sandbox_option, say


@main.command()
@click.argument("task_id", metavar="ID|FILE.yaml")
@click.option("--policy", default="reference", show_default=True, help="reference, random, or a notebook FILE.ipynb.")
@sandbox_option
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quiet", is_flag=True, help="Only the result.")
@json_option
def run(task_id: str, policy: str, sandbox: str, seed: int, quiet: bool, as_json: bool) -> None:
    """Plays one episode of a task and shows observations, landmarks and reward terms."""
    import gymnasium

    import research_gym  # noqa: F401  # registers the environments
    from research_gym.envs.research_env import ResearchEnv
    from research_gym.envs.suites import Choice
    from research_gym.training.policies import NotebookPolicy, Policy, RandomPolicy, ReferencePolicy
    from research_gym.training.rollout import Turn, run_episode

    console = Console(stderr=as_json, highlight=False)
    Choice.of(task_id.removeprefix("research_gym:"))  # an unknown id is one sentence with the nearest one
    file = task_id.endswith((".yaml", ".yml"))
    env: gymnasium.Env[str, str] = (
        ResearchEnv(task_id, sandbox=sandbox) if file else gymnasium.make(task_id, sandbox=sandbox)
    )
    try:
        task = env.get_wrapper_attr("task")
        chosen: Policy
        if policy == "reference":
            chosen = ReferencePolicy(task)
        elif policy == "random":
            chosen = RandomPolicy(seed)
        elif policy.endswith(".ipynb") and Path(policy).is_file():
            chosen = NotebookPolicy(policy)
        else:
            raise click.BadParameter(f"expected reference, random or a notebook file, found {policy!r}")
        count = 0

        def show(turn: Turn) -> None:
            nonlocal count
            count += 1
            if quiet:
                return
            console.rule(f"step {count}", align="left")
            console.print(turn.action, style="cyan", markup=False)
            console.print(turn.observation or "(no output)", markup=False)
            landmarks = {key: step for key, step in turn.info["landmarks"].items() if step >= 0}
            console.print(
                f"reward {turn.reward:+.4f}  terms {turn.info['reward_terms']}  landmarks {landmarks}",
                style="green" if turn.reward > 0 else "dim",
                markup=False,
            )

        console.print(f"{task_id}: {task.title}", style="bold", markup=False)
        episode = run_episode(env, chosen, seed=seed, on_turn=show)
    finally:
        env.close()
    result = episode.info.get("result")
    summary = {
        "task": task_id,
        "policy": policy,
        "steps": len(episode.turns),
        "reward": episode.reward_total,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "result": json.loads(result.to_json()) if result is not None else None,
    }
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        console.rule(align="left")
        score = "not graded" if result is None else f"score {result.score:.4f} ({result.metric} {result.raw})"
        console.print(f"{score}, reward {episode.reward_total:.4f} in {len(episode.turns)} steps", style="bold")


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--sandbox", type=click.Choice(["auto", "local", "docker"]), help="By default the recorded one.")
@json_option
def replay(file: Path, sandbox: str | None, as_json: bool) -> None:
    """Executes a recording (.jsonl or .ipynb) again and names the first cell whose output differs.

    Addresses, clock times, durations, process ids and temporary paths may differ. Exits with 1 if anything else does.
    """
    from research_gym.training.replay import replay as play_again

    def on_step(number: int, action: str) -> None:
        lines = action.strip().splitlines() or [""]
        say(f"cell {number}: {lines[0][:100]}{' ...' if len(lines) > 1 else ''}")

    report = play_again(file, sandbox=sandbox, on_step=on_step)
    found = report.divergence
    if as_json:
        divergence = None
        if found is not None:
            divergence = {
                "cell": found.step,
                "action": found.action,
                "recorded": found.recorded,
                "found": found.found,
            }
        summary = {"task": report.task, "sandbox": report.sandbox, "cells": report.steps, "divergence": divergence}
        click.echo(json.dumps(summary, indent=2))
    elif found is None:
        click.echo(f"{report.task}: {report.steps} cells, no divergence")
    else:
        recorded, now = found.first_difference()
        click.echo(f"{report.task}: cell {found.step} differs\n  recorded: {recorded}\n  found:    {now}")
    if found is not None:
        raise SystemExit(1)

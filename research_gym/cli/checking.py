"""`check`: whether tasks are fit to train on."""

from __future__ import annotations

import click

from research_gym.cli.group import json_option, main, sandbox_option, say, show
from research_gym.cli.tasks import set_name


@main.command()
@click.argument("names", nargs=-1, metavar="[SUITE/ | ID | TASK.yaml]...")
@sandbox_option
@json_option
def check(names: tuple[str, ...], sandbox: str, as_json: bool) -> None:
    """Checks tasks: labels earn 1, nothing and trivial models 0, the reference solves it, labels are out of reach.

    Prints a row per task and exits with 1 unless all are ok. Without names: every shipped task whose data are here.
    """
    from research_gym.datastore import is_prepared
    from research_gym.envs.suites import Choice, shipped
    from research_gym.testing.check_task import TaskReport, check_tasks

    wanted = names or tuple(task_id for task_id in shipped() if is_prepared(task_id))
    tasks = {task.path: task for name in wanted for task in Choice.of(set_name(name)).tasks()}
    if not tasks:
        raise click.UsageError("no task is prepared: name some, or run `research-gym prepare --all` first")
    done = 0

    def on_report(report: TaskReport) -> None:
        nonlocal done
        done += 1
        say(f"[{done}/{len(tasks)}] {report.task}: {'ok' if report.ok else 'FAILED'}")

    reports = check_tasks(list(tasks.values()), sandbox=sandbox, on_report=on_report)
    show([report.to_row() for report in reports], as_json=as_json)
    if not all(report.ok for report in reports):
        raise SystemExit(1)

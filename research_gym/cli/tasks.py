"""`list` and `prepare`: which tasks there are, and their data."""

from __future__ import annotations

import click

from research_gym.cli.group import json_option, main, say, show
from research_gym.errors import DataMissing


@main.command("list")
@click.option("--suite", help="Only this suite, e.g. Mini.")
@json_option
def list_tasks(suite: str | None, as_json: bool) -> None:
    """Lists the tasks."""
    from research_gym.datastore import is_prepared
    from research_gym.envs.suites import Choice, shipped, suite_of

    rows = []
    for task_id in shipped():
        if suite is None or suite_of(task_id) == suite:
            task = Choice.of(task_id).first()
            rows.append(
                {
                    "id": task_id,
                    "title": task.title,
                    "shape": task.shape,
                    "category": task.category,
                    "difficulty": task.difficulty,
                    "prepared": is_prepared(task_id),
                }
            )
    if suite is not None and not rows:
        suites = sorted({suite_of(task_id) for task_id in shipped()})
        raise ValueError(f"unknown suite {suite!r}; known: {', '.join(suites)}")
    show(rows, as_json=as_json)


@main.command()
@click.argument("ids", nargs=-1, metavar="[SUITE/ | ID | TASK.yaml]...")
@click.option("--all", "everything", is_flag=True, help="Every task that needs no download and no --source.")
@click.option("--force", is_flag=True, help="Make the data again even where they are there and undamaged.")
@click.option("--source", help="Of AIRS tasks: hub (the default), qm9pack, or a folder of saved data sets.")
@json_option
def prepare(ids: tuple[str, ...], everything: bool, force: bool, source: str | None, as_json: bool) -> None:
    """Makes the data of tasks: agent data and labels, in different folders.

    Goes on where it was stopped: a task is made in one piece or not at all, and one that is there already is only
    compared with its checksums. Exits with 1 if a named task could not be prepared; the others are.
    """
    from research_gym.datastore import agent_dir
    from research_gym.envs.preparation import has_far_source, prepare_task
    from research_gym.envs.suites import Choice, shipped

    if not ids and not everything:
        raise click.UsageError("name task ids, or --all")
    tasks = [task for name in (shipped() if everything else ids) for task in Choice.of(set_name(name)).tasks()]
    if everything:
        tasks = [task for task in tasks if not has_far_source(task)]
    rows, failed = [], 0
    for number, task in enumerate(tasks, 1):
        where = f"[{number}/{len(tasks)}] {task.id}"
        why = "asked to" if force or source else _why_prepare(task)
        error = ""
        if why:
            say(f"{where}: preparing ({why})")
            try:
                prepare_task(task, source=source, report=lambda line, where=where: say(f"{where}: {line}"))  # type: ignore[misc]  # the default binds it
            except DataMissing as missing:
                error = str(missing)
                failed += not everything
                say(f"{where}: {'skipped' if everything else 'failed'}: {error}")
        else:
            say(f"{where}: there already")
        rows.append({"id": task.id, "data": str(agent_dir(task.id)), "made": bool(why) and not error, "error": error})
    if as_json or len(rows) > failed:
        show(rows, as_json=as_json)
    if failed:
        raise SystemExit(1)


def set_name(name: str) -> str:
    """`Mini/` stands for the set of all its tasks."""
    return f"{name.removesuffix('/')}/All" if name.endswith("/") else name.removeprefix("research_gym:")


def _why_prepare(task: object) -> str:
    """Why the data of a task have to be made; empty where they are there, current and undamaged."""
    from research_gym.datastore import is_prepared
    from research_gym.envs.preparation import damaged_files, is_stale
    from research_gym.task import Task

    assert isinstance(task, Task)
    if task.data is None:
        return ""
    if not is_prepared(task.id):
        return "its data are not here"
    if is_stale(task):
        return "the files beside the task file have changed"
    damaged = damaged_files(task.id)
    return f"{len(damaged)} file(s) differ from their checksum, first {damaged[0]}" if damaged else ""

"""`doctor` and `gc`: what works on this machine, and what dead processes left on it."""

from __future__ import annotations

import click

from research_gym.cli.group import json_option, main, say, show


@main.command()
@json_option
def doctor(as_json: bool) -> None:
    """Says which sandboxes work here, what each falls back to, and how to mend it."""
    from research_gym.sandbox.docker import DockerSandbox
    from research_gym.sandbox.local import LocalSandbox

    rows = [
        {"sandbox": sandbox.name, "topic": found.topic, "ok": found.ok, "found": found.detail, "mend": found.mend}
        for sandbox in (DockerSandbox(), LocalSandbox())
        for found in sandbox.findings()
    ]
    show(rows, as_json=as_json)


@main.command()
@click.option(
    "--older-than-s", type=float, default=3600.0, show_default=True, help="Age of what is removed, in seconds."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
def gc(older_than_s: float, dry_run: bool, as_json: bool) -> None:
    """Removes what dead processes left: their containers, and folders of data that were never finished.

    Containers of ours whose owner is gone are removed at any age, folders once nothing in them has changed for the
    given time. Nothing of a living process is touched, nor a container whose owner cannot be seen from here.
    """
    from research_gym.datastore import data_home
    from research_gym.sandbox.leftovers import collect

    rows = []
    found = collect(older_than_s=older_than_s, folders=(data_home() / "staging",))
    for note in found.notes:
        say(note)
    for leftover in found.leftovers:
        removed = False if dry_run else leftover.remove()
        rows.append(
            {
                "kind": leftover.kind,
                "name": leftover.name,
                "age_s": round(leftover.age_s, 1),
                "why": leftover.why,
                "removed": removed,
            }
        )
    if as_json or rows:
        show(rows, as_json=as_json)
    else:
        say("nothing is left over")
    if not dry_run and not all(row["removed"] for row in rows):
        raise SystemExit(1)

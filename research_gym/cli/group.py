"""The command that all others hang on, and how rows, progress and errors are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from research_gym.errors import ResearchGymError

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout, the rest on stderr.")
sandbox_option = click.option(
    "--sandbox", type=click.Choice(["auto", "local", "docker"]), default="auto", show_default=True
)


class _Group(click.Group):
    """Shows an error of ours as one sentence with exit status 1; a bug still shows its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ResearchGymError, ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
@click.version_option(package_name="research-gym")
def main() -> None:
    """Research benchmarks as Gymnasium environments."""


def show(rows: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Prints rows as a table, or as one JSON list."""
    rows = list(rows)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for key in rows[0] if rows else ():
        table.add_column(key, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console().print(table)


def say(text: str) -> None:
    """One line of progress, on stderr."""
    click.echo(text, err=True)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)

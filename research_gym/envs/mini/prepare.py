"""Makes the data of Mini tasks: which preparer a task names, and one atomic step from nothing to all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from research_gym.datastore import commit_prepared, staging
from research_gym.envs.mini import forecasts, language, repositories, structures, tabular
from research_gym.errors import TaskFormatError
from research_gym.task import Task

Preparer = Callable[[Task, Path, Path], Mapping[str, Any]]
"""Called with the task, the agent's data folder and the label folder, both empty. It fills them, the same bytes every
time on one machine, and returns the facts that the grader needs: `worst`, `optimal` and `rows` of a file submission,
`gold` of an answer. Raises `DataMissing` where the package that holds the data is not installed."""

PREPARERS: Mapping[str, Preparer] = {
    "digits": tabular.digits,
    "breast-cancer": tabular.breast_cancer,
    "diabetes": tabular.diabetes,
    "us-employment": forecasts.us_employment,
    "co2": forecasts.co2,
    "graph-property": structures.graph_property,
    "molecule-enthalpy": structures.molecule_enthalpy,
    "code-retrieval": language.code_retrieval,
    "table-questions": language.table_questions,
    "mend-perceptron": repositories.mend_perceptron,
    "run-on-cpu": repositories.run_on_cpu,
    "point-to-data": repositories.point_to_data,
    "install-dependency": repositories.install_dependency,
}
"""Name in a task file (`data: {prepare: ...}`) -> preparer."""


def prepare(task: Task) -> None:
    """Makes agent data, labels and facts of a task and stores them in one piece; replaces what was there.

    Raises:
        DataMissing: the package that the data come from is not installed; nothing was changed.
        TaskFormatError: the task names a preparer that does not exist.
    """
    if task.data is None:
        raise TaskFormatError(f"{task.path}: data: expected a mapping with 'mount' and 'prepare', found none")
    name = task.data.prepare
    if name not in PREPARERS:
        near = get_close_matches(name, PREPARERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PREPARERS)}"
        raise TaskFormatError(f"{task.path}: data.prepare: unknown preparer {name!r}; {hint}")
    with staging(task.id) as staged:
        facts = PREPARERS[name](task, staged.data, staged.labels)
        commit_prepared(staged, facts=facts)

"""Finds the installed packages that carry real data. Most are read as files and never imported."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from research_gym.errors import DataMissing


def package_folder(package: str, *, distribution: str) -> Path:
    """Returns the folder of an installed package without importing it.

    Raises:
        DataMissing: it is not installed; the message says how to install it.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(package, distribution)
    return Path(next(iter(spec.submodule_search_locations)))


def data_file(package: str, name: str, *, distribution: str) -> Path:
    """Returns the path of a data file inside an installed package.

    Raises:
        DataMissing: the package is not installed, or this version of it has no such file.
    """
    path = package_folder(package, distribution=distribution) / name
    if not path.is_file():
        raise DataMissing(
            f"expected the file {name} in the package {distribution}, found none at {path}: this version of the "
            f"package carries no such data. Either install another version of {distribution} and prepare again, or set "
            "RESEARCH_GYM_HOME to a folder where the task is prepared already."
        )
    return path


def sklearn_dataset(loader: str, **arguments: Any) -> Any:
    """Loads a data set that ships with scikit-learn.

    Raises:
        DataMissing: scikit-learn is not installed, or comes without its data.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
        return getattr(datasets, loader)(**arguments)
    except (ImportError, FileNotFoundError) as error:
        raise _missing(f"sklearn.datasets ({loader})", "scikit-learn") from error


def _missing(what: str, distribution: str) -> DataMissing:
    return DataMissing(
        f"expected the installed package {distribution}, which this task's data are made from, found no {what}. Either "
        f"`pip install {distribution}` (or 'research-gym[mini]') and prepare again, or set RESEARCH_GYM_HOME to a "
        "folder where the task is prepared already."
    )

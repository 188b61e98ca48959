"""Runs the checks over one sandbox."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace

from research_gym.errors import ResearchGymError
from research_gym.sandbox.base import Sandbox
from research_gym.testing.check_sandbox import (  # noqa: F401  # each registers its checks
    death,
    files,
    hidden,
    lifecycle,
    output,
    resources,
    state,
    stdin,
    timeouts,
    users,
)
from research_gym.testing.check_sandbox.kit import LIMITS, PROBES, Box, Check, CheckFailed, Probe


def names() -> list[str]:
    """The names of all checks, in the order in which they run."""
    return [probe.name for probe in PROBES]


def check_sandbox(
    sandbox: Sandbox, *, select: str | Iterable[str] | None = None, on_check: Callable[[Check], None] | None = None
) -> list[Check]:
    """Tries what every sandbox must do over a live one: files, limits, users, timeouts, output, stdin, death, the end.

    Opens and closes what it needs, leaves nothing behind. A check that fails says what was expected and found; the next
    one goes on in a fresh box. Where the sandbox states that it does not isolate (plain local), those checks are
    listed with `ok=None` and the reason; every other sandbox must pass them all.

    Args:
        sandbox: what to try, e.g. `LocalSandbox()`, or your own.
        select: only the checks whose name contains one of these words (`"timeouts:"`, `"stdin"`).
        on_check: called with each check as it is done.

    Returns:
        One `Check` per check, in order; `[check for check in checks if check.ok is False]` are the broken promises.

    Raises:
        SandboxError: no box came up at all.
        ValueError: nothing is selected.

    Example:
        >>> from research_gym.sandbox.local import LocalSandbox
        >>> checks = check_sandbox(LocalSandbox(), select="roundtrip")  # doctest: +SKIP
        >>> [check.name for check in checks if check.ok is False]  # doctest: +SKIP
        []
    """
    words = [select] if isinstance(select, str) else list(select or ())
    chosen = [probe for probe in PROBES if not words or any(word in probe.name for word in words)]
    if not chosen:
        raise ValueError(f"check_sandbox(select={select!r}): no check has that in its name; see names()")
    checks: list[Check] = []
    shared = Box(sandbox).open()
    try:
        for probe in chosen:
            check, spoiled = _run(probe, sandbox, shared)
            checks.append(check)
            if on_check is not None:
                on_check(check)
            if spoiled:
                shared.close()
                shared = Box(sandbox).open()
    finally:
        shared.close()
    return checks


def _run(probe: Probe, sandbox: Sandbox, shared: Box) -> tuple[Check, bool]:
    """The check, and whether the shared box may be broken now."""
    if probe.isolation and not shared.isolated:
        return Check(probe.name, None, f"not applicable: {probe.isolation}", 0.0), False
    began = time.monotonic()
    ok, detail = True, ""
    try:
        if probe.fresh:
            with Box(sandbox, replace(LIMITS, **probe.limits)) as box:
                probe.body(box)
        else:
            probe.body(shared)
    except CheckFailed as failure:
        ok, detail = False, str(failure)
    except (ResearchGymError, OSError, RuntimeError, ValueError, LookupError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ok, detail = False, f"unexpected {type(error).__name__} ({where.name}): {error}"
    return Check(probe.name, ok, detail, time.monotonic() - began), not ok and not probe.fresh

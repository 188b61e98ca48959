"""`python -m research_gym.testing.check_sandbox local|docker [--select WORD] [--json]`: exits 1 if a check fails."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from research_gym.sandbox.choose import choose
from research_gym.testing.check_sandbox.kit import Check
from research_gym.testing.check_sandbox.runner import check_sandbox


def main() -> int:
    """Runs the checks and prints one line each as they are done."""
    parser = argparse.ArgumentParser(prog="python -m research_gym.testing.check_sandbox", description=__doc__)
    parser.add_argument("sandbox", choices=["local", "docker", "auto"])
    parser.add_argument("--select", action="append", help="only checks whose name contains this word (may be repeated)")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout, the lines on stderr")
    arguments = parser.parse_args()
    lines = sys.stderr if arguments.json else sys.stdout

    def show(check: Check) -> None:
        word = {True: "ok", False: "FAILED", None: "n/a"}[check.ok]
        detail = f"\n        {check.detail}" if check.detail else ""
        print(f"{word:7}{check.duration_s:6.1f} s  {check.name}{detail}", file=lines, flush=True)

    checks = check_sandbox(choose(arguments.sandbox), select=arguments.select, on_check=show)
    failed = sum(check.ok is False for check in checks)
    skipped = sum(check.ok is None for check in checks)
    print(f"{len(checks) - failed - skipped} passed, {failed} failed, {skipped} not applicable", file=lines)
    if arguments.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

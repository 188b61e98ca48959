"""What a step costs: `x = 1` through `env.step`, beside a bare `jupyter_client` round trip to the same ipykernel.

The bare client is a `BlockingKernelClient` in the same sandbox (same Python and ipykernel, over ipc). It awaits reply
and idle and has nothing else to do. Both are measured in turns, so that a busy machine slows both down.

    python benchmarks/step.py                      # local, and docker where an engine answers
    python benchmarks/step.py --sandbox docker --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

import research_gym  # registers the environments
from research_gym.envs.research_env import ResearchEnv
from research_gym.errors import ResearchGymError
from research_gym.sandbox.waiting import drive
from research_gym.testing.tasks import write_answer_task

BARE = """
import json, sys, time
from jupyter_client.manager import KernelManager
rounds = int(sys.argv[1])
manager = KernelManager(kernel_name="python3", transport="ipc")
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
def once():
    began = time.perf_counter()
    sent = client.execute("x = 1")
    while True:
        message = client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") == sent and message["msg_type"] == "status" \\
                and message["content"]["execution_state"] == "idle":
            break
    while client.get_shell_msg(timeout=30)["parent_header"].get("msg_id") != sent:
        pass
    return (time.perf_counter() - began) * 1000
for _ in range(5):
    once()
print(json.dumps([once() for _ in range(rounds)]))
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


@dataclass(frozen=True)
class Args:
    """Settings of one run."""

    sandbox: tuple[str, ...]
    """Which sandboxes."""
    turns: int
    """How often the two take turns."""
    rounds: int
    """Round trips of each per turn."""
    limit: float
    """Largest accepted ratio of the medians."""


@dataclass(frozen=True)
class Row:
    """Medians of one sandbox, in milliseconds."""

    sandbox: str
    step_ms: float
    step_p90_ms: float
    bare_ms: float
    bare_p90_ms: float
    ratio: float
    rounds: int


def measure(sandbox: str, args: Args) -> Row:
    """Takes turns between `env.step` and the bare client in one sandbox."""
    steps: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        task = write_answer_task(Path(folder), limits={"max_steps": 1_000_000})
        env: gymnasium.Env[str, str] = ResearchEnv(task, sandbox=sandbox)
        try:
            env.reset(seed=0)
            for _ in range(5):
                env.step("x = 1")
            for _ in range(args.turns):
                for _ in range(args.rounds):
                    began = time.perf_counter()
                    _, _, _, truncated, info = env.step("x = 1")
                    steps.append((time.perf_counter() - began) * 1000)
                    assert not truncated
                    assert info["cell"]["status"] == "ok", info["cell"]
                bare += _bare(env, args.rounds)
        finally:
            env.close()
    step_ms, bare_ms = statistics.median(steps), statistics.median(bare)
    return Row(sandbox, step_ms, _p90(steps), bare_ms, _p90(bare), step_ms / bare_ms, len(steps))


def _bare(env: gymnasium.Env[str, str], rounds: int) -> list[float]:
    """Runs the bare client in the env's own sandbox, beside its kernel."""
    session = env.unwrapped._run.session  # type: ignore[attr-defined]  # the benchmark looks under the hood on purpose
    done = drive(session.run(["python3", "-c", BARE, str(rounds)], timeout_s=120))
    if done.exit_code != 0:
        raise RuntimeError(f"the bare client failed: {done.stderr!r}")
    return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]


def main() -> int:
    """Prints a row per sandbox; exits 1 where a ratio is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", action="append", choices=["local", "docker"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--limit", type=float, default=1.6, help="largest accepted ratio of the medians")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout, the rest on stderr")
    parsed = parser.parse_args()
    args = Args(tuple(parsed.sandbox or ("local", "docker")), parsed.turns, parsed.rounds, parsed.limit)
    rows: list[dict[str, Any]] = []
    for sandbox in args.sandbox:
        try:
            row = measure(sandbox, args)
        except ResearchGymError as error:
            print(f"{sandbox}: not measured: {error}", file=sys.stderr)
            continue
        rows.append(row.__dict__ | {"ok": row.ratio <= args.limit})
        print(
            f"{sandbox}: env.step {row.step_ms:.2f} ms (p90 {row.step_p90_ms:.2f}), bare "
            f"jupyter_client {row.bare_ms:.2f} ms "
            f"(p90 {row.bare_p90_ms:.2f}), ratio {row.ratio:.2f} over {row.rounds} round "
            f"trips each; limit {args.limit:g}",
            file=sys.stderr if parsed.json else sys.stdout,
        )
    if parsed.json:
        print(json.dumps({"version": getattr(research_gym, "__version__", ""), "rows": rows}, indent=2))
    return 0 if rows and all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The environment variables of agent processes: a short list, the same in every sandbox, and nothing of the host's."""

from __future__ import annotations

import math

from research_gym.sandbox.base import SandboxSpec

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT")


def agent_env(spec: SandboxSpec, *, home: str, path: str) -> dict[str, str]:
    """The complete environment of the kernel and of commands; `spec.env` is added last and may change any of it.

    No terminal, pager, editor or password prompt may ever wait for input, and thread pools follow the CPU limit,
    because libraries count the host's cores and oversubscribe.

    Args:
        spec: The limits and the task's own variables.
        home: Writable home folder of the agent.
        path: `PATH` inside the sandbox.
    """
    threads = str(max(1, math.floor(spec.limits.cpus)))
    return {
        "PATH": path,
        "HOME": home,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "LINES": "40",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MANPAGER": "cat",
        "EDITOR": "true",
        "VISUAL": "true",
        "GIT_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "DEBIAN_FRONTEND": "noninteractive",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_PROGRESS_BAR": "off",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_MININTERVAL": "1",
        "IPYTHONDIR": f"{home}/.ipython",
        **dict.fromkeys(_THREADS, threads),
        **spec.env,
    }

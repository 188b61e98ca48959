"""The kernel's own process: which program an installed kernelspec names, and how it is started for the driver."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

_MAX_SOCKET_PATH = 90


class StartError(Exception):
    """The kernel cannot be started; the message goes to the host."""


class Program(NamedTuple):
    """What a kernelspec says."""

    argv: list[str]
    interrupt_mode: str
    env: dict[str, str]
    is_python: bool


def find_program(name: str) -> Program:
    """Looks up an installed kernelspec.

    Raises:
        StartError: there is none of that name, or what it needs is not installed.
    """
    if name == "python3":  # without a look at jupyter_client, whose import takes as long as the kernel's own start
        if importlib.util.find_spec("ipykernel") is None:
            raise StartError(
                f"ipykernel is missing from this image or environment: {sys.executable} cannot import it; "
                "install ipykernel there, or use an image that has it"
            )
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return Program([*argv, "--HistoryManager.enabled=False"], "signal", {}, True)
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError as error:
        raise StartError(f"kernelspec {name!r} needs jupyter_client in this image or environment: {error}") from error
    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel as error:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise StartError(f"no kernelspec {name!r} is installed here; there are: {known}") from error
    is_python = spec.language.lower() == "python"
    argv = list(spec.argv)
    if any("ipykernel" in part for part in argv):
        argv.append("--HistoryManager.enabled=False")
    return Program(argv, str(spec.interrupt_mode), dict(spec.env), is_python)


def private_folder() -> str:
    """A folder that only this user enters, for the connection file and the sockets; in TMPDIR if that is short."""
    folder = tempfile.mkdtemp(prefix="rg-")
    if len(folder) > _MAX_SOCKET_PATH:  # a socket's path has room for 107 bytes
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="rg-", dir="/tmp")
    return folder


def launch(program: Program, *, folder: str, key: str) -> subprocess.Popen[bytes]:
    """Starts the kernel in a session of its own, with its sockets in `folder`.

    Raises:
        StartError: the program cannot be executed.
    """
    path = os.path.join(folder, "connection.json")
    connection = {
        "transport": "ipc",
        "ip": os.path.join(folder, "k"),
        "shell_port": 1,
        "iopub_port": 2,
        "stdin_port": 3,
        "control_port": 4,
        "hb_port": 5,
        "key": key,
        "signature_scheme": "hmac-sha256",
        "kernel_name": "",
    }
    with open(path, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(connection, file)
    env = {**os.environ, **program.env}
    env.pop("JPY_PARENT_PID", None)  # with it a kernel whose parent is pid 1 takes itself for an orphan and exits
    libc = ctypes.CDLL(None)
    try:
        return subprocess.Popen(
            [part.replace("{connection_file}", path) for part in program.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=env,
            start_new_session=True,  # so that SIGINT to its group reaches the processes of a cell
            preexec_fn=lambda: libc.prctl(1, int(signal.SIGKILL), 0, 0, 0),
        )
    except OSError as error:
        raise StartError(f"the kernel's program did not start: {error}") from error

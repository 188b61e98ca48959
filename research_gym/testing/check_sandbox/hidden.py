"""What the agent must not see or reach: the network, the host's environment, files and processes."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import research_gym
from research_gym.testing.check_sandbox.kit import Box, expect, probe, token

_PLAIN = "plain local shares files, processes and network with the user who started it"


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@probe("hidden")
def the_hosts_environment_is_absent(box: Box) -> None:
    """A secret of the trainer is in no environment of the sandbox, whoever reads it. Opens a second box for it."""
    mark = token()
    with _environment("RGCHECK_SECRET_TOKEN", mark), Box(box.sandbox, box.limits) as other:
        out = other.text("import os; print(dict(os.environ))")
        expect(mark not in out, "expected the host's variable not to be in os.environ")
        out = other.cell("!cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'").text
        if not other.isolated:
            out = other.text(
                "import os; print(open('/proc/self/environ').read(), open(f'/proc/{os.getppid()}/environ').read())"
            )
        expect(mark not in out, "expected the host's variable in no process of the sandbox")


@probe("hidden", isolation=_PLAIN)
def the_hosts_files_are_invisible(box: Box) -> None:
    """Temporary files, homes, and the checkout or installation of this package on the host."""
    with tempfile.NamedTemporaryFile(prefix="rgcheck") as temporary:
        mine = Path(research_gym.__file__).resolve()
        paths = [
            temporary.name,
            str(Path.home() / ".bashrc"),
            *(
                str(path)
                for path in (mine.parents[1] / "pyproject.toml", mine.parent / "envs", mine.parent / "grading")
            ),
            *("/var/run/docker.sock", "/run/docker.sock", "/etc/shadow", "/etc/machine-id"),
        ]
        out = box.text(
            f"import os\nfor path in {paths!r}:\n    if os.path.isdir(path) or os.access(path, os.R_OK): print(path)"
        )
    expect(out == "", f"expected none of them, found {out!r}")


@probe("hidden", isolation=_PLAIN)
def homes_and_server_data_are_empty(box: Box) -> None:
    """Nothing to read below /root, /home and the like, beside the agent's own folders and the interpreter."""
    out = box.text(
        "import os, sys, sysconfig\n"
        "own = (os.path.expanduser('~'), os.getcwd(), '/home/ubuntu', sys.prefix, sys.base_prefix,\n"
        "       *sysconfig.get_paths().values())\n"
        "own += tuple(map(os.path.realpath, own))\n"
        "for top in ('/root', '/home', '/mnt', '/media', '/srv', '/opt', '/var/lib/docker', '/host', '/boot'):\n"
        "    for folder, folders, names in os.walk(top):\n"
        "        if folder.startswith(own): folders.clear()\n"
        "        elif names: print(folder, names[:3])"
    )
    expect(out == "", f"expected no file there, found {out!r}")


@probe("hidden", isolation=_PLAIN)
def the_hosts_processes_are_invisible(box: Box) -> None:
    """The trainer's own number is free or somebody else's in there."""
    mark = f"{os.getpid()}"
    out = box.text(
        "import os\n"
        "lines = []\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: lines.append(open(f'/proc/{pid}/cmdline', 'rb').read().replace(b'\\0', "
        "b' ').decode('utf-8', 'replace'))\n"
        "    except OSError: pass\n"
        "print(len(lines)); print(*lines, sep='\\n')"
    )
    count = int(out.splitlines()[0])
    expect(count < 30, f"expected a handful of processes, found {count}")
    own = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    expect(own not in out or not own, f"expected the host's process {mark} not to be listed")


@probe("hidden", isolation=_PLAIN)
def there_is_no_network(box: Box) -> None:
    """No interface but loopback, no route, no name service; a connection fails at once."""
    seen = box.cell(
        "import os, socket\n"
        "print([n for n in os.listdir('/sys/class/net') if n != 'lo'] if os.path.isdir('/sys/class/net') else [])\n"
        "print([l.split(':')[0].strip() for l in "
        "open('/proc/net/dev').read().splitlines()[2:] if not l.strip().startswith('lo:')])\n"
        "for address in (('1.1.1.1', 53), ('169.254.169.254', 80), ('172.17.0.1', 80), ('8.8.8.8', 443)):\n"
        "    try: socket.create_connection(address, timeout=3).close(); print('connected', address)\n"
        "    except OSError: pass\n"
        "for name in ('example.org', 'host.docker.internal'):\n"
        "    try: print('resolved', socket.getaddrinfo(name, 80))\n"
        "    except OSError: pass",
        timeout_s=25,
    )
    expect(
        seen.result.status == "ok" and seen.text.split() in (["[]", "[]"],), f"expected no network at all, found {seen}"
    )
    expect(seen.wall_s < 10, f"expected every try to fail at once, found {seen.wall_s:.1f} s")


@probe("hidden", isolation=_PLAIN)
def the_hosts_loopback_and_abstract_sockets_are_unreachable(box: Box) -> None:
    """A port of the host's 127.0.0.1 and a name in its abstract socket namespace."""
    mark = token()
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"\0{mark}")
    unix.listen()
    reached: list[str] = []

    def accept(server: socket.socket, name: str) -> None:
        try:
            server.accept()
            reached.append(name)
        except OSError:
            pass

    for server, name in ((tcp, "tcp"), (unix, "unix")):
        threading.Thread(target=accept, args=(server, name), daemon=True).start()
    try:
        box.text(
            "import socket\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', "
            f"{tcp.getsockname()[1]})), (socket.AF_UNIX, '\\0{mark}')):\n"
            "    s = socket.socket(family); s.settimeout(2)\n"
            "    try: s.connect(address)\n"
            "    except OSError: pass\n"
            "    finally: s.close()"
        )
    finally:
        for server in (tcp, unix):
            server.close()
    expect(not reached, f"expected neither to be reached, found {reached}")


@probe("hidden")
def loopback_inside_works(box: Box) -> None:
    """Local servers in a cell are ordinary research code."""
    out = box.text(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0)); client = "
        "socket.create_connection(server.getsockname(), timeout=5)\n"
        "peer, _ = server.accept(); peer.sendall(b'hello'); print(client.recv(5).decode())\n"
        "for s in (server, client, peer): s.close()"
    )
    expect(out == "hello", f"expected loopback to work, found {out!r}")


@probe("hidden")
def the_kernels_source_does_not_ship_tasks_or_graders(box: Box) -> None:
    """The package itself is not importable beyond what runs in the kernel."""
    if not box.isolated:
        return
    out = box.text(
        "import importlib.util\n"
        "for name in ('research_gym.grading', 'research_gym.envs', 'research_gym.task', 'research_gym.datastore'):\n"
        "    try: found = importlib.util.find_spec(name)\n"
        "    except ImportError: found = None\n"
        "    if found: print(name, found.origin)"
    )
    expect(out == "", f"expected none of them, found {out!r}")


@probe("hidden", fresh=True)
def one_box_leaves_nothing_for_the_next(box: Box) -> None:
    """Files in every writable place, startup files, history, and processes: a second box finds none of them."""
    mark = token()
    box.cell(
        "import os, subprocess\n"
        "home = os.path.expanduser('~')\n"
        "for place in ('.', '/tmp', '/var/tmp', '/dev/shm', '/run', home, home + "
        "'/.ipython/profile_default/startup', home + '/.config', home + '/.local'):\n"
        "    try:\n"
        "        os.makedirs(place, exist_ok=True)\n"
        f"        open(os.path.join(place, '{mark}.py'), 'w').write('planted = 1')\n"
        "    except OSError: pass\n"
        f"_ = subprocess.Popen(['bash', '-c', 'exec -a {mark} sleep 999'], start_new_session=True)"
    )
    isolated = box.isolated
    box.close()
    with Box(box.sandbox, box.limits) as other:
        expect(
            other.text("print('planted' in globals())") == "False", "expected no startup file of the last box to run"
        )
        places = ". /tmp /var/tmp /dev/shm /run ~" if isolated else ". ~ /dev/shm"
        out = other.text(
            f'import os; os.system(\'find {places} -name "{mark}*" 2>/dev/null > '
            f"found.txt'); print(open('found.txt').read())"
        )
        expect(out == "", f"expected no file of the last box, found {out!r}")
        other.gone(mark)

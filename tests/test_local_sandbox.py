"""The local sandbox end to end: what the agent finds there, what it must not reach, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import research_gym
from research_gym.errors import FileRefused, SandboxError, SandboxLost, SandboxStartError
from research_gym.kernel import seccomp
from research_gym.limits import MIB, Limits
from research_gym.sandbox import local, local_root
from research_gym.sandbox.base import Bind, SandboxSpec
from research_gym.sandbox.choose import choose
from research_gym.sandbox.local import LocalSandbox
from research_gym.sandbox.session import RunResult, Session
from research_gym.sandbox.waiting import drive

LIMITS = Limits(disk_bytes=8 * MIB, shm_bytes=4 * MIB, processes=64, start_timeout_s=60)
NO_NAMESPACES = drive(local._probe())
isolated = pytest.mark.skipif(bool(NO_NAMESPACES), reason=f"no namespaces here: {NO_NAMESPACES}"[:300])


def open_session(isolation: local.Isolation = "namespaces", **changes: Any) -> Session:
    spec = SandboxSpec(**({"limits": LIMITS} | changes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return drive(LocalSandbox(isolation=isolation).open(spec))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One isolated session for all that leaves it as it was. Its prefix hides the data of scikit-learn."""
    data = tmp_path_factory.mktemp("data")
    (data / "train.csv").write_text("a,b\n1,2\n")
    (data / "link").symlink_to("/etc/passwd")
    data.chmod(0o755)
    os.environ["RESEARCH_GYM_CANARY"] = "canary-4711"
    try:
        opened = open_session(
            workdir="/home/ubuntu",
            binds=(Bind(data, "/home/ubuntu/data"),),
            env={"TASK": "t"},
            hide=("sklearn/datasets/data",),
        )
    finally:
        del os.environ["RESEARCH_GYM_CANARY"]
    # What these tests try would hit this machine if it were not so.
    assert opened.isolated
    with opened:
        yield opened


def sh(session: Session, script: str, **options: Any) -> RunResult:
    return drive(session.run(["bash", "-c", script], **options))


def py(session: Session, code: str) -> Any:
    """Runs Python as the agent; the code sets `said`, which comes back."""
    done = drive(session.run([sys.executable, "-I", "-c", f"{code}\nimport json; print(json.dumps(said))"]))
    assert done.exit_code == 0, done
    return json.loads(done.stdout)


@isolated
def test_agent_is_nobody_with_no_rights(session: Session) -> None:
    said = py(
        session, "said = {line.partition(':')[0]: line.partition(':')[2].strip() for line in open('/proc/self/status')}"
    )
    assert said["Uid"].split() == said["Gid"].split() == ["1000"] * 4
    assert said["NoNewPrivs"] == "1"
    assert said["Seccomp"] == "2"
    assert all(int(said[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
    # A leaf user namespace starts with a full bounding set; without a set-uid program it bounds nothing.
    assert int(said["CapBnd"], 16) in (0x800000E3, 0x1FFFFFFFFFF) or os.geteuid() != 0


@isolated
def test_agent_has_no_group_of_the_host(session: Session) -> None:
    assert py(session, "import os; said = os.getgroups()") in ([], [1000]) or os.geteuid() != 0


@isolated
@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs x /mnt",
        "mount -o remount,rw /usr",
        "mount -o remount,rw /",
        "umount -l /proc",
        "unshare -U true",
        "unshare -m true",
        "unshare -rn true",
        "nsenter -t 1 -m true",
        "chroot / true",
        "kill -9 1",
        "kill -TERM 1",
        "kill -STOP 1",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "ls /proc/1/root/",
        "ls /proc/1/fd/",
        "touch /x",
        "touch /usr/x",
        "touch /etc/x",
        "touch /home/x",
        "touch /dev/x",
        f"touch {sys.prefix}/x",
        f"touch {sys.base_prefix}/x",
        "touch /home/ubuntu/data/x",
        "rm /home/ubuntu/data/train.csv",
        "echo 1 > /proc/sys/kernel/hostname",
        "echo b > /proc/sysrq-trigger",
        "mknod /tmp/disk b 254 0",
        "hostname other",
    ],
)
def test_attempt_fails_and_the_sandbox_lives(session: Session, attempt: str) -> None:
    assert session.isolated
    done = sh(session, attempt)
    assert done.exit_code != 0, done
    assert sh(session, "true").exit_code == 0


@isolated
@pytest.mark.parametrize(
    "name", ["unshare", "setns", "mount", "ptrace", "keyctl", "bpf", "userfaultfd", "perf_event_open"]
)
def test_system_call_is_refused(session: Session, name: str) -> None:
    number = seccomp._MACHINES[os.uname().machine].refused[name]
    code = (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True)\n"
        f"said = [c.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno()]"
    )
    assert py(session, code) == [-1, 1]


@isolated
def test_namespaces_by_clone_are_refused_and_threads_work(session: Session) -> None:
    clone = seccomp._MACHINES[os.uname().machine].clone
    code = (
        "import ctypes, threading, subprocess, signal\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        f"said = [c.syscall({clone}, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), ctypes.get_errno()]\n"
        f"said += [c.syscall({seccomp.CLONE3}, 0, 0), ctypes.get_errno()]\n"
        "t = threading.Thread(target=said.append, args=('thread',)); t.start(); t.join()\n"
        "said.append(subprocess.run(['true']).returncode)"
    )
    assert py(session, code) == [-1, 1, -1, 38, "thread", 0]


@isolated
def test_there_is_no_network_but_a_loopback_of_its_own(session: Session) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0research-gym-test")
    abstract.listen()
    code = (
        "import socket\n"
        "said = [[name for _, name in socket.if_nameindex()]]\n"
        "own = socket.create_server(('127.0.0.1', 0)); socket.create_connection(own.getsockname(), 2).close()\n"
        "def reach(family, address):\n"
        "    try:\n"
        "        s = socket.socket(family); s.settimeout(3); s.connect(address); return 'reached'\n"
        "    except OSError as e: return 'refused'\n"
        f"said += [reach(socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]}))]\n"
        "said += [reach(socket.AF_INET, ('1.1.1.1', 53)), reach(socket.AF_UNIX, '\\0research-gym-test')]\n"
        "said += [reach(40, (2, 1024))]"
    )
    with server, abstract:
        assert py(session, code) == [["lo"], "refused", "refused", "refused", "refused"]


@isolated
def test_host_files_are_not_there(session: Session) -> None:
    package = Path(research_gym.__file__).resolve()
    with tempfile.NamedTemporaryFile() as temporary:
        paths = [
            temporary.name, str(package), str(package.parent / "kernel"), str(package.parents[1] / "pyproject.toml"),
            str(Path(__file__).resolve()), "/etc/shadow", "/etc/machine-id", "/etc/resolv.conf", "/var/lib",
            "/run/docker.sock", "/sys/kernel", "/boot", "/.empty/x", "/dev/sda", "/dev/vda", "/dev/kmsg", "/dev/mem",
            "/dev/vsock",
        ]  # fmt: skip
        assert py(session, f"import os; said = [path for path in {paths!r} if os.path.lexists(path)]") == []
    listing = "import os; said = [os.listdir(p) for p in ('/root', '/opt', '/run', '/mnt', '/srv', '/home')]"
    tops = {Path(path).parts[1]: Path(path).parts[2:3] for path in local_root.prefixes()}
    root, opt, run, mnt, srv, home = py(session, listing)
    for name, found in (("root", root), ("opt", opt), ("run", run), ("mnt", mnt), ("srv", srv)):
        assert set(found) <= set(tops.get(name, ())), name
    assert {"agent", "ubuntu"} <= set(home) <= {"agent", "ubuntu", *tops.get("home", ())}


@isolated
def test_this_package_cannot_be_imported_or_read(session: Session) -> None:
    code = (
        "import importlib.util, site, os\n"
        "found = importlib.util.find_spec('research_gym')\n"
        "names = [f'{s}/{p}' for s in site.getsitepackages() if os.path.isdir(s)\n"
        "         for p in os.listdir(s) if 'research_gym' in p]\n"
        "said = [found is None or not list(found.submodule_search_locations or [])\n"
        "        or not any(os.listdir(p) for p in found.submodule_search_locations),\n"
        "        [p for p in names if os.path.isdir(p) and os.listdir(p)],\n"
        "        [p for p in names if os.path.isfile(p) and open(p).read()]]"
    )
    assert py(session, code) == [True, [], []]


@isolated
def test_hidden_data_cannot_be_loaded(session: Session) -> None:
    pytest.importorskip("sklearn")
    done = drive(
        session.run([sys.executable, "-c", "from sklearn.datasets import load_digits; print(load_digits().target)"])
    )
    assert done.exit_code != 0
    assert b"digits" in done.stderr


@isolated
def test_environment_is_ours_and_nothing_of_the_host(session: Session) -> None:
    said = py(session, "import os; said = dict(os.environ)")
    assert "canary-4711" not in said.values()
    assert (said["HOME"], said["TASK"], said["OMP_NUM_THREADS"]) == ("/home/agent", "t", "1")
    assert said["PATH"].startswith(os.path.dirname(sys.executable))
    assert (
        b"canary"
        not in sh(session, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'").stdout
    )


@isolated
def test_processes_are_its_own(session: Session) -> None:
    said = py(session, "import os; said = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
    assert said[0] == 1
    assert len(said) < 10


@isolated
def test_data_are_read_only_and_links_in_them_lead_nowhere(session: Session) -> None:
    assert sh(session, "cat /home/ubuntu/data/train.csv").stdout == b"a,b\n1,2\n"
    with pytest.raises(FileRefused):
        drive(session.write_file("/home/ubuntu/data/train.csv", b"x"))
    with pytest.raises(FileRefused):
        drive(session.read_file("/home/ubuntu/data/link", max_bytes=1000))
    assert b"agent" in sh(session, "cat /home/ubuntu/data/link").stdout  # the sandbox's own, not the host's


@isolated
def test_mounts_are_nosuid_and_nodev(session: Session) -> None:
    said = py(session, "said = [line.split()[4:6] for line in open('/proc/self/mountinfo')]")
    for point, options in said:
        assert "nosuid" in options.split(","), point
        if not point.startswith("/dev/"):
            assert "nodev" in options.split(","), point
        writable = ("/home/ubuntu", "/home/agent", "/tmp", "/dev/shm", "/proc")
        if not point.startswith("/dev/") and point not in writable:
            assert "ro" in options.split(","), point


@isolated
@pytest.mark.parametrize(
    ("where", "size"), [("/home/ubuntu", 8 * MIB), ("/tmp", 2 * MIB), ("/home/agent", 2 * MIB), ("/dev/shm", 4 * MIB)]
)
def test_writable_areas_are_sized(session: Session, where: str, size: int) -> None:
    code = (
        "import os\n"
        f"path = {where + '/fill'!r}\n"
        "written = 0\n"
        "try:\n"
        "    with open(path, 'wb', buffering=0) as file:\n"
        "        while written < 1 << 27: written += file.write(bytes(1 << 16))\n"
        "    said = [written, 0]\n"
        "except OSError as error: said = [written, error.errno]\n"
        "os.unlink(path)"
    )
    written, error = py(session, code)
    assert error in (28, 27)  # no space, or over the agent's own file size limit
    assert size // 2 < written <= size


@isolated
def test_inodes_are_counted(session: Session) -> None:
    code = (
        "import os\n"
        "os.mkdir('/tmp/many')\n"
        "made = 0\n"
        "try:\n"
        "    while made < 50000: open(f'/tmp/many/{made}', 'x').close(); made += 1\n"
        "    said = [made, 0]\n"
        "except OSError as error: said = [made, error.errno]\n"
        "import shutil; shutil.rmtree('/tmp/many')"
    )
    made, error = py(session, code)
    assert error == 28
    assert made < 5000


@isolated
def test_programs_find_what_they_need(session: Session) -> None:
    script = (
        "set -e; id -un; getent hosts localhost; hostname; awk 'BEGIN{print 1+1}'; echo x > /dev/null; "
        "head -c 4 /dev/urandom | wc -c; ls /dev/fd/ > /dev/null; cat <(echo sub); date > /dev/null; "
        "python3 -c 'import ssl, ctypes, sqlite3, multiprocessing as m; m.Lock(); ssl.create_default_context()'; "
        "script -qc 'echo pty' /dev/null; git --version"
    )
    done = sh(session, script)
    assert done.exit_code == 0, done
    lines = done.stdout.decode().split()
    assert lines[0] == "agent"
    assert {"sandbox", "2", "4", "sub", "pty"} <= set(lines)


@isolated
def test_kernel_runs_cells_in_there(session: Session) -> None:
    drive(session.start_kernel())
    result = drive(session.execute("import os\nprint(os.getuid(), os.getcwd())\n!echo shell", timeout_s=60))
    assert result.status == "ok", result
    assert "".join(getattr(item, "text", "") for item in result.outputs) == "1000 /home/ubuntu\nshell\n"


@isolated
def test_close_leaves_no_process_of_the_agent() -> None:
    opened = open_session()
    name = f"rg{os.getpid()}sleep"
    drive(opened.start_kernel())
    drive(opened.execute(f"!(setsid bash -c 'exec -a {name} sleep 600' &) ; sleep 0.2", timeout_s=30))
    assert _named(name)
    began = time.monotonic()
    opened.close()
    assert time.monotonic() - began < 5
    assert not _named(name)


_OPENER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from research_gym.sandbox.local import LocalSandbox
from research_gym.sandbox.base import SandboxSpec
from research_gym.sandbox.waiting import drive
session = drive(LocalSandbox(isolation=sys.argv[3]).open(SandboxSpec()))
work = session.run(["bash", "-c", f"exec -a {sys.argv[2]} sleep 600"], timeout_s=600)
next(work); time.sleep(0.5); next(work)
print("open", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("isolation", [pytest.param("namespaces", marks=isolated), "none"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_owner_ends_everything(isolation: str, end: signal.Signals) -> None:
    name = f"rg{os.getpid()}owner{end.value}{isolation}"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        _OPENER,
        str(Path(research_gym.__file__).parents[1]),
        name,
        isolation,
    ]
    before = set(Path(tempfile.gettempdir()).glob("research_gym-*"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        assert _named(name)
        owner.send_signal(end)
    until = time.monotonic() + 5
    while _named(name) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _named(name)
    left: set[Path] = set()
    while time.monotonic() < until + 5:
        left = {path for path in Path(tempfile.gettempdir()).glob("research_gym-*") if path not in before}
        if not left:
            break
        time.sleep(0.05)
    assert isolation == "none" or not left


@isolated
def test_supervisor_killed_from_outside_is_a_loss() -> None:
    opened = open_session()
    launcher = opened._channel._stream._process.pid  # type: ignore[attr-defined]  # the local stream's
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    with pytest.raises(SandboxLost, match="signal 9"):
        drive(opened.run(["true"]))
    opened.close()


@isolated
def test_start_failure_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SandboxStartError, match="no such file"):
        open_session(binds=(Bind(tmp_path / "absent", "/data"),))
    # The other way round the target would have to be made inside a read-only bind.
    with pytest.raises(SandboxStartError, match="jail"):
        open_session(isolation="auto", binds=(Bind(tmp_path, "/usr/absent"),))


def test_plain_mode_says_so_and_maps_the_paths(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a\n")
    spec = SandboxSpec(workdir="/home/ubuntu", limits=LIMITS, binds=(Bind(tmp_path, "/home/ubuntu/data"),))
    with pytest.warns(UserWarning, match="WITHOUT ISOLATION"):
        opened = drive(LocalSandbox(isolation="none").open(spec))
    with opened as session:
        assert not session.isolated
        drive(session.write_file("/home/ubuntu/note", b"hello"))
        done = sh(session, "cat note; echo; cat data/train.csv; pwd; echo $HOME $TMPDIR")
        assert done.stdout.startswith(b"hello")
        folders = done.stdout.decode().split()[1:]
        assert folders[0] == "a"
        assert all("research_gym-" in folder for folder in folders[1:]), folders
        top = Path(folders[1]).parent
        assert top.is_dir()
        assert drive(session.read_file("/home/ubuntu/note", max_bytes=10)) == b"hello"
    assert not top.exists()
    assert (tmp_path / "train.csv").exists()


def test_missing_namespaces_fall_back_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_reasons", ["unshare: Operation not permitted"])
    with pytest.warns(UserWarning, match="Operation not permitted"):
        drive(LocalSandbox().open(SandboxSpec(limits=LIMITS))).close()
    with pytest.raises(SandboxError, match="Operation not permitted"):
        drive(LocalSandbox(isolation="namespaces").open(SandboxSpec(limits=LIMITS)))


@isolated
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a plain user")
def test_plain_user_gets_the_same_isolation() -> None:
    """The agent of a plain user has that user's uid outside: the rules must hold inside."""
    script = (
        "import os, sys, types\n"
        "os.setgroups([]); os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)\n"
        # Without the package's own imports: the system's Python has no gymnasium.
        "package = sys.modules['research_gym'] = types.ModuleType('research_gym')\n"
        "package.__path__ = [sys.argv[1]]\n"
        "from research_gym.sandbox.local import LocalSandbox\n"
        "from research_gym.sandbox.base import SandboxSpec\n"
        "from research_gym.sandbox.waiting import drive\n"
        "session = drive(LocalSandbox(isolation='namespaces').open(SandboxSpec()))\n"
        "assert session.isolated\n"
        "for command in sys.argv[2:]:\n"
        "    done = drive(session.run(['bash', '-c', command]))\n"
        "    print(done.exit_code, done.stdout.decode().strip().replace(chr(10), ' '))\n"
        "session.close()\n"
    )
    hostile = ["kill -9 1", "kill -TERM 1", "cat /proc/1/environ", "touch /x", "touch /usr/x", "unshare -U true",
               "prlimit --pid 1 --nofile=3:3", "mount -t tmpfs x /mnt"]  # fmt: skip
    about = "id -u; pwd; touch x && echo made; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | cut -f2"
    commands = [about, *hostile, "true"]
    readable = [path for path in (sys.executable, "/usr/bin/python3") if _runs_for_others(path)]
    if not readable:
        pytest.skip("no Python here that a plain user can run and that is new enough")
    arguments = [readable[0], "-c", script, str(Path(research_gym.__file__).parent), *commands]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, cwd="/")
    lines = done.stdout.splitlines()
    assert len(lines) == len(commands), done
    assert lines[0] == "0 1000 /content made 0000000000000000 1 2"
    assert [line.split()[0] == "0" for line in lines] == [True] + [False] * len(hostile) + [True]


def _runs_for_others(python: str) -> bool:
    """Whether a plain user can run it, the package's source included, and it is new enough."""
    code = (
        "import os, sys; os.setgroups([]); os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)\n"
        "import json, dataclasses; open(sys.argv[1]).close(); assert sys.version_info >= (3, 11)"
    )
    arguments = [python, "-c", code, research_gym.__file__]
    return (
        os.path.exists(python) and subprocess.run(arguments, capture_output=True, cwd="/", timeout=60).returncode == 0
    )


def test_findings_name_what_works() -> None:
    found = {finding.topic: finding for finding in LocalSandbox().findings()}
    assert found["local: namespaces"].ok == (not NO_NAMESPACES)
    assert found["local: namespaces"].ok or found["local: namespaces"].mend


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_seccomp_program_is_well_formed(machine: str) -> None:
    program = seccomp.agent_program(machine)
    assert len(program) % 8 == 0
    steps = [(program[at], program[at + 2], program[at + 3]) for at in range(0, len(program), 8)]
    assert len(steps) < 4096
    assert all(at + 1 + max(yes, no) < len(steps) for at, (code, yes, no) in enumerate(steps) if code & 7 == 5)
    assert steps[-1][0] == 6
    with pytest.raises(OSError, match="riscv64"):
        seccomp.agent_program("riscv64")


def test_choose_knows_its_words() -> None:
    own = LocalSandbox()
    assert choose(own) is own
    assert choose("local", runtime=None).name == "local"
    assert isinstance(choose("local", isolation="none"), LocalSandbox)
    with pytest.raises(ValueError, match="did you mean 'local'"):
        choose("locl")
    with pytest.raises(ValueError, match="no option runtime"):
        choose("local", runtime="runsc")
    with pytest.raises(ValueError, match="made already"):
        choose(own, isolation="none")
    with pytest.raises(TypeError, match="found int"):
        choose(3)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("path", ["relative", "/", "/a/../b", "/a/", "/a//b", "/a\0"])
def test_spec_refuses_strange_paths(path: str) -> None:
    with pytest.raises(ValueError, match="absolute"):
        SandboxSpec(workdir=path)
    with pytest.raises(ValueError, match="absolute"):
        Bind(Path("/x"), path)


@pytest.mark.parametrize("name", ["", "/abs", "a/../b", "..", "a/"])
def test_spec_refuses_strange_hidden_folders(name: str) -> None:
    with pytest.raises(ValueError, match="hide"):
        SandboxSpec(hide=(name,))


def _named(name: str) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(name.encode()):
            found.append(int(entry))
    return found

"""A small pid 1 for the tests of nests and layers; the bootstrap runs it, it prints one JSON object."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if "__file__" in globals():  # imported by a test collector, not run from shipped source
    sys.path.insert(0, str(Path(__file__).parent))

from fork_kernel_peer import Peer, make_peer

from research_gym.kernel import mounting, nests, outside_check, userns_gate
from research_gym.kernel.bootstrap import BOOTSTRAP, bundle
from research_gym.kernel.layers import Layers
from research_gym.kernel.nest_tree import Branch, NestTree
from research_gym.kernel.process import PR_SET_CHILD_SUBREAPER, prctl

ROOTLESS = Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2] == "1"
AGENT = nests.AgentUser(1000, 1000, rootless=ROOTLESS)
SOURCES: dict[str, str] = getattr(sys.modules["research_gym.kernel"], "sources", {})
WORLD_INODES = 4000
WORLD_BYTES = 32 << 20


class World:
    """Layers, gate and kernels of one sandbox."""

    def __init__(self) -> None:
        mounting.unshare(mounting.CLONE_NEWNS)
        mounting.make_private()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        _open_interpreter()
        self.base = Path(tempfile.mkdtemp(prefix="rg", dir="/var/tmp"))
        self.base.chmod(0o755)
        self.folder, self.work, self.home = (self.base / name for name in "lwh")
        for path in (self.folder, self.work, self.home):
            path.mkdir()
        for path in (self.work, self.home):
            _give(path)
        (self.work / "given.txt").write_text("given")
        _give(self.work / "given.txt")
        self.roots = [str(self.work), str(self.home), "/dev/shm", "/tmp"]
        layers = Layers(str(self.folder), self.roots, size_bytes=WORLD_BYTES, inodes=WORLD_INODES, rootless=ROOTLESS)
        self.tree = NestTree(layers, agent=AGENT)
        self.gate: userns_gate.Gate | None = None

    def start(self) -> tuple[Peer, Branch, int]:
        """A kernel in a nest of its own; returns its pid as this process sees it."""
        branch = self.tree.grow(None)
        peer, (link_fd, pipe_fd) = make_peer("root")
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        helper = os.fork()
        if helper == 0:
            try:
                nests.enter(branch.nest, agent=AGENT)
                if os.fork():
                    os._exit(0)
                os.setsid()
                os.chdir(self.work)
                for number, fd in enumerate((link_fd, pipe_fd, pipe_fd)):
                    os.dup2(fd, number)
                listener = userns_gate.install()
                socket.send_fds(theirs, [b"1"], [listener])
                os.closerange(3, 1 << 12)
                env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
                os.execve(sys.executable, [sys.executable, "-c", BOOTSTRAP], env)
            except OSError as error:
                os.write(2, str(error).encode())
            finally:
                os._exit(70)
        os.waitpid(helper, 0)
        for fd in (link_fd, pipe_fd):
            os.close(fd)
        with ours, theirs:
            ours.settimeout(5)
            _, ancillary, _, _ = ours.recvmsg(16, 256)
            listener = pid = -1
            for _, kind, body in ancillary:
                if kind == socket.SCM_RIGHTS:
                    listener = int.from_bytes(body[:4], sys.byteorder)
                elif kind == socket.SCM_CREDENTIALS:
                    pid = int.from_bytes(body[:4], sys.byteorder)
        self.gate = userns_gate.Gate(listener)
        peer.waits_with = (self.gate.fileno(), self.gate.serve)
        peer.link.sendall(bundle({"nonce": "root"}, entry="research_gym.kernel.fork_kernel", sources=SOURCES))
        peer.wait_ready()
        return peer, branch, pid

    def fork(self, parent: Peer, above: Branch, parent_pid: int, count: int = 1) -> list[tuple[Peer, Branch, int]]:
        """Forks a kernel into nests of their own and checks each child before it may serve."""
        assert self.gate is not None
        made = [self.tree.grow(above) for _ in range(count)]
        kinds = made[0].nest.kinds
        self.gate.announce(parent_pid, count, kinds=kinds)
        peers = parent.fork(count, roots=self.roots, nests=[branch.nest.join_fds() for branch in made], kinds=kinds)
        self.gate.revoke(parent_pid)
        found = []
        for peer, branch in zip(peers, made, strict=True):
            (pid,) = outside_check.inhabitants(branch.nest) - {branch.nest.init_pid}
            wrong = outside_check.findings(pid, branch.nest, agent=AGENT)
            assert not wrong, wrong
            found.append((peer, branch, pid))
        return found

    def reap(self) -> None:
        """As pid 1 does at SIGCHLD."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def close(self) -> None:
        self.tree.close()
        with contextlib.suppress(ChildProcessError):
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and os.waitpid(-1, os.WNOHANG)[0] >= 0:
                time.sleep(0.005)
        shutil.rmtree(self.base, ignore_errors=True)


@contextlib.contextmanager
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def _give(path: Path) -> None:
    if not ROOTLESS:
        os.chown(path, AGENT.uid, AGENT.gid)


def _open_interpreter() -> None:
    """Lets uid 1000 reach a Python below a private home (`/root`), in this mount namespace only."""
    if ROOTLESS:
        return
    private = next((path for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & 0o001), None)
    if private is None:
        return
    inside = os.open(sys.base_prefix, os.O_PATH)
    cover = mounting.new_mount("tmpfs", [("mode", "0755")])
    mounting.attach(cover, str(private))
    os.makedirs(sys.base_prefix)
    subprocess.run(["mount", "-c", "--bind", f"/proc/self/fd/{inside}", sys.base_prefix], check=True, pass_fds=[inside])
    os.close(inside)
    os.close(cover)


def isolation() -> dict[str, Any]:
    """What parent, children and siblings see of each other and of the machinery."""
    out: dict[str, Any] = {}
    with world() as sandbox:
        parent, nest, pid = sandbox.start()
        parent.run(
            "import os, random, subprocess\nx = [1]\n"
            "open('mine.txt', 'w').write('parent')\nopen('/tmp/t', 'w').write('parent')"
        )
        parent.run("open(os.path.expanduser('~/h'), 'w').write('parent'); open('/dev/shm/s', 'w').write('parent')")
        parent.run("paths = ('given.txt', 'mine.txt', '/tmp/t', os.path.expanduser('~/h'), '/dev/shm/s')")
        parent.run("log = open('log.txt', 'w'); log.write('a'); log.flush()")
        started = time.perf_counter()
        (one, nest1, pid1), (two, _, pid2) = sandbox.fork(parent, nest, pid, 2)
        out["fork_ms"] = round((time.perf_counter() - started) * 1e3, 1)
        look = "[open(p).read() for p in paths]"
        out["inherited"] = one.say(look)
        change = "[open(p, 'w').write('one') for p in paths]"
        one.run(change + "\nlog.write('b'); log.flush(); x.append(2); os.remove('log.txt')")
        out["changed"] = one.say(look)
        out["sibling_files"] = two.say(look)
        out["sibling_log"] = two.say("log.write('c'); log.flush(); open('log.txt').read()")
        out["parent_files"] = parent.say(look)
        out["original"] = (sandbox.work / "given.txt").read_text()
        out["pids"] = one.say("os.getpid(), sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
        out["kill_all"] = one.say(
            "import signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept OSError as e: print(type(e).__name__)"
        )
        out["sibling_alive"] = two.say("'alive'")
        out["kill_init"] = one.say(
            "import time\ntry: os.kill(1, 9)\nexcept OSError as e: time.sleep(0.05); print(type(e).__name__)"
        )
        out["layers"] = one.say(f"os.listdir({str(sandbox.folder)!r})")
        tries = {
            "umount": "umount /tmp 2>&1",
            "mount": "mount -t tmpfs none /mnt 2>&1",
            "nsenter": "nsenter -t 1 -m true 2>&1",
            "init_memory": "head -c 1 /proc/1/mem 2>&1",
        }
        for name, command in tries.items():
            out[name] = one.say(
                f"r = subprocess.run({command!r}, shell=True, capture_output=True, text=True); r.returncode != 0"
            )
        out["setns"] = one.say(
            "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
            "[(c.setns(os.open('/proc/self/ns/' + k, 0), 0), ctypes.get_errno()) for k in ('user', 'mnt')]"
        )
        one.run("import socket\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(1)")
        one.run("a = socket.socket(socket.AF_UNIX); a.bind('\\0rgtest'); a.listen(1)")
        port = one.say("s.getsockname()[1]")
        out["own_loopback"] = one.say("socket.create_connection(s.getsockname(), 2).close()")
        out["sibling_loopback"] = two.say(
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2)\n"
            "except OSError as e: print(type(e).__name__)"
        )
        out["sibling_abstract"] = two.say(
            "try: socket.socket(socket.AF_UNIX).connect('\\0rgtest')\nexcept OSError as e: print(type(e).__name__)"
        )
        one.run("s.close(); a.close()")
        assert sandbox.gate is not None
        out["refused"] = sandbox.gate.refused
        out["disk"] = one.say("try: open('big', 'wb').write(b'x' * (64 << 20))\nexcept OSError as e: print(e.errno)")
        out["inodes"] = one.say(
            "os.remove('big')\nos.mkdir('many')\ntry:\n    for i in range(6000): open(f'many/{i}', 'w').close()\n"
            "except OSError as e: print(e.errno)"
        )
        out["sibling_disk"] = two.say("open('fits', 'wb').write(b'x' * (16 << 20))")
        out["orphans"] = one.say(
            "for _ in range(50): subprocess.run('sleep 0 &', shell=True)\nimport time; time.sleep(0.3)\n"
            "found = [p for p in os.listdir('/proc') if p.isdigit()]\n"
            "sum('Z' in open(f'/proc/{p}/stat').read().rpartition(')')[2][:3] for p in found)"
        )
        out["caps"] = one.say(
            "[l.split()[1] for l in open('/proc/self/status') if l.startswith(('Cap', 'Seccomp:', 'NoNewPrivs'))]"
        )
        ((grand, _, _),) = sandbox.fork(one, nest1, pid1)
        out["grandchild"] = grand.say("x, open('mine.txt').read(), os.getpid()")
        os.kill(pid1, signal.SIGKILL)
        sandbox.tree.retire(nest1)
        sandbox.tree.retire(nest)
        out["grandchild_outlives_parent"] = grand.say("x, open('mine.txt').read()")
        os.kill(pid2, signal.SIGKILL)
    return out


def cheating() -> dict[str, Any]:
    """A kernel whose agent patched the code that makes a fork private."""
    out: dict[str, Any] = {}
    patches = {
        "keeps_capabilities": "fork_child.drop_capabilities = lambda: None",
        "brings_company": "import os\nold = fork_child.drop_capabilities\n"
        "def company():\n    old()\n    if os.fork() == 0:\n        import time; time.sleep(30)\n"
        "fork_child.drop_capabilities = company",
        "does_not_join": "fork_child.join = lambda fd, flags: None",
        "joins_its_own": "import os\nreal = fork_child.join\n"
        "fork_child.join = lambda fd, flags: real(os.open('/proc/self/ns/user', 0), flags)",
    }
    for name, patch in patches.items():
        with world() as sandbox:
            parent, nest, pid = sandbox.start()
            parent.run("import sys\nfork_child = sys.modules['research_gym.kernel.fork_child']\n" + patch)
            try:
                sandbox.fork(parent, nest, pid)
                out[name] = "served"
            except (AssertionError, ValueError, EOFError, TimeoutError) as error:
                out[name] = f"{type(error).__name__}: {error}"[:300]
    return out


def generations() -> dict[str, Any]:
    """Forks of forks until they are refused."""
    with world() as sandbox:
        peer, nest, pid = sandbox.start()
        peer.run("depth = 0")
        times = []
        try:
            for _ in range(40):
                started = time.perf_counter()
                ((peer, nest, pid),) = sandbox.fork(peer, nest, pid)
                times.append((time.perf_counter() - started) * 1e3)
                peer.run("depth += 1; open(f'f{depth}', 'w').close()")
        except nests.NestError as error:
            return {
                "refused": str(error),
                "depth": peer.say("import os; depth, len([n for n in os.listdir('.') if n[0] == 'f'])"),
                "median_ms": sorted(times)[len(times) // 2],
            }
    return {}


def cycles(rounds: int) -> dict[str, Any]:
    """Resets: fork, use, discard, many times."""

    def count() -> tuple[int, int, int]:
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = len(file.readlines())
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = len(file.read().split())
        return len(os.listdir("/proc/self/fd")), mounts, children

    with world() as sandbox:
        parent, nest, pid = sandbox.start()
        times, counts = [], []
        for number in range(rounds):
            started = time.perf_counter()
            ((peer, branch, _),) = sandbox.fork(parent, nest, pid)
            times.append((time.perf_counter() - started) * 1e3)
            assert peer.say(f"open('n', 'w').write('{number}')") == str(len(str(number)))
            peer.close()
            sandbox.tree.retire(branch)
            deadline = time.monotonic() + 2
            while outside_check.inhabitants(branch.nest) and time.monotonic() < deadline:
                time.sleep(0.001)
                sandbox.reap()
            sandbox.reap()
            counts.append(count())
        return {"median_ms": sorted(times)[len(times) // 2], "first": counts[1], "last": counts[-1]}


def main(config: dict[str, Any]) -> None:
    """Entry of the bootstrap."""
    scenario: dict[str, Callable[..., dict[str, Any]]]
    scenario = {"isolation": isolation, "cheating": cheating, "generations": generations, "cycles": cycles}
    print(json.dumps(scenario[config["scenario"]](**config["options"])))

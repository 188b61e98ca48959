"""Limits: what an episode uses up is its own, and the box still answers afterwards."""

from __future__ import annotations

from research_gym.limits import MIB
from research_gym.testing.check_sandbox.kit import LIMITS, Box, expect, probe

_PLAIN = "without namespaces nothing holds the agent's files and processes back but the user's own limits"


def _answers(box: Box) -> None:
    expect(box.text("print(6 * 7)") == "42", "expected the box to answer afterwards")


@probe("limits")
def memory_of_the_kernel_is_limited(box: Box) -> None:
    """The kernel gets a MemoryError or dies; it never gets the memory."""
    seen = box.cell(
        f"hog = bytearray({2 * LIMITS.memory_bytes})\n"
        "for i in range(0, len(hog), 4096): hog[i] = 1\n"
        "print('got it all')",
        timeout_s=60,
    )
    expect("got it all" not in seen.text, f"expected less than twice the limit, found {seen}")
    expect(seen.result.status in ("error", "died"), f"expected error or died, found {seen}")
    box.cell("hog = None")
    _answers(box)


@probe("limits")
def memory_of_a_child_is_limited(box: Box) -> None:
    """A child that runs out of memory fails; the kernel and its variables stay."""
    box.text("kept = 'kept'")
    seen = box.cell(
        "import subprocess, sys\n"
        f"code = 'hog = bytearray({2 * LIMITS.memory_bytes}); hog[::4096] = "
        f'bytes(len(hog[::4096])); print("got it")\'\n'
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).returncode)",
        timeout_s=60,
    )
    expect(seen.text != "0", f"expected the child to fail, found {seen}")
    if seen.result.status == "ok":
        expect(box.text("print(kept)") == "kept", "expected the kernel's variables to stay")
    _answers(box)


@probe("limits", isolation=_PLAIN)
def processes_are_limited(box: Box) -> None:
    """A fork loop comes to an end, and its processes can be killed."""
    seen = box.cell(
        "import os, signal, time\n"
        "pids = []\n"
        "try:\n"
        f"    for _ in range({LIMITS.processes * 4}):\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            time.sleep(60); os._exit(0)\n"
        "        pids.append(pid)\n"
        "    print('never refused')\n"
        "except OSError as error:\n"
        "    print('refused', len(pids))\n"
        "finally:\n"
        "    for pid in pids: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)",
        timeout_s=60,
    )
    expect("never refused" not in seen.text, f"expected at most {LIMITS.processes} processes, found {seen}")
    _answers(box)


@probe("limits", fresh=True, isolation=_PLAIN)
def a_fork_bomb_is_survived(box: Box) -> None:
    """The classic one, from a shell; the box closes in time and the machine goes on."""
    box.cell("!:(){ :|:& };:", timeout_s=3)
    box.cell("1", timeout_s=10)


@probe("limits", isolation=_PLAIN)
def disk_of_every_writable_place_is_limited(box: Box) -> None:
    """Work directory, /tmp, /dev/shm and home: all bounded, all free again afterwards."""
    out = box.text(
        "import os, errno\n"
        "block = b'x' * (1 << 20)\n"
        f"for folder in ('.', '/tmp', '/var/tmp', '/dev/shm', '/run', os.path.expanduser('~')):\n"
        "    path, written = os.path.join(folder, 'rgcheck.fill'), 0\n"
        "    try:\n"
        "        with open(path, 'wb', buffering=0) as file:\n"
        f"            while written < {LIMITS.memory_bytes + 64 * MIB}: written += file.write(block)\n"
        "        print(folder, 'UNBOUNDED')\n"
        "    except OSError as error:\n"
        "        print(folder, written >> 20, errno.errorcode[error.errno])\n"
        "    finally:\n"
        "        if os.path.exists(path): os.remove(path)",
        timeout_s=120,
    )
    expect("UNBOUNDED" not in out, f"expected every place to be bounded, found {out!r}")
    largest = max(int(line.split()[1]) for line in out.splitlines())
    room = max(LIMITS.disk_bytes, LIMITS.shm_bytes) // MIB
    expect(largest <= room + 1, f"expected at most {room} MiB in one place, found {out!r}")
    box.write("after-full.txt", b"x")


@probe("limits", isolation=_PLAIN)
def inodes_of_every_writable_place_are_limited(box: Box) -> None:
    """Empty files cost memory too."""
    out = box.text(
        "import os\n"
        "for folder in ('.', '/tmp', '/dev/shm'):\n"
        "    if os.access(folder, os.W_OK): print(folder, os.statvfs(folder).f_files)"
    )
    for line in out.splitlines():
        folder, count = line.split()
        expect(0 < int(count) <= 1_000_000, f"expected at most a million inodes in {folder}, found {count}")


@probe("limits", isolation=_PLAIN)
def a_full_disk_is_the_agents_trouble_not_ours(box: Box) -> None:
    """With the work directory full, cells still run, files can still be read, and writing is refused in words."""
    box.text("open('fill', 'wb').write(b'kept')")
    box.cell("with open('full', 'wb', buffering=0) as f:\n    while True: f.write(b'x' * (1 << 20))", timeout_s=60)
    try:
        box.write("more", b"x" * MIB)
        refused = ""
    except Exception as error:
        refused = getattr(error, "code", repr(error))
    expect(refused == "disk_full", f"expected disk_full, found {refused or 'that it was written'}")
    expect(box.read("fill") == b"kept", "expected files to be readable")
    _answers(box)
    box.text("import os; os.remove('full')")
    box.write("more", b"x")


@probe("limits")
def open_files_are_limited(box: Box) -> None:
    """Descriptors run out as an OSError, and come back."""
    out = box.text(
        "files = []\n"
        "try:\n"
        f"    for _ in range({LIMITS.open_files * 4}): files.append(open('/dev/null'))\n"
        "    print('never refused')\n"
        "except OSError as error:\n"
        "    print('refused', error.errno)\n"
        "finally:\n"
        "    for file in files: file.close()"
    )
    expect(out == "refused 24", f"expected EMFILE (24), found {out!r}")
    _answers(box)


@probe("limits")
def shared_memory_works_up_to_its_limit(box: Box) -> None:
    """Most of the size that was asked for can be used: data loaders depend on it."""
    size = LIMITS.shm_bytes * 3 // 4
    out = box.text(
        "from multiprocessing import shared_memory\n"
        f"m = shared_memory.SharedMemory(create=True, size={size})\n"
        "m.buf[:] = bytes(len(m.buf)); print(len(m.buf)); m.close(); m.unlink()"
    )
    expect(int(out) >= size, f"expected {size} bytes of shared memory, found {out!r}")


@probe("limits")
def core_dumps_are_off(box: Box) -> None:
    """A crash writes no core file into the work area."""
    out = box.text("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))")
    expect(out == "(0, 0)", f"expected (0, 0), found {out}")


@probe("limits")
def threads_of_numeric_libraries_follow_the_cpus(box: Box) -> None:
    """64 threads on one CPU are slower than one."""
    out = box.text("import os; print(os.environ.get('OMP_NUM_THREADS', ''))")
    expect(out.isdigit() and 1 <= int(out) <= 4, f"expected OMP_NUM_THREADS for {LIMITS.cpus:g} CPU, found {out!r}")

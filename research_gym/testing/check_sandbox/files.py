"""Files go in and come out whole, and nothing but a regular file ever does."""

from __future__ import annotations

import os
import time

from research_gym.limits import MIB
from research_gym.sandbox.waiting import drive
from research_gym.testing.check_sandbox.kit import WORKDIR, Box, at, expect, probe, token


@probe("files")
def a_written_file_is_read_back(box: Box) -> None:
    """The simplest round trip, also of an empty file."""
    for data in (b"hello\n", b""):
        box.write("roundtrip.txt", data)
        expect(box.read("roundtrip.txt") == data, f"expected {data!r} back")


@probe("files")
def overwriting_replaces_the_whole_content(box: Box) -> None:
    """A shorter file leaves no tail of the longer one."""
    box.write("twice.txt", b"long content" * 100)
    box.write("twice.txt", b"short")
    expect(box.read("twice.txt") == b"short", "expected only the second content")


@probe("files")
def binary_of_ten_megabytes_is_exact(box: Box) -> None:
    """Several chunks, every byte value."""
    data = bytes(range(256)) * (10 * MIB // 256)
    box.write("big.bin", data)
    expect(box.read("big.bin") == data, "expected the same 10 MiB back")
    box.text(f"import os; os.remove({at('big.bin')!r})")


@probe("files")
def names_may_hold_unicode_and_spaces(box: Box) -> None:
    """Parents are made on the way."""
    path = "a folder/дані/数据 'é\".txt"
    box.write(path, b"x")
    expect(box.read(path) == b"x", "expected the file under its unicode name")
    expect(box.text(f"import os; print(os.path.exists({at(path)!r}))") == "True", "expected the kernel to see it")


@probe("files")
def kernel_and_host_see_the_same_files(box: Box) -> None:
    """Both directions, and the kernel starts in the work directory."""
    box.write("from_host.txt", b"from the host")
    expect(box.text("print(open('from_host.txt').read())") == "from the host", "expected the host's file in the kernel")
    box.text("_ = open('from_kernel.txt', 'w').write('from the kernel')")
    expect(box.read("from_kernel.txt") == b"from the kernel", "expected the kernel's file on the host")


@probe("files")
def written_files_belong_to_the_agent(box: Box) -> None:
    """The agent may change, replace and remove what it was given."""
    box.write("given/file.txt", b"1")
    box.text("open('given/file.txt', 'a').write('2'); import os; os.rename('given/file.txt', 'given/other.txt')")
    expect(box.read("given/other.txt") == b"12", "expected the agent to own the file and its folder")


@probe("files")
def size_cap_holds_before_a_byte_is_read(box: Box) -> None:
    """A sparse file, as large as the sandbox lets it be, is refused at once."""
    box.text("with open('small.bin', 'wb') as f: _ = f.write(b'x' * 1001)")
    code = box.refused(box.session.read_file(at("small.bin"), max_bytes=1000))
    expect(code == "too_large", f"expected too_large, found {code}")
    expect(len(box.read("small.bin", max_bytes=1001)) == 1001, "expected a file of exactly the cap to be read")
    box.text(
        "f = open('huge.bin', 'wb')\n"
        "for size in (3 << 30, 40 << 20):\n"
        "    try: f.truncate(size); break\n"
        "    except OSError: pass"
    )
    began = time.monotonic()
    code = box.refused(box.session.read_file(at("huge.bin"), max_bytes=MIB))
    box.cell("f.close(); import os; os.remove('huge.bin')")
    expect(code == "too_large", f"expected too_large, found {code}")
    expect(time.monotonic() - began < 2, "expected the refusal within 2 s")


@probe("files")
def a_missing_file_is_missing(box: Box) -> None:
    """Also below a missing folder, and below a file."""
    box.write("plain.txt", b"x")
    for path in ("no-such.txt", "no-such/no-such.txt", "plain.txt/below"):
        code = box.refused(box.session.read_file(at(path), max_bytes=10))
        expect(code in ("missing", "not_regular"), f"{path}: expected missing, found {code}")


@probe("files")
def a_directory_is_not_a_file(box: Box) -> None:
    """`mkdir submission.csv` is an attack of one line."""
    box.text("import os; os.makedirs('folder.csv', exist_ok=True)")
    code = box.refused(box.session.read_file(at("folder.csv"), max_bytes=10))
    expect(code == "not_regular", f"expected not_regular, found {code}")


@probe("files")
def no_link_is_followed_on_reading(box: Box) -> None:
    """Neither as the last part of the path nor in the middle, neither absolute nor relative."""
    box.write("real/target.txt", b"secret")
    box.text(
        "import os\n"
        "for name, target in {'l1': '/etc/passwd', 'l2': 'real/target.txt', 'l3': "
        "'real', 'l4': '/proc/self/environ'}.items():\n"
        "    if not os.path.islink(name): os.symlink(target, name)"
    )
    for path in ("l1", "l2", "l3/target.txt", "l4"):
        code = box.refused(box.session.read_file(at(path), max_bytes=1 << 20))
        expect(code == "link", f"{path}: expected link, found {code}")


@probe("files")
def a_fifo_neither_blocks_nor_reads(box: Box) -> None:
    """A naive `open` would wait for a writer for ever."""
    box.text("import os; os.path.exists('pipe.csv') or os.mkfifo('pipe.csv')")
    began = time.monotonic()
    code = box.refused(box.session.read_file(at("pipe.csv"), max_bytes=10))
    expect(code == "not_regular", f"expected not_regular, found {code}")
    expect(time.monotonic() - began < 2, "expected the refusal within 2 s")


@probe("files")
def devices_and_proc_files_are_not_read_as_submissions(box: Box) -> None:
    """An endless device is refused, not read up to the cap."""
    code = box.refused(box.session.read_file("/dev/zero", max_bytes=10))
    expect(code in ("not_regular", "denied", "missing"), f"expected not_regular, found {code}")


@probe("files")
def a_file_that_grows_while_it_is_read_stays_under_the_cap(box: Box) -> None:
    """The cap holds for the bytes read, not for the size seen first."""
    box.text(
        "import subprocess, sys\n"
        'grower = subprocess.Popen([sys.executable, \'-c\', \'f = open("grow.txt", "ab")\\n'
        'while f.tell() < 8 << 20: f.write(b"x" * 4096); f.flush()\'])\n'
        "import time; time.sleep(0.2)"
    )
    for _ in range(5):
        try:
            expect(len(box.read("grow.txt", max_bytes=1 << 20)) <= 1 << 20, "expected at most the cap")
        except Exception as error:  # the refusal is the usual outcome; anything but FileRefused fails below
            expect(getattr(error, "code", "") == "too_large", f"expected too_large, found {error!r}")
    box.cell("grower.kill(); grower.wait(); import os; os.remove('grow.txt')")


@probe("files")
def writing_stays_beneath_the_writable_places(box: Box) -> None:
    """Neither an absolute path nor `..` leads out."""
    for path in ("/etc/rgcheck", "/usr/rgcheck", f"{WORKDIR}/../usr/rgcheck", "/proc/self/comm"):
        code = box.refused(box.session.write_file(path, b"x"))
        expect(code in ("denied", "link", "missing", "bad_request"), f"{path}: expected denied, found {code}")


@probe("files")
def writing_follows_no_link(box: Box) -> None:
    """A planted link is replaced or refused; what it points to is never changed."""
    mark = token()
    box.text(f"import os; open('victim', 'w').write('{mark}'); os.path.islink('trap') or os.symlink('victim', 'trap')")
    try:
        box.write("trap", b"overwritten")
    except Exception as error:
        expect(getattr(error, "code", "") in ("link", "denied"), f"expected link, found {error!r}")
    expect(box.read("victim") == mark.encode(), "expected the target of the link unchanged")
    box.text("os.makedirs('elsewhere', exist_ok=True); os.path.islink('door') or os.symlink('elsewhere', 'door')")
    code = box.refused(box.session.write_file(at("door/file.txt"), b"x"))
    expect(code in ("link", "denied", "not_regular"), f"expected link, found {code}")


@probe("files")
def stat_names_the_kind(box: Box) -> None:
    """Without following the last link."""
    box.text(
        "import os, socket\n"
        "os.makedirs('kinds', exist_ok=True); os.chdir('kinds')\n"
        "open('regular', 'w').write('12345'); os.makedirs('directory', exist_ok=True)\n"
        "os.path.lexists('link') or os.symlink('regular', 'link'); os.path.exists('fifo') or os.mkfifo('fifo')\n"
        "os.chdir('..')"
    )
    for kind in ("regular", "directory", "link", "fifo"):
        stat = drive(box.session.stat(at(f"kinds/{kind}")))
        expect(stat.kind == kind, f"expected {kind}, found {stat.kind}")
        expect(kind != "regular" or stat.size == 5, f"expected size 5, found {stat.size}")
    stat = drive(box.session.stat(at("kinds/none")))
    expect(not stat.exists, "expected a missing file not to exist")


@probe("commands")
def a_command_gives_code_and_both_streams(box: Box) -> None:
    """Exit status, stdout and stderr apart, no terminal, stdin at its end."""
    done = box.run("sh", "-c", "echo out; echo err >&2; cat; exit 3", timeout_s=20)
    expect(done.exit_code == 3, f"expected exit status 3, found {done.exit_code}")
    expect(_bytes(done.stdout) == b"out\n", f"expected 'out', found {done.stdout!r}")
    expect(_bytes(done.stderr) == b"err\n", f"expected 'err', found {done.stderr!r}")


@probe("commands")
def a_command_takes_environment_and_folder(box: Box) -> None:
    """As given, without a shell in between."""
    box.write("below/x", b"")
    done = box.run("sh", "-c", 'echo "$RGCHECK"; pwd', env={"RGCHECK": "a b'c"}, cwd=at("below"), timeout_s=20)
    expect(_bytes(done.stdout) == f"a b'c\n{at('below')}\n".encode(), f"found {done.stdout!r}")


@probe("commands")
def a_commands_timeout_kills_it_and_its_children(box: Box) -> None:
    """Children in the background, and ones that left the session."""
    mark = token()
    child = f"exec -a {mark} sleep 999"
    done = box.run("bash", "-c", f"(setsid bash -c '{child}' &) ; (bash -c '{child}' &) ; {child}", timeout_s=1.0)
    expect(done.timed_out, f"expected timed_out, found {done}")
    expect(done.duration_s < 5, f"expected about 1 s, found {done.duration_s:.1f} s")
    box.gone(mark)


@probe("commands")
def a_commands_output_is_capped(box: Box) -> None:
    """A flood ends within the cap plus one read."""
    done = box.run("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x", timeout_s=20, max_output_bytes=10_000)
    expect(len(done.stdout) <= 30_000, f"expected about 10000 bytes, found {len(done.stdout)}")
    expect(done.exit_code is not None, "expected the command to end")


@probe("commands")
def a_missing_command_is_said(box: Box) -> None:
    """Not a hang, not exit status 0."""
    try:
        done = box.run("/no/such/program", timeout_s=10)
    except Exception as error:
        expect(getattr(error, "code", "") == "exec_failed", f"expected exec_failed, found {error!r}")
        return
    expect(done.exit_code not in (0, None), f"expected a failure, found {done}")


def _bytes(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else os.fsencode(data)

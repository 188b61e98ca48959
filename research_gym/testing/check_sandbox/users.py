"""Who the agent is: a user without privileges and without a way to get any."""

from __future__ import annotations

from research_gym.testing.check_sandbox.kit import Box, expect, probe

_PLAIN = "plain local runs as the user who started it, without seccomp and without namespaces"

_STATUS = "print({l.split(':')[0]: l.split(':')[1].split() for l in open('/proc/self/status')}[%r])"


@probe("users")
def the_agent_is_not_root(box: Box) -> None:
    """Real, effective, saved and file system ids of user and group; no group 0 beside them."""
    out = box.text("import os; print(0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()))")
    expect(out == "False", "expected no id and no group to be 0")


@probe("users")
def the_agent_cannot_become_another_user(box: Box) -> None:
    """Neither root nor the next user."""
    out = box.text(
        "import os\n"
        "for call, number in ((os.setuid, 0), (os.setgid, 0), (os.setuid, os.getuid() + 1)):\n"
        "    try: call(number); print('became', number)\n"
        "    except OSError: pass"
    )
    expect(out == "", f"expected every call to be refused, found {out!r}")


@probe("users")
def there_are_no_capabilities(box: Box) -> None:
    """Effective, permitted, inheritable and ambient."""
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        out = box.text(_STATUS % name)
        expect(out == "['0000000000000000']", f"expected no capability in {name}, found {out}")


@probe("users", isolation=_PLAIN)
def new_privileges_are_off(box: Box) -> None:
    """A setuid program gives nothing."""
    out = box.text(_STATUS % "NoNewPrivs")
    expect(out == "['1']", f"expected NoNewPrivs 1, found {out}")


@probe("users", isolation=_PLAIN)
def system_calls_are_filtered(box: Box) -> None:
    """Seccomp mode 2 (filter), also in a child."""
    expect(box.text(_STATUS % "Seccomp") == "['2']", "expected seccomp mode 2 in the kernel")
    out = box.text(
        "import subprocess; print(subprocess.run(['grep', '^Seccomp:', '/proc/self/status'], capture_output=True))"
    )
    expect("2" in out, f"expected seccomp mode 2 in a child, found {out}")


@probe("users", isolation=_PLAIN)
def dangerous_system_calls_are_refused(box: Box) -> None:
    """User namespaces, mounts, keyrings, perf, bpf, userfaultfd."""
    out = box.text(
        "import ctypes, platform\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = {'x86_64': {'unshare': (272, 0x10000000), 'mount': (165, 0), 'keyctl': "
        "(250, 0), 'perf_event_open': (298, 0),\n"
        "                    'bpf': (321, 0), 'userfaultfd': (323, 0)},\n"
        "         'aarch64': {'unshare': (97, 0x10000000), 'mount': (40, 0), 'keyctl': "
        "(219, 0), 'perf_event_open': (241, 0),\n"
        "                     'bpf': (280, 0), 'userfaultfd': (282, 0)}}[platform.machine()]\n"
        "import os\n"
        "for name, (number, argument) in calls.items():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        ctypes.set_errno(0)\n"
        "        result = libc.syscall(number, argument, 0, 0, 0, 0, 0)\n"
        "        os._exit(0 if result >= 0 else ctypes.get_errno())\n"
        "    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    # EPERM 1 and ENOSYS 38 are refusals; EFAULT or EINVAL would mean that the kernel looked at the arguments.
    granted = [line for line in out.splitlines() if line.split()[1] not in ("1", "38")]
    expect(not granted, f"expected EPERM or ENOSYS, found {granted}")


@probe("users", isolation=_PLAIN)
def io_uring_is_refused(box: Box) -> None:
    """It does file and network work past every filter of system calls; engines before 25 let it through."""
    out = box.text(
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(425, 1, 0) >= 0 or ctypes.get_errno())"
    )
    expect(out in ("1", "38"), f"expected EPERM or ENOSYS, found {out}")


@probe("users", isolation=_PLAIN)
def pid_one_cannot_be_signalled(box: Box) -> None:
    """Neither by number nor with everything else."""
    out = box.text("import os\ntry: os.kill(1, 9); print('sent')\nexcept OSError as error: print(type(error).__name__)")
    expect(out == "PermissionError", f"expected PermissionError, found {out!r}")
    box.cell("import os\nos.kill(-1, 15)")  # whatever becomes of the kernel, it is the agent's own doing
    box.cell("print(0)")
    expect(box.text("print(1)") == "1", "expected the box to survive kill(-1)")


@probe("users", isolation=_PLAIN)
def pid_one_cannot_be_read_or_traced(box: Box) -> None:
    """Its memory, environment, descriptors and root are closed."""
    out = box.text(
        "import os\n"
        "for name in ('environ', 'mem', 'fd', 'root/etc', 'cwd', 'maps'):\n"
        "    path = '/proc/1/' + name\n"
        "    try: print(name, os.listdir(path) if name in ('fd', 'root/etc', 'cwd') else open(path, 'rb').read(1))\n"
        "    except OSError: pass\n"
        "import ctypes\n"
        "if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0: print('ptrace')"
    )
    expect(out == "", f"expected nothing of pid 1 to be readable, found {out!r}")


@probe("users", isolation=_PLAIN)
def the_system_is_read_only(box: Box) -> None:
    """Programs, settings and the interpreter cannot be changed: nothing can be planted there for later."""
    out = box.text(
        "import os, sys, site\n"
        "places = ['/', '/usr', '/usr/bin', '/etc', '/lib', sys.prefix, "
        "os.path.dirname(os.__file__), *site.getsitepackages(), '/sys', '/proc/sys/kernel']\n"
        "for place in places:\n"
        "    try: open(os.path.join(place, 'rgcheck'), 'w'); print('wrote', place)\n"
        "    except OSError: pass\n"
        "for path in ('/etc/passwd', '/etc/ld.so.preload', "
        "'/proc/sys/kernel/core_pattern', sys.executable, os.__file__):\n"
        "    try: open(path, 'ab'); print('opened', path)\n"
        "    except OSError: pass"
    )
    expect(out == "", f"expected every write to be refused, found {out!r}")


@probe("users", isolation=_PLAIN)
def no_device_of_the_machine_is_there(box: Box) -> None:
    """Only the harmless character devices; no block device, no kernel memory."""
    out = box.text(
        "import os, stat\n"
        "for name in os.listdir('/dev'):\n"
        "    mode = os.lstat('/dev/' + name).st_mode\n"
        "    if stat.S_ISBLK(mode) or name in ('mem', 'kmem', 'port', 'kmsg', 'fuse', 'kvm'): print(name)"
    )
    expect(out == "", f"expected no such device, found {out!r}")
    out = box.text(
        "import os, stat\n"
        "try: os.mknod('dev', 0o600 | stat.S_IFBLK, os.makedev(8, 0)); print('made')\n"
        "except OSError: pass"
    )
    expect(out == "", "expected mknod of a block device to be refused")

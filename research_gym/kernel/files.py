"""Files of the agent, read and written by pid 1 with the agent's own rights, without following a link anywhere."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)

_CODES = {
    errno.ELOOP: "link",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.ENAMETOOLONG: "missing",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EISDIR: "not_regular",
    errno.ENXIO: "not_regular",
    errno.EEXIST: "not_regular",
    errno.ENOTEMPTY: "not_regular",
}
_KINDS = (
    (stat.S_ISREG, "regular"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)


class Refused(Exception):
    """A file request that is refused; `code` goes into the error frame."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Files:
    """File access for one agent.

    Args:
        workdir: Relative paths start here.
        writable_roots: Folders beneath which `Writing` may create files.
        user: uid and gid to act as, `None` where pid 1 already has the agent's rights.
    """

    def __init__(self, *, workdir: str, writable_roots: Sequence[str], user: tuple[int, int] | None) -> None:
        self._workdir = workdir
        self._roots = [_parts(root) for root in writable_roots]
        self._user = user

    @contextlib.contextmanager
    def as_agent(self) -> Iterator[None]:
        """Acts with the agent's rights: what its user may not read, pid 1 does not read for it either."""
        if self._user is None:
            yield
            return
        uid, gid = self._user
        os.setegid(gid)
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)

    def parts(self, path: Any) -> list[str]:
        """The components of an absolute path from a request.

        Raises:
            Refused: not a path, or one with `..` or NUL.
        """
        if not isinstance(path, str) or not path:
            raise Refused("bad_request", f"path: expected a string that is not empty, found {path!r:.100}")
        return _parts(os.path.join(self._workdir, path))

    def stat(self, path: Any) -> dict[str, Any]:
        """What is at a path, without following a link in its last component; kind `none` if nothing is there.

        Raises:
            Refused: the path runs through a link, or may not be looked at.
        """
        parts = self.parts(path)
        try:
            with self.as_agent():
                folder = open_folder(parts[:-1])
                try:
                    found = os.stat(parts[-1] if parts else ".", dir_fd=folder, follow_symlinks=False)
                finally:
                    os.close(folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return {"exists": False, "kind": "none", "size": 0, "mtime_ns": 0}
            raise _refused(error, parts) from error
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "device")
        return {"exists": True, "kind": kind, "size": found.st_size, "mtime_ns": found.st_mtime_ns}

    def open_regular(self, path: Any, *, max_bytes: int) -> int:
        """Opens a regular file for reading and returns its descriptor; never waits for a FIFO.

        Raises:
            Refused: missing, a link on the way, not a regular file, larger than `max_bytes`, not the agent's to read.
        """
        parts = self.parts(path)
        try:
            with self.as_agent():
                fd = open_no_links(parts, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise _refused(error, parts) from error
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise Refused("not_regular", f"{path!r:.200}: expected a regular file")
        if found.st_size > max_bytes:
            os.close(fd)
            raise Refused("too_large", f"{path!r:.200}: {found.st_size} bytes, over the limit of {max_bytes}")
        return fd

    def create(self, path: Any, *, mode: int, size: int) -> Writing:
        """Begins an atomic write beneath one of the writable roots; missing folders are made.

        Raises:
            Refused: outside the roots, a link on the way, no room, no right.
        """
        parts = self.parts(path)
        root = max((r for r in self._roots if len(parts) > len(r) and parts[: len(r)] == r), key=len, default=None)
        if root is None:
            roots = ", ".join("/" + "/".join(r) for r in self._roots)
            raise Refused("denied", f"{path!r:.200}: expected a path beneath {roots}")
        try:
            with self.as_agent():
                folder = open_folder(parts[:-1], make_after=len(root))
                temporary = f".research-gym-{secrets.token_hex(8)}"
                try:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    fd = os.open(temporary, flags, 0o600, dir_fd=folder)
                except OSError:
                    os.close(folder)
                    raise
        except OSError as error:
            raise _refused(error, parts) from error
        return Writing(self, folder=folder, fd=fd, temporary=temporary, parts=parts, mode=mode, size=size)


class Writing:
    """One file on its way: chunks go to a temporary name, `finish` renames it. `abort` is idempotent."""

    def __init__(
        self, files: Files, *, folder: int, fd: int, temporary: str, parts: list[str], mode: int, size: int
    ) -> None:
        self._files = files
        self._folder = folder
        self._fd = fd
        self._temporary = temporary
        self._parts = parts
        self._mode = mode
        self._left = size
        self._open = True

    def write(self, data: bytes) -> None:
        """Appends a chunk.

        Raises:
            Refused: more bytes than announced, or no room; the temporary file is gone then.
        """
        self._left -= len(data)
        if self._left < 0:
            self.abort()
            raise Refused("bad_request", "write_file: more bytes than announced in size")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.abort()
            raise _refused(error, self._parts) from error

    def finish(self) -> None:
        """Puts the file in its place.

        Raises:
            Refused: fewer bytes than announced, or the place is taken by a folder.
        """
        if self._left:
            self.abort()
            raise Refused("bad_request", f"write_file: {self._left} bytes fewer than announced in size")
        try:
            with self._files.as_agent():
                os.fchmod(self._fd, self._mode & 0o777)
                os.rename(self._temporary, self._parts[-1], src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            self.abort()
            raise _refused(error, self._parts) from error
        self._close()

    def abort(self) -> None:
        """Removes the temporary file."""
        if self._open:
            with contextlib.suppress(OSError), self._files.as_agent():
                os.unlink(self._temporary, dir_fd=self._folder)
            self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self._fd)
        os.close(self._folder)


class Reading:
    """One file on its way out, chunk by chunk, with its digest."""

    def __init__(self, fd: int, *, max_bytes: int) -> None:
        self._fd = fd
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """Hex digest of what was read so far."""
        return self._digest.hexdigest()

    def read(self) -> bytes:
        """The next chunk, empty at the end.

        Raises:
            Refused: the file grew over the limit while it was read.
        """
        try:
            data = os.read(self._fd, 1 << 19)
        except OSError as error:
            raise Refused("denied", f"read failed: {os.strerror(error.errno or 0)}") from error
        self.size += len(data)
        if self.size > self._max_bytes:
            raise Refused("too_large", f"the file grew over the limit of {self._max_bytes} bytes while it was read")
        self._digest.update(data)
        return data

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._fd)


def open_no_links(parts: Sequence[str], flags: int) -> int:
    """Opens `/a/b/c` refusing a symbolic link in any component, the last one included.

    Raises:
        OSError: ELOOP for a link.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    path = os.fsencode("/" + "/".join(parts))
    fd: int = _libc.syscall(_OPENAT2, _AT_FDCWD, path, how, len(how))
    if fd >= 0:
        return fd
    error = ctypes.get_errno()
    if error not in (errno.ENOSYS, errno.EPERM):  # an old seccomp profile answers EPERM to what it does not know
        raise OSError(error, os.strerror(error))
    return walk_no_links(parts, flags)


def walk_no_links(parts: Sequence[str], flags: int) -> int:
    """The same without openat2: component by component."""
    if not parts:
        return os.open("/", flags | os.O_CLOEXEC)
    folder = open_folder(parts[:-1])
    try:
        return os.open(parts[-1], flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def open_folder(parts: Sequence[str], *, make_after: int | None = None) -> int:
    """Opens a folder without following links, making those missing beyond the first `make_after` components.

    Raises:
        OSError: ELOOP for a link, ENOTDIR for any other thing that is no folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open("/", flags)
    for index, name in enumerate(parts):
        try:
            try:
                inner = _open_step(folder, name)
            except FileNotFoundError:
                if make_after is None or index < make_after:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
                inner = _open_step(folder, name)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _open_step(folder: int, name: str) -> int:
    path_only = getattr(os, "O_PATH", 0)  # a folder may be entered that may not be listed
    try:
        return os.open(name, path_only | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def _parts(path: str) -> list[str]:
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise Refused("bad_request", "path: holds characters that no file name can have") from error
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path or not path.startswith("/"):
        raise Refused("bad_request", f"path: expected an absolute path without '..' and NUL, found {path!r:.100}")
    return parts


def _refused(error: OSError, parts: Sequence[str]) -> Refused:
    code = _CODES.get(error.errno or 0, "denied")
    return Refused(code, f"{'/' + '/'.join(parts)!r:.200}: {os.strerror(error.errno or 0)}")

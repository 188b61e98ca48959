"""Builds the small pure Python wheels that a task's data hold: the same bytes every time."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

_MOMENT = (2024, 1, 1, 0, 0, 0)


def build_wheel(source: Path, *, name: str, version: str, into: Path) -> Path:
    """Packs the `.py` files under a folder into `<name>-<version>-py3-none-any.whl` and returns its path.

    Without a build back end, so that it works offline; with a fixed time stamp, so that checksums agree.
    """
    info = f"{name}-{version}.dist-info"
    content = {path.relative_to(source).as_posix(): path.read_bytes() for path in sorted(source.rglob("*.py"))}
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    tags = ("Wheel-Version: 1.0", "Generator: research_gym", "Root-Is-Purelib: true", "Tag: py3-none-any", "")
    content[f"{info}/WHEEL"] = "\n".join(tags).encode()
    records = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,", ""]).encode()
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, date_time=_MOMENT)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")

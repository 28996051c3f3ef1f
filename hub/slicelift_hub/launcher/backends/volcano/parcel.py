"""The runtime as one file that any Python runs: facade, words and runtime of this version, the same bytes every time."""

from __future__ import annotations

import functools
import hashlib
import io
import sys
import zipfile
from pathlib import Path

_MAIN = b"from slicelift.runtime.pod import main\n\nraise SystemExit(main())\n"
_TOP = ("__init__.py", "_version.py", "errors.py", "models.py", "py.typed")
# zip knows no time before it
_WHEN = (1980, 1, 1, 0, 0, 0)


@functools.cache
def make_parcel() -> bytes:
    """A zip with `__main__.py`. Blocks: it reads some 60 files, once."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _contents().items():
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return stream.getvalue()


@functools.cache
def parcel_name() -> str:
    """`slicelift-runtime-<12 hex of what is in it>`: two versions never share one."""
    digest = hashlib.sha256()
    for name, content in _contents().items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return f"slicelift-runtime-{digest.hexdigest()[:12]}"


def _contents() -> dict[str, bytes]:
    source = Path(sys.modules["slicelift.errors"].__file__ or "").parent
    files = [source / name for name in _TOP] + sorted((source / "runtime").rglob("*.py"))
    found = {f"slicelift/{path.relative_to(source).as_posix()}": path.read_bytes() for path in files}
    return {"__main__.py": _MAIN} | dict(sorted(found.items()))

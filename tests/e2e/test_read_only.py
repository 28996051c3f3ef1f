"""As root: workers see exactly the promoted data, and cannot change it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.needs_root]


def test_the_data_of_a_job_cannot_be_written(desk: Any) -> None:
    cell = """
import os, pathlib
folder = pathlib.Path("data/digits")
print("files", len(list(folder.iterdir())))
for attempt in ("write", "append", "unlink", "create", "chmod"):
    victim = folder / "0001-1.pgm"
    try:
        {"write": lambda: victim.write_bytes(b"x"), "append": lambda: victim.open("ab").write(b"x"), "unlink": victim.unlink,
         "create": lambda: (folder / "new").write_text("x"), "chmod": lambda: victim.chmod(0o777)}[attempt]()
        print(attempt, "worked")
    except OSError as error:
        print(attempt, "refused", type(error).__name__)
"""
    path = desk.notebook("vandal.ipynb", cell)
    done = desk.slicelift("promote", path, "--wait", "--json")
    assert done.code == 0, done
    log = desk.slicelift("logs", done.json["run_id"], "--rank", "0").out
    assert "files 1797" in log
    assert log.count("refused") == 5, log
    assert "worked" not in log
    original = desk.project / "notebooks/data/digits/0001-1.pgm"
    digest = hashlib.md5(original.read_bytes()).hexdigest()
    cached = desk.home / f"cache/files/md5/{digest[:2]}/{digest[2:]}"
    assert hashlib.md5(cached.read_bytes()).hexdigest() == digest

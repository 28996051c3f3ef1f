"""A real launcher without MLflow, for what people see of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a running launcher without MLflow; SLICELIFT_HOME points there."""
    home = tmp_path_factory.mktemp("launcher")
    before = os.environ["SLICELIFT_HOME"]
    os.environ["SLICELIFT_HOME"] = str(home)
    command = [sys.executable, "-m", "slicelift_hub.launcher", "--port=0", "--tracker=none"]
    with (home.parent / "launcher.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def is_up() -> bool:
        assert process.poll() is None, (home.parent / "launcher.log").read_text()
        return (home / "launcher.json").exists()

    wait_for("the launcher", is_up)
    yield home
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    os.environ["SLICELIFT_HOME"] = before

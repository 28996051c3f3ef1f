"""For all tiers: nothing touches the home of whoever runs the tests, and a skip is counted where it counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty home and empty XDG folders for the whole run, for this process and all it starts."""
    home = tmp_path_factory.mktemp("home")
    changed = {"HOME": str(home), "SLICELIFT_HOME": str(home / "slicelift"), "DVC_NO_ANALYTICS": "1"}
    dropped = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MLFLOW_TRACKING_URI", "PYTHONPATH")
    before = {name: os.environ.get(name) for name in (*changed, *dropped)}
    os.environ.update(changed)
    for name in dropped:
        os.environ.pop(name, None)
    yield home
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `needs_root` are left out, with the reason, where they cannot hold."""
    if os.geteuid() == 0:
        return
    reason = "needs root: mount namespaces and users of their own"
    for item in items:
        if item.get_closest_marker("needs_root"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With SLICELIFT_NO_SKIP a skipped test fails the run: CI must not count what it did not see."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("SLICELIFT_NO_SKIP") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

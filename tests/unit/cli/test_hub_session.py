"""The environment of a hub's session names the launcher: nothing is started, no state file is read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from slicelift import launcher_client, launcher_start
from slicelift.errors import Denied, SliceliftError, Unavailable, UserError

AWAY = "http://127.0.0.1:9"


@pytest.fixture
def session(launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As the spawner makes it: the address of a running launcher, its token, and a home without state file."""
    state = json.loads((launcher / "launcher.json").read_text())
    monkeypatch.setenv("SLICELIFT_HOME", str(tmp_path / "nobody's home"))
    monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", state["url"] + "/")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", state["token"])
    return dict(state)


class Older(BaseHTTPRequestHandler):
    """A launcher of another version."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "0.0.1"}')

    def log_message(self, *_: Any) -> None:
        """Silence."""


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Older)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "t")
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_find_and_ensure_give_the_launcher_of_the_environment(session: dict[str, Any]) -> None:
    for make in (launcher_client.find, launcher_client.ensure, launcher_start.ensure):
        with make() as client:
            assert client.url == session["url"]
            assert isinstance(client.jobs(), list)


def test_the_token_of_slicelift_wins_over_the_sessions(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "another service's")
    with launcher_client.find() as client, pytest.raises(Denied):
        client.jobs()
    monkeypatch.setenv("SLICELIFT_LAUNCHER_TOKEN", session["token"])
    with launcher_client.find() as client:
        assert isinstance(client.jobs(), list)


def test_a_home_that_is_named_counts_more(session: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as found:
        launcher_client.find(tmp_path)
    assert found.value.code == "launcher-not-running"


def test_away_is_told_to_somebody_who_cannot_restart_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLICELIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", AWAY)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "t")
    for make in (launcher_client.find, launcher_client.ensure):
        with pytest.raises(Unavailable) as found:
            make()
        assert found.value.code == "launcher-away"
        assert "make up" not in found.value.hint
        assert "whoever runs the hub" in found.value.hint
    assert not (tmp_path / "home").exists()


def test_what_the_environment_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", "127.0.0.1:8765")
    with pytest.raises(UserError, match="no http address"):
        launcher_client.find()
    monkeypatch.setenv("SLICELIFT_LAUNCHER_URL", AWAY)
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN", raising=False)
    with pytest.raises(Denied, match="no token"):
        launcher_client.find()


def test_another_version_is_refused_with_the_way_on(older: str) -> None:
    with pytest.raises(SliceliftError, match=r"is version 0\.0\.1") as found:
        launcher_client.find()
    assert found.value.code == "launcher-version"
    assert "pip install slicelift==0.0.1" in found.value.hint
    launcher_client.find(any_version=True).close()


def test_commands_in_the_sessions_terminal(session: dict[str, Any], cli: Any) -> None:
    assert isinstance(cli("jobs", "--json").json["jobs"], list)
    for command in ("up", "down"):
        done = cli(command)
        assert done.code == 2
        assert f"this session uses the hub's, at {session['url']}" in done.err

"""What the launcher makes of a hub's answers: remembered, refused, and when the hub is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from slicelift.errors import Denied, SliceliftError, Unavailable
from slicelift_hub.launcher.hub_tokens import HubAccess, HubTokens

SCOPE = "access:services!service=launcher"


class FakeHub:
    """Answers `GET /hub/api/user` as it is told to; a real hub cannot be made to fail at a moment."""

    def __init__(self) -> None:
        self.status, self.body, self.calls = 200, {"kind": "user", "name": "anna", "scopes": [SCOPE]}, 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.calls += 1
                self.send_response(hub.status)
                self.end_headers()
                self.wfile.write(json.dumps(hub.body).encode())

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    made = FakeHub()
    yield made
    if made.thread.is_alive():
        made.close()


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def tokens(fake: FakeHub, clock: list[float]) -> Iterator[HubTokens]:
    api = f"http://127.0.0.1:{fake.server.server_port}/hub/api"
    access = HubAccess.of_environment({"JUPYTERHUB_API_URL": api, "JUPYTERHUB_API_TOKEN": "mine"})
    made = HubTokens(access, clock=lambda: clock[0])
    yield made
    made.close()


def test_a_user_comes_with_the_groups_that_the_hub_has_them_in(tokens: HubTokens, fake: FakeHub) -> None:
    found = tokens.authenticate("t")
    assert found is not None
    assert found.groups == ()
    fake.body |= {"groups": ["staff", "course-1"]}
    found = tokens.authenticate("u")
    assert found is not None
    assert found.groups == ("course-1", "staff")


def test_an_answer_is_remembered_for_half_a_minute(
    tokens: HubTokens, fake: FakeHub, clock: list[float]
) -> None:
    assert tokens.recall("t") is None
    found = tokens.authenticate("t")
    assert found is not None
    assert (found.owner, found.operator, found.attempt) == ("anna", False, None)
    clock[0] += 29
    assert tokens.recall("t") == found
    assert tokens.authenticate("t") == found
    assert fake.calls == 1
    clock[0] += 2
    assert tokens.recall("t") is None
    fake.status = 403
    assert tokens.authenticate("t") is None
    assert fake.calls == 2


def test_an_unknown_token_is_not_asked_for_at_every_call(
    tokens: HubTokens, fake: FakeHub, clock: list[float]
) -> None:
    fake.status = 403
    for _ in range(5):
        assert tokens.authenticate("t") is None
    assert fake.calls == 1
    fake.status, clock[0] = 200, clock[0] + 6
    assert tokens.authenticate("t")


def test_tokens_of_attempts_and_what_cannot_be_one_are_not_asked_for(
    tokens: HubTokens, fake: FakeHub
) -> None:
    for token in ("", "a-1234", "a\nb", "ünicode"):
        assert tokens.authenticate(token) is None
    assert fake.calls == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"kind": "user", "name": "anna", "scopes": ["self"]}, "token-lacks-scope"),
        ({"kind": "user", "name": "anna", "scopes": ["access:services!service=other"]}, "token-lacks-scope"),
        ({"kind": "service", "name": "idle-culler", "scopes": [SCOPE]}, "not-a-user"),
    ],
)
def test_a_token_that_is_no_key_to_the_launcher(
    tokens: HubTokens, fake: FakeHub, body: dict[str, Any], code: str
) -> None:
    fake.body = body
    with pytest.raises(Denied) as caught:
        tokens.authenticate("t")
    assert caught.value.code == code
    assert str(body["name"]) in caught.value.message


def test_while_the_hub_is_away_the_remembered_go_on_for_five_minutes(
    tokens: HubTokens, fake: FakeHub, clock: list[float]
) -> None:
    found = tokens.authenticate("t")
    fake.close()
    clock[0] += 200
    assert tokens.authenticate("t") == found
    with pytest.raises(Unavailable) as caught:
        tokens.authenticate("other")
    assert caught.value.code == "hub-away"
    clock[0] += 101
    with pytest.raises(Unavailable):
        tokens.authenticate("t")


def test_a_hub_that_answers_nonsense_counts_as_away(tokens: HubTokens, fake: FakeHub) -> None:
    fake.status = 503
    with pytest.raises(Unavailable) as caught:
        tokens.authenticate("t")
    assert "503" in caught.value.message


def test_without_a_hub_there_is_no_access(fake: FakeHub) -> None:
    with pytest.raises(SliceliftError) as caught:
        HubAccess.of_environment({"JUPYTERHUB_API_URL": "http://127.0.0.1:1"})
    assert caught.value.code == "hub-unknown"
    assert "JUPYTERHUB_API_TOKEN" in caught.value.message

"""Who may call what: every route, from outside."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from slicelift.launcher_client import Client
from slicelift_hub.launcher.auth import AttemptTokens
from slicelift_hub.launcher.routes import ROUTES

ATTEMPT = "/attempts/r-aaaaaaaaaaaa-1"
SAMPLES = [
    "/health",
    "/capacity",
    "/snapshots",
    f"/snapshots/{'0' * 64}",
    f"/snapshots/{'0' * 64}/files/a/b.py",
    "/blobs",
    "/plan",
    "/jobs",
    "/jobs/r-aaaaaaaaaaaa",
    "/jobs/r-aaaaaaaaaaaa/cancel",
    "/jobs/r-aaaaaaaaaaaa/suspend",
    "/jobs/r-aaaaaaaaaaaa/scale",
    "/jobs/r-aaaaaaaaaaaa/retry",
    "/jobs/r-aaaaaaaaaaaa/attempts",
    "/jobs/r-aaaaaaaaaaaa/series",
    "/jobs/r-aaaaaaaaaaaa/logs",
    "/jobs/r-aaaaaaaaaaaa/outputs",
    "/jobs/r-aaaaaaaaaaaa/outputs/1/a.txt",
    "/events",
    "/models",
    "/models/digits/aliases/champion",
    "/secrets",
    "/secrets/NAME",
    "/mlflow/api/2.0/mlflow/runs/get",
    "/shutdown",
    f"{ATTEMPT}/snapshot",
    f"{ATTEMPT}/secrets",
    f"{ATTEMPT}/events",
    f"{ATTEMPT}/logs",
    f"{ATTEMPT}/outputs/a.txt",
    f"{ATTEMPT}/blobs/{'0' * 64}",
    f"{ATTEMPT}/models",
    f"{ATTEMPT}/state",
    f"{ATTEMPT}/mlflow/api/2.0/mlflow/runs/get",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]


def test_the_samples_are_all_routes_there_are() -> None:
    for pattern, _ in ROUTES:
        assert any(re.fullmatch(pattern, sample) for sample in SAMPLES), f"no sample for {pattern}"


@pytest.mark.parametrize(
    "header", [None, "token wrong", "Basic dTpw", "token a-wrong", "token ünicode".encode()]
)
def test_nothing_but_health_answers_without_a_token(launcher: Any, header: Any) -> None:
    headers = {} if header is None else {"Authorization": header}
    with httpx.Client(base_url=launcher.url, headers=headers, trust_env=False) as http:
        for sample in [*SAMPLES, "/nothing", "/"]:
            for method in METHODS:
                answer = http.request(method, sample, content=b"{}" if method in ("POST", "PUT") else b"")
                wanted = {200, 405} if sample == "/health" else {401}
                assert answer.status_code in wanted, f"{method} {sample}: {answer.status_code}"
        assert http.get("/jobs").json()["code"] == "not-signed-in"


def test_health_says_who_it_is_to_everyone(launcher: Any) -> None:
    answer = httpx.get(f"{launcher.url}/health", trust_env=False).json()
    assert answer["instance"] == launcher.state["instance"]
    assert answer["tracker"]["status"] == "none"


def test_a_job_token_opens_its_own_attempt_only(launcher: Any) -> None:
    mine, other = launcher.running(), launcher.running()
    agent = launcher.agent(mine)
    own, foreign = f"/attempts/{mine.run_id}-1", f"/attempts/{other.run_id}-1"
    assert agent.http.get(f"{launcher.url}{own}/secrets").json() == {}
    for path in ("secrets", "snapshot"):
        assert agent.http.get(f"{launcher.url}{foreign}/{path}").status_code == 404
    for path in ("events", "state", "models", "logs?rank=0&offset=0"):
        assert agent.http.post(f"{launcher.url}{foreign}/{path}", content=b"{}").status_code == 404
    for path in ("/jobs", f"/jobs/{mine.run_id}", "/secrets", "/events", "/models", "/capacity"):
        assert agent.http.get(launcher.url + path).status_code == 403, path
    assert agent.http.post(f"{launcher.url}/shutdown", content=b"{}").status_code == 403
    for view in (mine, other):
        launcher.client.cancel(view.run_id)


def test_the_user_does_not_get_the_values_of_secrets_by_an_agents_call(launcher: Any) -> None:
    launcher.client.set_secret("API_KEY", "s3cret")
    view = launcher.running(secrets=("API_KEY",))
    with launcher.http() as http:
        answer = http.get(f"/attempts/{view.run_id}-1/secrets")
        assert (answer.status_code, "s3cret" in answer.text) == (403, False)
        assert "s3cret" not in http.get(f"/jobs/{view.run_id}").text
        assert http.get("/secrets").json() == {"secrets": ["API_KEY"]}
    agent = launcher.agent(view)
    assert agent.http.get(f"{agent.base}/secrets").json() == {"API_KEY": "s3cret"}
    assert "s3cret" not in (launcher.home / "test.log").read_text()
    launcher.client.cancel(view.run_id)
    launcher.client.delete_secret("API_KEY")
    assert launcher.client.secrets() == []


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "169.254.169.254"]
)
def test_other_host_names_are_refused(launcher: Any, host: str) -> None:
    with launcher.http() as http:
        for path in ("/health", "/jobs"):
            answer = http.get(path, headers={"Host": host})
            assert (answer.status_code, answer.json()["code"]) == (403, "bad-host")
        port = launcher.url.split(":")[2].split("/")[0]
        assert http.get("/jobs", headers={"Host": f"localhost:{port}"}).status_code == 200


def test_tokens_and_keys_are_nowhere_but_in_the_users_own_files(launcher: Any) -> None:
    view = launcher.running()
    token = launcher.agent(view).http.headers["Authorization"].removeprefix("token ")
    for name in ("ledger.db", "ledger.db-wal"):
        assert token.encode() not in (launcher.home / name).read_bytes()
    for name in ("launcher.json", "identity.json", "ledger.db", "launcher.lock"):
        assert (launcher.home / name).stat().st_mode & 0o777 == 0o600, name
    assert launcher.home.stat().st_mode & 0o777 == 0o700
    launcher.client.cancel(view.run_id)


def test_a_client_with_an_old_token_and_address_finds_the_new_one(launcher: Any) -> None:
    with Client(launcher.client.url, "wrong", home=launcher.home) as client:
        assert client.jobs(limit=1) == launcher.client.jobs(limit=1)


def test_the_token_of_an_attempt_is_asked_for_again_after_a_while() -> None:
    """Remembered, so that twenty calls a second cost no look-up each, and yet it ends with the attempt."""
    row: Any = SimpleNamespace(owner="ada")
    asked: list[str] = []

    def find(token: str) -> Any:
        asked.append(token)
        return row

    tokens = AttemptTokens(find, seconds=0.2)
    assert tokens.recall("a-1") is None
    found = tokens.authenticate("a-1")
    assert found is not None
    assert (found.owner, tokens.recall("a-1")) == ("ada", found)
    assert tokens.authenticate("no token of an attempt") is None
    assert asked == ["a-1"]
    time.sleep(0.25)
    row = None
    assert tokens.recall("a-1") is None
    assert tokens.authenticate("a-1") is None

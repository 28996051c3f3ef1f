"""The launcher as a service of the hub: whose token opens what, and what outlives what."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import httpx
import pytest
from slicelift.errors import Denied, NotFound, Refused, Unavailable
from slicelift.models import Status

from tests.waiting import wait_for


@pytest.fixture(scope="module")
def annas_session(anna: Any) -> dict[str, str]:
    """The environment of a session of anna's, which her kernels have too."""
    anna.spawn()
    found: dict[str, str] = anna.session()
    return found


@pytest.fixture(scope="module")
def annas_job(hub: Any, tools: Any, annas_session: dict[str, str]) -> Any:
    """A job that runs, submitted with the session's own token."""
    client = hub.launcher(annas_session["JUPYTERHUB_API_TOKEN"])
    view = tools.submit(client)
    wait_for("it to run", lambda: client.job(view.run_id).status is Status.RUNNING)
    return client.job(view.run_id)


def test_a_session_reaches_the_launcher_with_its_own_token(
    hub: Any, annas_session: dict[str, str], annas_job: Any
) -> None:
    assert annas_session["SLICELIFT_LAUNCHER_URL"] == hub.launcher_url
    client = hub.launcher(annas_session["JUPYTERHUB_API_TOKEN"])
    assert annas_job.owner == "anna"
    assert [view.run_id for view in client.jobs()] == [annas_job.run_id]
    headers = {"Authorization": f"Bearer {annas_session['JUPYTERHUB_API_TOKEN']}"}
    through = f"{hub.url}/services/launcher/api/v1/jobs/{annas_job.run_id}"
    assert httpx.get(through, headers=headers, trust_env=False).json()["run_id"] == annas_job.run_id


def test_another_user_sees_none_of_it(hub: Any, ben: Any, annas_job: Any) -> None:
    ben.spawn()
    client = hub.launcher(ben.session()["JUPYTERHUB_API_TOKEN"])
    assert client.jobs() == client.jobs(everyone=True) == []
    # who stops the launcher is told whose jobs end
    assert annas_job.run_id in [view.run_id for view in hub.operator().jobs(everyone=True)]
    calls = (
        client.job,
        client.cancel,
        client.suspend,
        lambda run_id: client.scale(run_id, 2),
        client.retry,
        client.logs,
        client.outputs,
        client.attempts,
    )
    for call in calls:
        with pytest.raises(NotFound):
            call(annas_job.run_id)
    with pytest.raises(NotFound):
        client.snapshot_file(annas_job.spec.snapshot_id, "promoted.py")


def test_a_session_is_its_users_and_the_admins(
    hub: Any, anna: Any, ben: Any, annas_session: dict[str, str]
) -> None:
    if not ben.server().get("ready"):
        ben.spawn()
    direct = annas_session["JUPYTERHUB_SERVICE_URL"].rstrip("/")
    credentials = [f"token {ben.session()['JUPYTERHUB_API_TOKEN']}", ben.api.headers["Authorization"]]
    for headers in ({"Authorization": credential} for credential in credentials):
        for place in (direct, f"{hub.url}/user/anna"):
            assert httpx.get(f"{place}/api/contents", headers=headers, trust_env=False).status_code == 403
    assert ben.http.get("/user/anna/api/contents").status_code == 403
    assert ben.api.get("users/anna").status_code == ben.api.delete("users/anna/server").status_code == 404
    # anna is an admin
    assert anna.api.get(f"{hub.url}/user/ben/api/contents").status_code == 200
    assert "ben" in [user["name"] for user in anna.api.get("users").json()]


def test_only_the_operator_stops_the_launcher(hub: Any, annas_session: dict[str, str]) -> None:
    with pytest.raises(Denied) as caught:
        hub.launcher(annas_session["JUPYTERHUB_API_TOKEN"]).shutdown()
    assert caught.value.code == "not-operator"
    assert hub.operator().health()["version"]


def test_a_token_without_the_scope_is_refused_with_words(hub: Any, ben: Any) -> None:
    made = ben.api.post("users/ben/tokens", json={"scopes": ["read:users!user"]})
    with pytest.raises(Denied) as caught:
        hub.launcher(made.json()["token"]).jobs()
    assert caught.value.code == "token-lacks-scope"
    assert "access:services!service=launcher" in caught.value.message
    for token in ("nobody's", "a-" + "0" * 64, (hub.home / "hub" / "operator.token").read_text()):
        with pytest.raises(Denied) as caught:
            hub.launcher(token).jobs()
        assert caught.value.code in ("not-signed-in", "not-a-user")


def test_a_token_that_was_taken_back_opens_nothing(hub: Any, ben: Any) -> None:
    body = ben.api.post("users/ben/tokens", json={"note": "soon gone"}).json()
    assert ben.api.delete(f"users/ben/tokens/{body['id']}").status_code == 204
    with pytest.raises(Denied) as caught:
        hub.launcher(body["token"]).jobs()
    assert caught.value.code == "not-signed-in"


def test_any_host_name_below_the_prefix_but_only_ours_at_the_port(hub: Any) -> None:
    headers = {"Host": "hub.example.org"}
    through = httpx.get(f"{hub.url}/services/launcher/api/v1/health", headers=headers, trust_env=False)
    assert through.status_code == 200
    direct = httpx.get(f"{hub.launcher_url}/api/v1/health", headers=headers, trust_env=False)
    assert (direct.status_code, direct.json()["code"]) == (403, "bad-host")


def test_a_killed_launcher_is_back_in_seconds_and_jobs_go_on(
    hub: Any, annas_session: dict[str, str], annas_job: Any
) -> None:
    client = hub.launcher(annas_session["JUPYTERHUB_API_TOKEN"])
    killed, since = hub.launcher_pid, time.monotonic()
    os.kill(killed, signal.SIGKILL)

    def back() -> bool:
        try:
            return bool(client.job(annas_job.run_id).status is Status.RUNNING) and hub.launcher_pid != killed
        except (Unavailable, KeyError):
            return False

    wait_for("the launcher", back, seconds=30, why=hub.log)
    print(f"back after {time.monotonic() - since:.1f} s")
    assert client.job(annas_job.run_id).attempt == 1


def test_a_restart_of_the_hub_leaves_sessions_and_jobs_alone(
    hub: Any, anna: Any, annas_session: dict[str, str], annas_job: Any
) -> None:
    session, token = anna.pid(), annas_session["JUPYTERHUB_API_TOKEN"]
    direct = f"http://127.0.0.1:{annas_session['JUPYTERHUB_SERVICE_URL'].split(':')[2].split('/')[0]}"
    for how in (signal.SIGTERM, signal.SIGKILL):
        hub.stop(how)
        headers = {"Authorization": f"token {token}"}
        still = httpx.get(f"{direct}/user/anna/api", headers=headers, trust_env=False)
        assert still.status_code >= 200  # it cannot ask the hub who this is, but it lives
        hub.start()
        assert anna.pid() == session
        assert anna.server()["ready"]
        page = httpx.get(f"{hub.url}/user/anna/api/status", headers=headers, trust_env=False)
        assert page.status_code == 200
        view = hub.launcher(token).job(annas_job.run_id)
        assert (view.status, view.attempt) == (Status.RUNNING, 1)
    assert anna.http.get("/hub/home").url.path == "/hub/home", "signed in still"
    assert hub.launcher(token).cancel(annas_job.run_id).status is Status.KILLED


def test_a_rule_for_a_group_holds_for_whom_the_hub_has_in_it(
    make_hub: Any, tools: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And another one for who is in no group; the launcher asks the hub, not the caller."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(
        "rules:\n  - {name: course, groups: [ml], max_jobs: 1}\n  - {name: others, presets: [elastic]}\n"
    )
    hub = make_hub()
    hub.options += (f"--Launcher.policy_file={policy}",)
    hub.start()
    member, other = (
        hub.launcher(hub.log_in(name).api.headers["Authorization"].split()[1]) for name in ("李雷", "ben")
    )
    view = tools.submit(member)
    assert view.owner == "李雷"
    for client, words in (
        (member, "Rule course (policy.yaml:2) says max_jobs: 1"),
        (other, "Rule others (policy.yaml:3) says presets: elastic"),
    ):
        with pytest.raises(Refused, match=re.escape(words)):
            tools.submit(client)
    member.cancel(view.run_id)

"""The launcher's own standing in the cluster: a token that expires, rights that it lacks for a moment or for good."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import Unavailable
from slicelift.models import JobStatus, Status
from slicelift_hub.launcher.backends.volcano import Volcano, paths
from slicelift_hub.launcher.backends.volcano.client import Client
from slicelift_hub.launcher.backends.volcano.names import JOB_NAME_LABEL
from traitlets.config import Config

from tests.unit.volcano.scripted import Script, item, names, until


def test_a_token_that_has_expired_is_read_again_where_it_came_from(
    tmp_path: Path, client: Client, server: Script
) -> None:
    """Jobs must not fail for it, nor the launcher be started again; a file that is just being written is no loss."""
    file = tmp_path / "kubeconfig"
    text = file.read_text(encoding="utf-8")
    server.tokens = {"Bearer the-next"}
    server.say("GET", "/x", (200, item("a", 1)))
    for written in (text, text[:40]):
        file.write_text(written, encoding="utf-8")
        with pytest.raises(Unavailable, match="does not accept the launcher's own token") as caught:
            client.get("/x")
        assert caught.value.code == "cluster-token"
    file.write_text(text.replace("the-token", "the-next"), encoding="utf-8")
    with pytest.raises(Unavailable):
        client.get("/x")
    assert client.get("/x")["metadata"]["name"] == "a"


def test_a_feed_with_an_expired_token_says_so_and_goes_on_with_the_next(
    tmp_path: Path, server: Script, follow: Any
) -> None:
    file = tmp_path / "kubeconfig"
    server.say("GET", "/x", (200, {"items": [item("a", 1)], "metadata": {"resourceVersion": "5"}}))
    server.say("GET", "/x?watch", (200, [30]))
    server.tokens = {"Bearer the-next"}
    feed, _ = follow()
    until(lambda: feed.broken_since is not None)
    assert feed.broken_by is not None
    assert feed.broken_by.code == "cluster-token"
    assert not feed.synced.is_set()
    file.write_text(file.read_text(encoding="utf-8").replace("the-token", "the-next"), encoding="utf-8")
    until(lambda: names(feed) == {"a"})
    until(lambda: feed.broken_since is None)


def test_a_server_that_has_just_started_denies_for_a_moment_what_it_gave_before(
    server: Script, follow: Any
) -> None:
    server.say("GET", "/x", (200, {"items": [item("a", 1)], "metadata": {"resourceVersion": "5"}}))
    changed = {"type": "ADDED", "object": item("b", 6)}
    server.say(
        "GET", "/x?watch", (200, [0.1, None]), (403, {"message": "cannot watch"}), (200, [changed, 30])
    )
    feed, _ = follow()
    began = time.monotonic()
    until(lambda: names(feed) == {"a", "b"})
    assert time.monotonic() - began < 5
    assert feed.broken_since is None


def test_a_job_waits_where_the_launcher_itself_is_denied(
    server: Script, client: Client, tmp_path: Path, spec: Any, attempt: Any
) -> None:
    """Whoever runs the cluster has to give the rights; nobody's job fails for want of them."""
    words = {"kubeconfig": str(tmp_path / "kubeconfig"), "namespace": "n", "image": "img@sha256:" + "0" * 64}
    backend = Volcano(config=Config(Volcano=words))
    server.say("POST", paths.config_maps("n"), (201, item("m", 1)))
    server.say("POST", paths.jobs("n"), (403, {"message": 'jobs is forbidden: User "u" cannot create'}))
    with pytest.raises(Unavailable) as caught:
        backend.submit(spec, attempt)
    assert caught.value.code == "cluster-denied"
    backend.close()


def test_a_plan_says_that_the_launcher_lacks_a_right_and_a_submit_is_taken_in(
    server: Script, client: Client, tmp_path: Path, spec: Any, attempt: Any
) -> None:
    words = {"kubeconfig": str(tmp_path / "kubeconfig"), "namespace": "n", "image": "img@sha256:" + "0" * 64}
    for path in (paths.queues(), paths.nodes()):
        server.say("GET", path, (200, {"items": [], "metadata": {"resourceVersion": "5"}}))
        server.say("GET", f"{path}?watch", (200, [5]))
    server.say("POST", paths.jobs("n"), (403, {"message": 'jobs is forbidden: User "u" cannot create'}))
    with closing(Volcano(config=Config(Volcano=words))) as backend:
        assert backend.plan(spec, attempt)[0].startswith(
            f"It would wait: The launcher may not do this in the cluster (403 at {paths.jobs('n')})"
        )


def test_a_namespace_that_is_closed_to_the_launcher_keeps_no_other_untidy(
    server: Script, client: Client, tmp_path: Path
) -> None:
    """Nor does it fail the jobs in it: they are told, and asked again."""
    words = {"kubeconfig": str(tmp_path / "kubeconfig"), "qps": 0.0}
    denied = (403, {"message": "forbidden"})
    for namespace in ("closed", "open"):
        for path in (paths.jobs, paths.plain_jobs, paths.groups, paths.pods, paths.config_maps):
            answer = (200, {"items": [], "metadata": {"resourceVersion": "5"}})
            server.say("GET", path(namespace), denied if namespace == "closed" else answer)
        server.say("GET", paths.jobs(namespace, "j"), denied)
    old = {"items": [item("old", 1)], "metadata": {"resourceVersion": "5"}}
    server.say("GET", paths.config_maps("open"), (200, old))
    server.say("DELETE", paths.config_maps("open", "old"), (200, {}))
    for path in (paths.queues(), paths.nodes()):
        server.say("GET", path, (200, {"items": [], "metadata": {"resourceVersion": "5"}}))
    with closing(Volcano(config=Config(Volcano=words))) as backend:
        for ask in (backend.status, lambda handle: backend.cancel(handle, reason="test")):
            with pytest.raises(Unavailable) as caught:
                ask("volcano://closed/j")
            assert caught.value.code == "cluster-denied"
        with pytest.raises(Unavailable):
            backend.status("volcano://open/j")
        assert backend.sweep() == ["configmap old"]


@pytest.mark.parametrize("lack", ["cluster-token", "cluster-denied"])
def test_the_card_tells_that_the_launcher_is_not_let_in_and_when_it_is(
    server: Script, client: Client, tmp_path: Path, scene: Any, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    monkeypatch.setattr("slicelift_hub.launcher.backends.volcano.backend._AWAY_SECONDS", 0.0)
    job = scene.make_job(phase="Running")
    name = job["metadata"]["name"]
    for index in range(2):
        scene.add_pod(index, node="a", phase="Running", running={})
        scene.pods[index]["metadata"]["labels"] = {JOB_NAME_LABEL: name}
    listed = {paths.jobs("jobs"): [job], paths.pods("jobs"): scene.pods}
    for path in (paths.groups("jobs"), paths.events("jobs"), paths.queues(), paths.nodes()):
        listed[path] = []
    for path, items in listed.items():
        server.say("GET", path, (200, {"items": items, "metadata": {"resourceVersion": "5"}}))
        server.say("GET", f"{path}?watch", (200, [0.2]))
    words = {"kubeconfig": str(tmp_path / "kubeconfig"), "namespace": "jobs", "qps": 0.0}
    backend = Volcano(config=Config(Volcano=words))
    handle = f"volcano://jobs/{name}"
    seen = JobStatus(status=Status.STARTING, phase="Running")
    with closing(backend):
        # a watch that was just ended is followed again
        until(lambda: backend.status(handle) == seen)
        if lack == "cluster-token":
            server.tokens = set()
        for path in listed if lack == "cluster-denied" else ():
            server.say("GET", f"{path}?watch", (403, {"message": "forbidden"}))
        until(lambda: backend.status(handle).reason == lack)
        words = {"cluster-token": "not accept the launcher's own token", "cluster-denied": "may not do this"}
        assert words[lack] in backend.status(handle).message
        for path in listed:
            server.say("GET", f"{path}?watch", (200, [15]))
        server.tokens = None
        until(lambda: backend.status(handle).reason == "cluster-back")

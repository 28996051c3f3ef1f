"""Client, feeds and endings against an API server of this test's, for faults that a real one does not show on demand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from slicelift.backends.base import Proof
from slicelift.errors import Conflict, NotFound, Refused, SliceliftError, Unavailable
from slicelift_hub.launcher.backends.volcano import ending
from slicelift_hub.launcher.backends.volcano.client import Client, Gone
from slicelift_hub.launcher.backends.volcano.feeds import Feed, wait_synced

from tests.unit.volcano.scripted import Script, item, names, until

GOING = (
    'secrets "x" is forbidden: unable to create new content in namespace jobs because it is being terminated'
)
WEBHOOK = (
    'Internal error occurred: failed calling webhook "mutatejob.volcano.sh": dial tcp: connection refused'
)


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (404, {"message": 'jobs "x" not found'}, NotFound, "cluster-unknown"),
        (409, {"message": "exists", "reason": "AlreadyExists"}, Conflict, "cluster-conflict"),
        (403, {"message": 'User "u" cannot get resource "jobs"'}, Unavailable, "cluster-denied"),
        (401, {"message": "Unauthorized"}, Unavailable, "cluster-token"),
        (500, {"message": WEBHOOK}, Unavailable, "webhook-silent"),
        (503, {"message": "etcd leader changed"}, Unavailable, "cluster-away"),
        (429, {"message": "too many"}, Unavailable, "cluster-away"),
        (
            400,
            {
                "message": 'admission webhook "validatejob.volcano.sh" denied the request: duplicated task name w;'
            },
            Refused,
            "manifest-refused",
        ),
        (403, {"message": 'pods "x" is forbidden: exceeded quota: small'}, Refused, "resource-quota"),
        (403, {"message": GOING}, NotFound, "cluster-unknown"),
        (422, {"message": "must be equal to limit", "reason": "Invalid"}, Refused, "manifest-refused"),
    ],
)
def test_what_the_server_refuses_in_our_words(
    status: int, body: Any, kind: type[SliceliftError], code: str, server: Script, client: Client
) -> None:
    server.say("POST", "/x", (status, body))
    with pytest.raises(kind) as caught:
        client.create("/x", {"a": 1})
    assert (type(caught.value), caught.value.code) == (kind, code)
    if code == "manifest-refused" and "denied" in body["message"]:
        assert caught.value.message == "The cluster refuses the job: duplicated task name w;"


def test_a_server_that_is_away(tmp_path: Path, client: Client, server: Script) -> None:
    path = tmp_path / "away"
    path.write_text(
        (tmp_path / "kubeconfig").read_text().replace(server.url, "http://127.0.0.1:9"), encoding="utf-8"
    )
    away = Client(kubeconfig=str(path))
    with pytest.raises(Unavailable, match=r"does not answer: \[Errno 111\] Connection refused\."):
        away.get("/x")
    # somebody corrects the address
    path.write_text((tmp_path / "kubeconfig").read_text(), encoding="utf-8")
    server.say("GET", "/x", (200, item("a", 1)))
    with pytest.raises(Unavailable):
        away.get("/x")
    assert away.get("/x")["metadata"]["name"] == "a"


def test_a_kubeconfig_that_is_none(tmp_path: Path) -> None:
    for path in (str(tmp_path / "absent"), ""):
        with pytest.raises(Unavailable) as caught:
            Client(kubeconfig=path).get("/x")
        assert caught.value.code == "cluster-config"


def test_a_create_is_strict_and_a_dry_run_says_so(server: Script, client: Client) -> None:
    server.say("POST", "/x", (201, item("a", 1)))
    client.create("/x", {"kind": "Job"}, dry_run=True)
    client.create("/x", {"kind": "Job"})
    assert server.queries("/x") == [
        {"fieldValidation": "Strict", "dryRun": "All"},
        {"fieldValidation": "Strict"},
    ]


def test_a_long_list_is_read_in_pages(server: Script, client: Client) -> None:
    server.say(
        "GET",
        "/x",
        (200, {"items": [item("a", 1)], "metadata": {"continue": "more", "resourceVersion": "7"}}),
        (200, {"items": [item("b", 2)], "metadata": {"resourceVersion": "7"}}),
    )
    found, version = client.list("/x", labelSelector="l")
    assert ([each["metadata"]["name"] for each in found], version) == (["a", "b"], "7")
    assert server.queries("/x")[1] == {"labelSelector": "l", "limit": "500", "continue": "more"}


def test_a_delete_names_the_one_it_means(server: Script, client: Client) -> None:
    server.say("DELETE", "/x", (200, {}), (404, {}), (409, {}))
    assert client.delete("/x", uid="u", grace_seconds=1.4)
    assert not client.delete("/x")
    assert not client.delete("/x", uid="other")
    assert server.calls[0][3] == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 1,
    }


def test_calls_keep_to_the_rate(server: Script, tmp_path: Path, client: Client) -> None:
    server.say("GET", "/x", (200, {}))
    paced = Client(kubeconfig=str(tmp_path / "kubeconfig"), qps=20)
    start = time.monotonic()
    for _ in range(30):
        paced.get("/x")
    # twenty at once, the rest one after the other
    assert time.monotonic() - start > 0.4
    paced.close()


def test_a_watch_that_is_too_old_says_gone(server: Script, client: Client) -> None:
    expired = {
        "type": "ERROR",
        "object": {"code": 410, "reason": "Expired", "message": "too old resource version"},
    }
    server.say("GET", "/x?watch", (200, [expired]))
    with pytest.raises(Gone):
        list(client.watch("/x", version="1"))


def test_a_watch_that_is_silent_for_long_is_begun_again(
    server: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slicelift_hub.launcher.backends.volcano.client._QUIET_SECONDS", 2.0)
    server.say("GET", "/x?watch", (200, [{"type": "ADDED", "object": item("a", 1)}, 8]))
    assert [change["type"] for change in client.watch("/x", version="1")] == ["ADDED"]


def test_a_feed_goes_on_where_a_broken_connection_was(server: Script, follow: Any) -> None:
    server.say("GET", "/x", (200, {"items": [item("a", 1)], "metadata": {"resourceVersion": "5"}}))
    added, changed = {"type": "ADDED", "object": item("b", 6)}, {"type": "DELETED", "object": item("a", 8)}
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}
    server.say("GET", "/x?watch", (200, [added, bookmark, 0.1, None]), (200, [changed, 30]))
    feed, told = follow()
    until(lambda: names(feed) == {"b"})
    assert told == ["a", "b", "a"]
    versions = [query["resourceVersion"] for query in server.queries("/x") if "watch" in query]
    assert versions == ["5", "7"]
    # listed once
    assert len(server.queries("/x")) == 3


def test_a_feed_lists_again_when_its_version_is_too_old(server: Script, follow: Any) -> None:
    listed = [
        {"items": [item(name, 1)], "metadata": {"resourceVersion": version}}
        for name, version in (("a", "5"), ("b", "9"))
    ]
    server.say("GET", "/x", *((200, each) for each in listed))
    expired = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    server.say("GET", "/x?watch", (200, [expired]), (200, [30]))
    feed, told = follow()
    until(lambda: names(feed) == {"b"})
    assert told == ["a", "a", "b"]
    assert feed.broken_since is None


def test_a_feed_says_since_when_it_is_broken_and_comes_back(server: Script, follow: Any) -> None:
    server.say(
        "GET",
        "/x",
        (503, {"message": "away"}),
        (503, {"message": "away"}),
        (200, {"items": [], "metadata": {}}),
    )
    server.say("GET", "/x?watch", (200, [30]))
    feed, _ = follow()
    until(lambda: feed.broken_since is not None)
    wait_synced([feed], seconds=10)
    until(lambda: feed.broken_since is None)


def test_a_kind_that_may_not_be_read_is_empty(server: Script, follow: Any) -> None:
    server.say("GET", "/x", (403, {"message": "cannot list"}))
    feed, _ = follow()
    wait_synced([feed], seconds=10)
    assert feed.values() == []


def test_nobody_waits_for_ever_for_the_first_list(server: Script, follow: Any) -> None:
    server.say("GET", "/x", (503, {"message": "away"}))
    feed, _ = follow()
    with pytest.raises(Unavailable):
        wait_synced([feed], seconds=0.2)


def test_of_each_owner_the_newest_few_are_kept(server: Script, follow: Any) -> None:
    rows = [item(str(number), number, owner="job") for number in range(6)]
    server.say("GET", "/x", (200, {"items": rows, "metadata": {"resourceVersion": "9"}}))
    again = {"type": "MODIFIED", "object": item("3", 10, owner="job", status={"phase": "x"})}
    other = {"type": "ADDED", "object": item("6", 11, owner="job")}
    server.say("GET", "/x?watch", (200, [again, other, 30]))
    feed, _ = follow(most=3)
    until(lambda: [each["name"] for each in feed.of("job")] == ["5", "3", "6"])


def test_a_queue_whose_state_is_a_plain_word_is_followed(server: Script, follow: Any) -> None:
    first, changed = (item("q", version, status={"state": "Open", "used": version}) for version in (1, 2))
    closed = item("q", 3, status={"state": "Closed"})
    server.say("GET", "/x", (200, {"items": [first], "metadata": {"resourceVersion": "1"}}))
    changes = [{"type": "MODIFIED", "object": each} for each in (changed, closed)]
    server.say("GET", "/x?watch", (200, [*changes, 30]))
    feed, _ = follow()
    until(lambda: [each["status"]["state"] for each in feed.of("q")] == ["Closed"])
    assert len(server.queries("/x")) == 2


def test_what_is_told_again_is_no_news(client: Client, server: Script) -> None:
    first, again, other = (
        item("e", version, message=text, lastTimestamp=time)
        for version, time, text in ((1, "a", "no"), (2, "b", "no"), (3, "c", "yes"))
    )
    server.say("GET", "/x", (200, {"items": [first], "metadata": {"resourceVersion": "1"}}))
    server.say(
        "GET", "/x?watch", (200, [{"type": "MODIFIED", "object": each} for each in (again, other)] + [30])
    )
    told: list[str] = []
    kept = ("message", "lastTimestamp")
    feed = Feed(
        client,
        "/x",
        keep=lambda each: {name: each[name] for name in kept},
        owner_of=lambda _: "job",
        told=told.append,
    )
    until(lambda: [each["lastTimestamp"] for each in feed.of("job")] == ["c"])
    until(lambda: told == ["job", "job"])
    feed.stop()


def test_the_time_in_a_phase_is_kept_until_it_changes(server: Script, follow: Any) -> None:
    def change(version: int, phase: str, note: str) -> Any:
        return {"type": "MODIFIED", "object": item("a", version, status={"phase": phase, "note": note})}

    server.say(
        "GET",
        "/x",
        (200, {"items": [item("a", 1, status={"phase": "p"})], "metadata": {"resourceVersion": "1"}}),
    )
    server.say("GET", "/x?watch", (200, [change(2, "p", "n"), 0.2, change(3, "q", "n"), 30]))
    feed, told = follow()
    until(lambda: len(told) == 2)
    first = feed.of("a")[0]["seen"]
    until(lambda: feed.of("a")[0]["status"]["phase"] == "q")
    assert feed.of("a")[0]["seen"] > first


def job_at(namespace: str, name: str) -> str:
    return f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs/{name}"


def pod(name: str, *, node: str = "", phase: str = "Running") -> dict[str, Any]:
    requests = {"resources": {"requests": {"nvidia.com/gpu": "8", "cpu": "4"}}}
    return item(name, 1, spec={"nodeName": node, "containers": [requests]}, status={"phase": phase})


PODS = "/api/v1/namespaces/jobs/pods"


def test_a_job_is_deleted_and_its_pods_are_proved_gone(server: Script, client: Client) -> None:
    server.say(
        "GET", job_at("jobs", "r-a-1"), (200, item("r-a-1", 1, status={"state": {"phase": "Running"}}))
    )
    alive, over = pod("r-a-1-worker-0", node="a"), pod("r-a-1-worker-1", node="a", phase="Failed")
    server.say(
        "GET", PODS, (200, {"items": [alive, over]}), (200, {"items": [alive]}), (200, {"items": [over]})
    )
    for path in (job_at("jobs", "r-a-1"), f"{PODS}/r-a-1-worker-0"):
        server.say("DELETE", path, (200, {}))
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=3) == Proof(gone=True, killed=1)
    deleted = [
        (path, body["preconditions"]["uid"], body.get("gracePeriodSeconds"))
        for method, path, _, body in server.calls
        if method == "DELETE"
    ]
    assert deleted == [
        (job_at("jobs", "r-a-1"), "uid-r-a-1", None),
        (f"{PODS}/r-a-1-worker-0", "uid-r-a-1-worker-0", 3),
    ]


def test_of_a_suspended_job_the_pods_have_the_time_of_their_template(server: Script, client: Client) -> None:
    server.say(
        "GET", job_at("jobs", "r-a-1"), (200, item("r-a-1", 1, status={"state": {"phase": "Running"}}))
    )
    server.say("GET", PODS, (200, {"items": [pod("r-a-1-worker-0", node="a")]}), (200, {"items": []}))
    for path in (job_at("jobs", "r-a-1"), f"{PODS}/r-a-1-worker-0"):
        server.say("DELETE", path, (200, {}))
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=None) == Proof(gone=True, killed=1)
    bodies = [body for method, _, _, body in server.calls if method == "DELETE"]
    assert ["gracePeriodSeconds" in body for body in bodies] == [False, False]


def test_while_they_save_nobody_waits_for_them_until_they_are_late_or_cancelled(
    server: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_SAVING_LOOK_SECONDS", 0.1)
    saving = pod("r-a-1-worker-0", node="a")
    server.say("GET", PODS, (200, {"items": [saving]}))
    server.say("DELETE", f"{PODS}/r-a-1-worker-0", (200, {}))

    def due(seconds: float) -> None:
        moment = datetime.fromtimestamp(time.time() + seconds, tz=UTC)
        saving["metadata"]["deletionTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    due(+100)
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=None) == Proof(gone=False)
    # they were told before, and are not told again
    assert not [call for call in server.calls if call[0] == "DELETE"]
    due(-100)
    (left,) = ending.end(client, "jobs", "r-a-1", grace_seconds=None).left
    assert left.startswith("pod r-a-1-worker-0 on node a")
    # the job itself is gone by then: its pods have less time from here on
    server.say("GET", PODS, (200, {"items": [saving]}), (200, {"items": []}))
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=3) == Proof(gone=True, killed=1)
    (body,) = [body for method, _, _, body in server.calls if method == "DELETE"]
    assert body["gracePeriodSeconds"] == 3


def test_of_a_job_that_is_over_nobody_saves_any_more(
    server: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_PATIENCE_SECONDS", 0.1)
    server.say(
        "GET", job_at("jobs", "r-a-1"), (200, item("r-a-1", 1, status={"state": {"phase": "Completed"}}))
    )
    server.say("GET", PODS, (200, {"items": [pod("r-a-1-worker-0")]}))
    proof = Proof(gone=False, left=("pod r-a-1-worker-0, which has no node",))
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=None) == proof


def test_on_a_lost_node_the_end_is_unproven(
    server: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_PATIENCE_SECONDS", 0.2)
    server.say("GET", PODS, (200, {"items": [pod("r-a-1-worker-0", node="lost"), pod("r-a-1-worker-1")]}))
    unready = [{"type": "Ready", "status": "Unknown"}]
    server.say("GET", "/api/v1/nodes/lost", (200, item("lost", 1, status={"conditions": unready})))
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=0) == Proof(
        gone=False,
        left=(
            "pod r-a-1-worker-0 on node lost, which does not answer; 8 GPUs still count as used",
            "pod r-a-1-worker-1, which has no node",
        ),
    )


def test_a_job_that_is_over_is_only_looked_at(server: Script, client: Client) -> None:
    server.say(
        "GET", job_at("jobs", "r-a-1"), (200, item("r-a-1", 1, status={"state": {"phase": "Completed"}}))
    )
    server.say("GET", PODS, (200, {"items": [pod("r-a-1-worker-0", node="a", phase="Succeeded")]}))
    assert ending.end(client, "jobs", "r-a-1", grace_seconds=3) == Proof(gone=True)
    assert not [call for call in server.calls if call[0] == "DELETE"]


def test_only_what_is_over_is_discarded(server: Script, client: Client) -> None:
    path = job_at("jobs", "r-a-1")
    server.say("GET", PODS, (200, {"items": []}))
    server.say("DELETE", path, (200, {}))
    server.say("GET", path, (200, item("r-a-1", 1, status={"state": {"phase": "Running"}})))
    assert not ending.discard(client, "jobs", "r-a-1")
    server.say("GET", path, (200, item("r-a-1", 1, status={"state": {"phase": "Aborted"}})), (404, {}))
    assert ending.discard(client, "jobs", "r-a-1")
    assert ending.discard(client, "jobs", "r-a-1")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def test_what_nobody_owns_is_swept(server: Script, client: Client) -> None:
    def made(name: str, **more: Any) -> dict[str, Any]:
        made = item(name, 1, **more)
        made["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
        return made

    volumes = [{"configMap": {"name": "runtime-used"}}]
    spec = {"tasks": [{"template": {"spec": {"volumes": volumes}}}]}
    jobs = [
        made("r-a-1", spec=spec, status={"state": {"phase": "Running"}}),
        made("r-b-1", spec=spec, status={"state": {"phase": "Aborted"}}),
        made("r-c-1", spec=spec, status={"state": {"phase": "Aborted", "lastTransitionTime": _now()}}),
    ]
    warm_up = {"template": {"spec": {"volumes": [{"name": "x"}, {"configMap": {"name": "runtime-warms"}}]}}}
    maps = [made(f"runtime-{name}") for name in ("used", "mine", "old", "warms")]
    base = "/apis/batch.volcano.sh/v1alpha1/namespaces/jobs/jobs"
    places = {base: jobs, "/api/v1/namespaces/jobs/configmaps": maps}
    places["/apis/batch/v1/namespaces/jobs/jobs"] = [made("r-d-1-data-0", spec=warm_up)]
    for path, items in places.items():
        server.say("GET", path, (200, {"items": items}))
        for each in items:
            server.say("DELETE", f"{path}/{each['metadata']['name']}", (200, {}))
    swept = ending.sweep(client, "jobs", runtime="runtime-mine", keep_seconds=3600)
    assert swept == ["job r-b-1", "configmap runtime-old"]

"""Rules of a policy file at a real launcher: who is refused what, by which rule, and what ends in time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slicelift.errors import Denied, Refused
from slicelift.models import JobSpec, JobStatus, Status, to_dict
from slicelift_hub.launcher.auth import Principal
from slicelift_hub.launcher.ledger import Ledger
from slicelift_hub.launcher.policy import Asker, Policy
from slicelift_hub.launcher.routes_jobs import RetryHandler
from slicelift_hub.leases import Pool
from slicelift_profiles import presets, rules

from tests.promoting import make_promotion_id
from tests.waiting import wait_for

DIGEST = "@sha256:" + "a" * 64
RULES = """\
rules:
  - name: students
    groups: [course-*]
    queues: [default, teach-*]
    presets: [torchrun, slice]
    slices: ["1g.*"]
    images: ["registry.example/course/*@sha256:*"]
    max_workers: 4
    max_gpus_per_job: 4
    max_gpus: 6
    max_jobs: 3
    wall_seconds: 3600
  - name: staff
    groups: [staff]
    wall_seconds: 90000
  - name: boxers
    groups: [boxers]
    images: [registry.example/course/*]
  - name: guests
    users: [guest-*]
    max_workers: 1
"""
PRESETS = """\
presets:
  - {name: torchrun, display_name: Gang, launcher: torchrun, workers: 1}
  - {name: elastic, display_name: Elastic, launcher: torchrun, workers: 2, min_workers: 1}
  - {name: pair, display_name: Pair, launcher: torchrun, workers: 2, max_workers: 2}
  - {name: slice, display_name: Slice, launcher: torchrun, workers: 1, max_workers: 1, slice: required}
  - name: night
    display_name: Night
    launcher: torchrun
    workers: 1
    cluster: {max_hours: 8, idle_minutes: 30, idle_action: stop}
  - name: boxed
    display_name: Boxed
    launcher: torchrun
    workers: 1
    cluster: {image: "registry.example/box@sha256:0"}
"""
WORDS = {"notebook": "n.ipynb", "script": "promoted.py", "cwd": ".", "python": "python3"}


def _spec(**changes: Any) -> JobSpec:
    return JobSpec(**({"name": "job", "snapshot_id": "0" * 64, **WORDS} | changes))


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """A cluster's: queues and GPUs are not counted here."""
    (tmp_path / "policy.yaml").write_text(RULES)
    (tmp_path / "presets.yaml").write_text(PRESETS)
    return Policy(
        leased=False,
        rules=partial(rules.load, tmp_path / "policy.yaml"),
        presets=partial(presets.load, tmp_path / "presets.yaml"),
    )


@pytest.mark.parametrize(
    ("changes", "key", "line", "allowed"),
    [
        ({"queue": "vip"}, "queues", 4, "default, teach-*"),
        ({"preset": "night"}, "presets", 5, "torchrun, slice"),
        ({"slice": "7g.80gb", "preset": "slice"}, "slices", 6, "1g.*"),
        ({"image": "registry.example/course/lab:latest"}, "images", 7, "registry.example/course/*@sha256:*"),
        ({"image": f"registry.example/other{DIGEST}"}, "images", 7, "registry.example/course/*@sha256:*"),
        ({"workers": 5}, "max_workers", 8, "4"),
        ({"workers": 3, "gpus_per_worker": 2}, "max_gpus_per_job", 9, "4"),
    ],
)
def test_a_refusal_names_rule_file_line_and_what_is_allowed(
    policy: Policy, changes: dict[str, Any], key: str, line: int, allowed: str
) -> None:
    with pytest.raises(Refused) as refusal:
        policy.check(_spec(**changes), Asker(owner="ann", groups=("course-1",)))
    found = refusal.value
    assert f"Rule students (policy.yaml:{line}) says {key}: {allowed};" in found.message
    assert found.code == f"policy-{key.replace('_', '-')}"
    assert found.hint
    assert (found.detail["rule"], found.detail["file"], found.detail["line"]) == (
        "students",
        "policy.yaml",
        line,
    )
    # who is under another rule, or under one that does not name it, may
    assert policy.check(_spec(**changes), Asker(owner="ann", groups=("staff",)))


@pytest.mark.parametrize(
    "changes",
    [{"image": f"registry.example/own{DIGEST}"}, {"image": f"registry.example/x{DIGEST}", "preset": "boxed"}],
)
def test_the_image_that_an_admin_has_chosen_is_allowed_whoever_names_it(
    policy: Policy, changes: dict[str, Any]
) -> None:
    own = replace(policy, image=f"registry.example/own{DIGEST}")
    own.check(_spec(**changes), Asker(owner="bob", groups=("boxers",)))
    with pytest.raises(Refused, match=r"images: registry\.example/course") as caught:
        own.check(_spec(image=f"registry.example/x{DIGEST}"), Asker(owner="bob", groups=("boxers",)))
    assert caught.value.code == "policy-images"


def test_what_a_person_has_at_once_is_counted_over_all_their_jobs(policy: Policy) -> None:
    one, held = _spec(workers=2, gpus_per_worker=1), []
    asker = Asker(owner="ann", groups=("course-1",), under_way=lambda: held)
    policy.check(one, asker)
    held += [_spec(workers=4, gpus_per_worker=1)]
    policy.check(one, asker)
    with pytest.raises(Refused, match=r"max_gpus: 6; asked was 4 beside the 4 of 1 jobs"):
        policy.check(_spec(workers=4, gpus_per_worker=1), asker)
    # a job on CPUs takes none of them
    policy.check(_spec(workers=4), asker)
    held += [_spec(), _spec()]
    with pytest.raises(Refused, match=r"\(policy.yaml:11\) says max_jobs: 3"):
        policy.check(_spec(), asker)


def test_whom_no_rule_names_is_denied(policy: Policy) -> None:
    policy.check(_spec(), Asker(owner="guest-7"))
    with pytest.raises(Denied) as refusal:
        policy.check(_spec(), Asker(owner="eve"))
    assert (refusal.value.code, refusal.value.http_status) == ("no-rule", 403)


def test_the_shorter_wall_time_of_rule_and_preset_holds(policy: Policy) -> None:
    def limit(group: str, preset: str) -> str:
        found = policy.check(_spec(preset=preset), Asker(owner="x", groups=(group,)))
        return f"{found.seconds:.0f} {found.source}" if found else ""

    assert limit("staff", "torchrun") == "90000 rule staff"
    assert limit("staff", "night") == "28800 preset night"
    assert policy.check(_spec(), Asker(owner="guest-1")) is None
    notes = policy.notes(_spec(preset="night"), Asker(owner="x", groups=("staff",)))
    assert notes[-1] == "The job is ended when its wall time is over: 8 h (preset night)."


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"preset": "slice", "workers": 16, "gpus_per_worker": 8}, "preset-too-large"),
        ({"preset": "slice", "slice": "1g.10gb", "gpus_per_worker": 8}, "slice-and-gpus"),
        ({"preset": "slice"}, "slice-missing"),
        ({"preset": "pair", "workers": 400}, "preset-too-large"),
        ({"preset": "elastic", "slice": "1g.10gb"}, "slice-not-taken"),
        ({"preset": "weekend"}, "unknown-preset"),
    ],
)
def test_the_bounds_of_a_preset_hold_whoever_made_the_spec(
    policy: Policy, changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(Refused) as refusal:
        policy.check(_spec(**changes), Asker(owner="x", groups=("staff",)))
    assert refusal.value.code == code
    assert refusal.value.hint


def test_what_presets_say_of_clusters_is_nothing_to_one_machine(policy: Policy) -> None:
    limit = policy.idle_limit("night")
    assert limit is not None
    assert (limit.minutes, limit.stop) == (30, True)
    assert policy.idle_limit("torchrun") is policy.idle_limit("no more") is None
    alone = replace(policy, leased=True, pools={"slots": Pool(name="slots", total=4, free=4)})
    assert alone.idle_limit("night") is None
    assert alone.check(_spec(preset="night"), Asker(owner="guest-1")) is None


def test_the_notes_of_a_plan_tell_the_rule(policy: Policy) -> None:
    notes = policy.notes(_spec(), Asker(owner="ann", groups=("course-1",)))
    assert any("Rule students (policy.yaml:2) allows you at most 4 workers a job" in note for note in notes)


@pytest.mark.parametrize("image", ["-x", "a b", "a\nb", "lab'; rm", "${HOME}"])
def test_what_is_no_image_goes_no_further(policy: Policy, image: str) -> None:
    with pytest.raises(Refused) as refusal:
        policy.check(_spec(image=image), Asker(owner="ann", groups=("staff",)))
    assert refusal.value.code == "bad-image"


def test_the_shipped_policy_is_what_a_launcher_has_by_default() -> None:
    asker = Asker(owner="anyone", under_way=lambda: [_spec()] * 1000)
    assert Policy(leased=False).check(_spec(workers=1000, image="lab:1"), asker) is None
    assert rules.load() == Policy().rules()


@pytest.fixture(scope="module")
def ruled(make_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A launcher whose one user has a rule with a short wall time."""
    path = tmp_path_factory.mktemp("rules") / "policy.yaml"
    path.write_text("rules:\n  - name: short\n    max_jobs: 2\n    max_workers: 3\n    wall_seconds: 2\n")
    launcher = make_launcher("--Launcher.poll_seconds=0.05", f"--Launcher.policy_file={path}").start()
    yield launcher
    launcher.close()


def test_a_job_past_its_wall_time_is_killed_with_that_reason(ruled: Any) -> None:
    """4 s: two of the limit, two between looks."""
    view = ruled.running()
    began = time.monotonic()
    done = ruled.until(view.run_id, Status.KILLED)
    assert 1 < time.monotonic() - began < 8
    assert done.reason == "wall time of rule short (2 s) is over"
    assert [change.status for change in done.history][-2:] == ["CANCELLING", "KILLED"]
    assert f"steered://{view.run_id}-1" in ruled.lines("cancels.log")


def test_a_limit_outlives_the_launcher(ruled: Any) -> None:
    """A killed launcher forgets no limit; about 5 s."""
    view = ruled.running()
    ruled.kill()
    time.sleep(2)
    ruled.start()
    assert ruled.until(view.run_id, Status.KILLED).reason == "wall time of rule short (2 s) is over"
    again = ruled.client.retry(view.run_id)
    assert ruled.until(again.run_id, Status.KILLED).attempt == 2


def test_a_retry_is_judged_by_what_the_run_is_and_not_by_what_it_was(policy: Policy, tmp_path: Path) -> None:
    """Real ledger and policy; of the call only what it reads. The run ends after it was found."""
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.leased = False
    services = SimpleNamespace(ledger=ledger, policy=policy, token_of=lambda name: name)
    call = SimpleNamespace(services=services, principal=Principal(owner="ann", groups=("course-1",)))
    spec = _spec(workers=5)  # more than the rule allows by now
    try:
        run_id, _ = ledger.submit("ann", "p-1", spec=spec, snapshot={}, token_of=lambda name: name)
        found = ledger.view(run_id)
        ledger.observe(f"{run_id}-1", JobStatus(status=Status.FAILED))
        assert (found.status.terminal, ledger.view(run_id).status.terminal) == (False, True)
        with pytest.raises(Refused, match="max_workers: 4; asked was 5"):
            RetryHandler._retry(call, found)  # type: ignore[arg-type]
        assert ledger.view(run_id).attempt == 1
    finally:
        ledger.close()


def test_plan_and_submit_are_refused_alike(ruled: Any) -> None:
    spec = ruled.spec(workers=4)
    for call in (ruled.client.plan, lambda spec: ruled.submit(workers=4)):
        with pytest.raises(Refused, match=r"Rule short \(policy.yaml:4\) says max_workers: 3; asked was 4"):
            call(spec)
    notes = ruled.client.plan(ruled.spec())["notes"]
    assert "Rule short (policy.yaml:2) allows you at most 3 workers a job, at most 2 jobs at once." in notes


def test_of_many_submits_at_once_no_more_get_in_than_the_rule_allows(ruled: Any) -> None:
    spec, codes = ruled.spec(workers=3), []
    promotions = [make_promotion_id() for _ in range(8)]

    def submit(promotion_id: str) -> None:
        with ruled.http() as http:
            body = {"promotion_id": promotion_id, "spec": to_dict(spec)}
            answer = http.post("/jobs", json=body)
            codes.append((answer.status_code, promotion_id))

    threads = [threading.Thread(target=submit, args=(promotion_id,)) for promotion_id in promotions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inside = [promotion_id for code, promotion_id in codes if code == 201]
    assert sorted(code for code, _ in codes) == [201] * 2 + [422] * 6
    # one that is in may be asked for again
    assert ruled.client.submit(inside[0], spec).promotion_id == inside[0]
    for promotion_id in inside:
        ruled.client.cancel(promotion_id)


def test_a_launcher_with_a_faulty_policy_does_not_come_up(make_launcher: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules:\n  - name: a\n    max_worker: 1\n")
    launcher = make_launcher(f"--Launcher.policy_file={path}")
    with pytest.raises(AssertionError):
        _start_briefly(launcher)
    last = (launcher.home / "test.log").read_text().strip().splitlines()[-1]
    body = json.loads(last)
    assert body["code"] == "policy-invalid"
    assert f"{path}:3" in body["message"]


def test_the_presets_of_a_cluster_bind_every_caller_and_are_read_again(
    make_launcher: Any, tmp_path: Path
) -> None:
    """Over HTTP as no client of ours would; the launcher goes on while its admin edits the file."""
    rule = tmp_path / "policy.yaml"
    rule.write_text("rules: [{name: students, presets: [slice, pair, new]}]")
    launcher = make_launcher("--backend", "steered.Queueing", f"--Launcher.policy_file={rule}")
    file = launcher.home / "steered" / "presets.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(PRESETS)
    launcher.start()

    def post(**changes: Any) -> tuple[int, str]:
        body = {"promotion_id": make_promotion_id(), "spec": to_dict(launcher.spec(**changes))}
        with launcher.http() as http:
            answers = [http.post("/plan", json=body), http.post("/jobs", json=body)]
        told = answers[1].json()
        if answers[1].status_code == 201:
            launcher.client.cancel(told["run_id"])
        assert (answers[0].status_code == 200) == (answers[1].status_code == 201)
        return answers[1].status_code, told.get("code", "")

    assert post(preset="slice", workers=16, gpus_per_worker=8) == (422, "preset-too-large")
    assert post(preset="pair", workers=400) == (422, "preset-too-large")
    assert post(preset="pair", workers=2) == (201, "")
    assert post(preset="new") == (422, "unknown-preset")
    file.write_text(PRESETS.replace("name: night", "name: new").replace("max_workers: 2", "max_workers: 3"))
    assert post(preset="pair", workers=3) == (201, "")
    assert post(preset="new") == (201, "")
    # half a save: what was read last goes on
    file.write_text("presets: [")
    assert post(preset="new") == (201, "")
    assert post(preset="pair", workers=4) == (422, "preset-too-large")
    launcher.close()


def test_a_backend_that_queues_by_itself_is_asked_for_its_word(make_launcher: Any) -> None:
    launcher = make_launcher("--backend", "steered.Queueing").start()
    plan = launcher.client.plan(launcher.spec(workers=500, gpus_per_worker=8, slice=None))
    assert plan["position"] is None
    assert "It will wait: 2 of 4 GPUs are free." in plan["notes"]
    capacity = launcher.client.capacity()
    assert capacity["cluster"] == {"queues": [{"name": "default", "jobs": 3}]}
    assert (capacity["slots"], capacity["queues"]) == ({"total": 0, "free": 0}, ["default"])
    for call in (launcher.client.plan, lambda spec: launcher.submit(name="impossible")):
        with pytest.raises(Refused) as refusal:
            call(launcher.spec(name="impossible"))
        assert refusal.value.code == "no-such-claim"
    assert launcher.rows("select count(*) from runs") == [(0,)]
    # no slot is counted, and a signal leaves its jobs alone: they are the cluster's
    view = launcher.running(workers=500)
    assert launcher.stop() == 0
    launcher.start()
    assert launcher.client.job(view.run_id).status == Status.RUNNING
    assert launcher.lines("cancels.log") == []
    launcher.client.cancel(view.run_id)
    launcher.close()


def test_a_backend_that_takes_its_time_to_foresee_keeps_nobody_else_waiting(make_launcher: Any) -> None:
    """As an API server does that does not answer."""
    launcher = make_launcher("--backend", "steered.Queueing").start()
    view = launcher.running()
    spec = {"spec": to_dict(launcher.spec(name="thoughtful"))}
    with launcher.http() as http, ThreadPoolExecutor(60) as beside:
        plans = [beside.submit(http.post, "/plan", json=spec) for _ in range(60)]
        wait_for("plans to be under way", lambda: len(launcher.lines("plans.log")) >= 10)
        assert launcher.client.job(view.run_id).status is Status.RUNNING
        assert not any(plan.done() for plan in plans)
        assert {plan.result().status_code for plan in plans} == {200}
    launcher.close()


def _start_briefly(launcher: Any) -> None:
    """Like `start`, but for one that ends at once."""
    try:
        launcher.start()
    finally:
        launcher.process.wait(20)

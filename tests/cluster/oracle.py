"""The oracle of the drills: kubectl, MLflow's rows, the ledger and the card must tell one story of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elsewhere import Place
from launching import Launcher
from slicelift.models import RunView, Status
from slicelift.sentences import failure_sentence, sentence

# how soon after a fault has ended the story must be one
SECONDS = 10.0
# MLflow is told after that: it may only just be starting again, which takes it half a minute on a busy machine
EXPORT_SECONDS = 90.0
METRIC = "done"
# our word -> Volcano's words for it, "" for a job that is not there or not seen yet
PHASES = {
    Status.WAITING: {"", "Pending", "Restarting"},
    Status.STARTING: {"Pending", "Running", "Restarting"},
    Status.RUNNING: {"Running"},
    Status.FINISHED: {"Completed"},
    Status.FAILED: {"", "Failed", "Terminated"},
    Status.KILLED: {"", "Aborted", "Terminated", "Completed"},
}
WORDS = {Status.KILLED: "Cancelled"}


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the four say at one moment.

    `jobs`: Volcano Job -> (phase, restarts); `alive`: pods -> whether each has a node; `held`: what the queue has given
    out; `others`: how many pods other runs of the namespace have on nodes; `attempts`: (attempt, status, submission) of
    the ledger; `run`: its (status, attempt); `tracked`: MLflow's status of each run with this promotion; `steps`,
    `exported`: steps of the metric in the ledger and in MLflow.
    """

    jobs: Mapping[str, tuple[str, int]]
    alive: Mapping[str, bool]
    held: Mapping[str, str]
    others: int
    attempts: list[tuple[int, str, str]]
    run: tuple[str, int]
    tracked: list[str]
    steps: list[int]
    exported: list[int]
    card: RunView


def agree(
    bed: Place, launcher: Launcher, run: str, *, namespace: str, queue: str, seconds: float = SECONDS
) -> RunView:
    """The card, once all four tell the same; fails with every contradiction that is left.

    kubectl, ledger and card have `seconds`, MLflow has `EXPORT_SECONDS`.
    """
    begun = time.monotonic()
    while True:
        story = look(bed, launcher, run, namespace=namespace, queue=queue)
        wrong, late = contradictions(story), lags(story)
        if not wrong and not late:
            return story.card
        assert not wrong or time.monotonic() < begun + seconds, (wrong, story)
        assert time.monotonic() < begun + EXPORT_SECONDS, (late, story)
        time.sleep(0.3)


def look(bed: Place, launcher: Launcher, run: str, *, namespace: str, queue: str) -> Story:
    """One look at all four: what follows another one first, so that a job that goes on contradicts nothing."""
    first = launcher.client.job(run)
    exported = launcher.mlflow_rows(
        "select step from metrics where key = ? and run_uuid = ?", METRIC, first.mlflow_run_id
    )
    tracked = launcher.mlflow_rows(
        "select status from runs where run_uuid in (select run_uuid from tags where value = ?)",
        first.promotion_id,
    )
    series = launcher.client.series(run, keys=[METRIC], attempt="all", rank=0, points=5000)
    label = f"slicelift.io/run={run}"
    jobs = _get(bed, "jobs.batch.volcano.sh", "-n", namespace, "-l", label)["items"]
    pods = _alive(bed, namespace, label)
    held = _get(bed, "queues.scheduling.volcano.sh", queue).get("status", {}).get("allocated") or {}
    return Story(
        jobs={job["metadata"]["name"]: _phase(job) for job in jobs},
        alive=pods,
        held={name: amount for name, amount in held.items() if amount not in ("0", "0m")},
        others=sum(_alive(bed, namespace, label.replace("=", "!=")).values()),
        attempts=launcher.rows(
            "select attempt, status, submission from attempts where run_id = ? order by attempt", run
        ),
        run=launcher.rows("select status, attempt from runs where run_id = ?", run)[0],
        tracked=[status for (status,) in tracked],
        steps=[int(point[0]) for row in series for point in row["points"]],
        exported=[step for (step,) in exported],
        card=launcher.client.job(run),
    )


def contradictions(story: Story) -> list[str]:
    """What kubectl, ledger and card cannot truly say at once, in words; empty when they agree. Pure."""
    found: list[str] = []

    def must(holds: object, words: str) -> None:
        if not holds:
            found.append(words)

    _of_the_ledger(story, must)
    _of_the_cluster(story, must)
    must(_says_its_status(story.card), f"the card says {sentence(story.card)!r}")
    return found


def _says_its_status(card: RunView) -> bool:
    """A failure begins with who failed, as far as that is known."""
    if card.failure is not None and card.status is Status.FAILED:
        return sentence(card) == failure_sentence(card.failure, notebook=card.spec.notebook)
    return sentence(card).startswith(WORDS.get(card.status, card.status.title()))


def _of_the_ledger(story: Story, must: Callable[[object, str], None]) -> None:
    status, card = story.card.status.value, story.card
    numbers = [number for number, _, _ in story.attempts]
    must(numbers == list(range(1, len(numbers) + 1)), f"the attempts are {numbers}")
    must(story.run == (status, card.attempt), f"the ledger has {story.run}, the card {status} {card.attempt}")
    must(story.attempts[-1][:2] == (card.attempt, status), f"the last attempt is {story.attempts[-1]}")
    over = [Status(each).terminal for _, each, _ in story.attempts[:-1]]
    must(all(over), f"an attempt before the last is not over: {story.attempts}")
    newest = max(story.steps, default=-1)
    shown = card.latest[METRIC][0] if METRIC in card.latest else -1
    # of a run that was started again, the card shows the steps of its last attempt
    must(shown >= newest or card.attempt > 1, f"the card shows step {shown}, the ledger has {newest}")


def _of_the_cluster(story: Story, must: Callable[[object, str], None]) -> None:
    status, card = story.card.status, story.card
    submission = story.attempts[-1][2]
    phase, restarts = story.jobs.get(submission, ("", 0))
    known = {each for _, _, each in story.attempts}
    must(story.jobs.keys() <= known, f"Volcano has {sorted(story.jobs)}, submitted were {sorted(known)}")
    must(phase in PHASES[status], f"Volcano says {phase!r} of what is {status}")
    attempt = int(submission.rpartition("-")[2]) + restarts
    # the failure for which Volcano gives up counts as a restart that never is
    must(not phase or attempt in (card.attempt, card.attempt + status.terminal), f"{restarts} restarts")
    if status.terminal:
        must(not story.alive, f"pods live: {story.alive}")
        counted = int(story.held.get("pods", "0"))
        must(counted <= story.others, f"the queue still counts {story.held}")
        must(story.others or not story.held, f"the queue counts {story.held} of nobody")
    elif status is Status.RUNNING:
        must(all(story.alive.values()), f"some pods have no node: {story.alive}")
        must(len(story.alive) == card.spec.workers, f"pods: {story.alive}")
    elif status is Status.WAITING:
        # before a new start the pods of the last one end, with the time that they have for it
        ending = phase == "Restarting"
        must(ending or not any(story.alive.values()), f"it waits, and has nodes: {story.alive}")


def lags(story: Story) -> list[str]:
    """What MLflow has otherwise than the ledger."""
    status, found = story.card.status, []
    expected = status.value if status.terminal else "RUNNING"
    if story.tracked != [expected]:
        found.append(f"MLflow has {story.tracked}, expected is {expected}")
    if status.terminal and sorted(story.exported) != sorted(story.steps):
        found.append("MLflow has other points than the ledger")
    if not set(story.exported) <= set(story.steps):
        found.append("MLflow has points that the ledger lacks")
    return found


def _alive(bed: Place, namespace: str, label: str) -> dict[str, bool]:
    """Pods that are not over -> whether each has a node."""
    return {
        pod["metadata"]["name"]: bool(pod["spec"].get("nodeName"))
        for pod in _get(bed, "pods", "-n", namespace, "-l", label)["items"]
        if pod["status"].get("phase") not in ("Succeeded", "Failed")
    }


def _phase(job: Mapping[str, Any]) -> tuple[str, int]:
    status = job.get("status", {})
    return str(status.get("state", {}).get("phase", "")), int(status.get("retryCount", 0))


def _get(bed: Place, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bed.kubectl("get", *words, "-o", "json"))
    return found

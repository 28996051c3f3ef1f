"""A scene for drills: a launcher with MLflow, a namespace with checkpoints, a queue with one slice, and a job that must
come to its end with every step of its program, whatever happens meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accounts
import launching
import oracle
from bed import kit
from bed.kit import Api
from elsewhere import Place
from launching import Launcher
from slicelift.models import RunView, Status
from slicelift.sentences import sentence

SLICE = "nvidia.com/mig-1g.10gb"
STEPS = 40
# every rank for itself, rank 0 saves: nothing of it costs anything but the start
PROGRAM = f"""
import time
import slicelift

if __name__ == "__main__":
    found = slicelift.resume()
    for step in range(found[1] if found else 0, {STEPS}):
        time.sleep(0.25)
        slicelift.log(step=step, done=float(step + 1))
        slicelift.checkpoint({{"done": step + 1}}, step=step + 1)
"""
# two pods have to import torch on two cores
START_SECONDS = 150.0
# how long a part of Volcano is away; a silent one is named after 20 s
AWAY_SECONDS = 60.0
# how long MLflow and PostgreSQL are away
OUTAGE_SECONDS = float(os.environ.get("SLICELIFT_OUTAGE_SECONDS", "120"))


@dataclass(frozen=True, kw_only=True)
class Scene:
    """See the module."""

    api: Api
    bed: Any  # a `Cluster` for those drills that ask for `own_bed`
    launcher: Launcher
    namespace: str
    queue: str

    def submit(self, program: str = PROGRAM, **asked: Any) -> str:
        """The program on CPUs; its run id."""
        return self.launcher.submit(program, **{"workers": 1, "queue": self.queue, **asked})

    def under_way(self, program: str = PROGRAM, **asked: Any) -> str:
        """The same, once it has made some steps."""
        run = self.submit(program, **asked)
        self.until(run, lambda view: step_of(view) >= 3)
        return run

    def until(self, run: str, check: Callable[[RunView], bool], *, seconds: float = START_SECONDS) -> RunView:
        """The first view that meets it."""
        return self.launcher.until(run, check, seconds=seconds)

    def look(self, run: str) -> oracle.Story:
        """What the four say now."""
        return oracle.look(self.bed, self.launcher, run, namespace=self.namespace, queue=self.queue)

    def agree(self, run: str, *, seconds: float = oracle.SECONDS) -> RunView:
        """The card, once all four tell the same."""
        return oracle.agree(
            self.bed, self.launcher, run, namespace=self.namespace, queue=self.queue, seconds=seconds
        )

    def finish(self, run: str, *, again: int = 1) -> RunView:
        """Its end, with every step of the program in ledger and MLflow; a new attempt may make `again` steps once more."""
        self.until(run, lambda view: view.status.terminal)
        view = self.agree(run)
        story = self.look(run)
        assert view.status is Status.FINISHED, sentence(view)
        missing = set(range(STEPS)) ^ set(story.exported)
        assert not missing, (sentence(view), missing, [self._told(run, n + 1) for n in range(view.attempt)])
        # what was logged after the last checkpoint of an attempt is done again by the next one
        assert len(story.exported) <= STEPS + again * (view.attempt - 1)
        return view

    def _told(self, run: str, attempt: int) -> str:
        """What the agent of the first worker wrote."""
        text, _ = self.launcher.client.logs(run, rank="agent", attempt=attempt)
        return text.decode()

    def jobs(self, run: str) -> list[str]:
        """The Volcano Jobs of a run."""
        label = f"slicelift.io/run={run}"
        found = self.api.custom.list_namespaced_custom_object(
            *kit.BATCH, self.namespace, "jobs", label_selector=label
        )
        return [job["metadata"]["name"] for job in found["items"]]

    def left(self, run: str) -> list[str]:
        """All that the cluster still has of a run: Jobs, pods, Secrets, and PodGroups of its Jobs."""
        label = f"slicelift.io/run={run}"
        pods = self.api.core.list_namespaced_pod(self.namespace, label_selector=label).items
        secrets = self.api.core.list_namespaced_secret(self.namespace, label_selector=label).items
        groups = self.api.custom.list_namespaced_custom_object(
            *kit.SCHEDULING, self.namespace, "podgroups", label_selector=label
        )["items"]
        named = [each.metadata.name for each in (*pods, *secrets)]
        return [*self.jobs(run), *named, *(group["metadata"]["name"] for group in groups)]


@contextmanager
def opened(
    api: Api, bed: Place, image: str, home: Path, *, restricted: bool = False, **asked: Any
) -> Iterator[Scene]:
    """A scene of its own; further words are those of `launching.serving`.

    `restricted`: the launcher has the rights of hub/deploy/rbac and no more; its kubeconfig lies beside its home.
    """
    with ExitStack() as stack:
        queue = stack.enter_context(kit.queue(api, share={SLICE: "1"}))
        here = stack.enter_context(kit.namespace(api))
        claim = stack.enter_context(launching.checkpoints(api, bed, here))
        words = {"namespace": here, "image": image, "claim": claim, "tracker": "mlflow", **asked}
        if restricted:
            account = accounts.account(api, accounts.LAUNCHER, namespace=here, folder=home.parent)
            words["more"] = f'c.Volcano.kubeconfig = "{stack.enter_context(account)}"\n'
        launcher = stack.enter_context(launching.serving(home, bed, **words))
        yield Scene(api=api, bed=bed, launcher=launcher, namespace=here, queue=queue)


def step_of(view: RunView) -> int:
    """The newest step of the program that the card knows, -1 before the first."""
    return int(view.latest.get(oracle.METRIC, (-1, 0.0))[0])

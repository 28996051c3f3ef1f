"""A backend for tests: the pods of a gang as processes of this machine, restarted as Volcano would restart them.

Loaded by the launcher's own process (`--backend pods.Pods`). Each pod runs `runtime.pyz` in the job's Python with a folder
of its own as `/slicelift`, as process 1 of a PID namespace, with which all of it ends (for root only). A pod that ends with
another code than 0 ends all others (SIGTERM, then SIGKILL after the grace), and the gang starts anew; 78 ends the job. The
pods of an elastic gang are made anew one by one, unless `<home>/pods/hold` exists. Nothing of the launcher's own restarts
is covered: it forgets its gangs.

`<home>/pods/<job>.json` tells `{restarts, pods: [{pid, root}], codes: [[...] per start]}`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import slicelift
from slicelift.backends.base import GONE, Attempt, Manifest, Proof, ranks_per_worker
from slicelift.models import JobSpec, JobStatus, Status, to_dict
from slicelift.runtime.verdict import HOPELESS

ATTEMPTS = 3
GRACE_SECONDS = 20
# without it agents of two pods would end each other's ranks: both are of one attempt, and visible to both
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
MAIN = "from slicelift.runtime.pod import main\nraise SystemExit(main())\n"
_HEADS = ("__init__.py", "_version.py", "errors.py", "models.py")


class Pods:
    """See the module."""

    name = "pods"
    leased = False

    def __init__(self, home: Path) -> None:
        self.folder = home / "pods"
        self.folder.mkdir(exist_ok=True)
        self.gangs: dict[str, Gang] = {}
        self.changed: Callable[[str], None] = lambda _handle: None

    def render(self, spec: JobSpec, attempt: Attempt) -> Manifest:
        return {"kind": "Pods", "workers": spec.workers}

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:
        return ["These pods are processes of this machine."]

    def listen(self, changed: Callable[[str], None]) -> None:
        self.changed = changed

    def capacity(self) -> Mapping[str, Any] | None:
        return {"queues": ["default"]}

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:
        return None

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:
        handle = f"pods://{attempt.attempt_id}"
        return handle if handle in self.gangs else ""

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        handle = f"pods://{attempt.attempt_id}"
        if handle not in self.gangs:
            self.gangs[handle] = Gang(self.folder, spec, attempt, news=lambda: self.changed(handle))
            self.gangs[handle].start()
        return handle

    def status(self, handle: str) -> JobStatus:
        gang = self.gangs.get(handle)
        return JobStatus(status=Status.UNKNOWN, reason=GONE) if gang is None else gang.status()

    def cancel(self, handle: str, *, reason: str, grace_seconds: float = 10.0, saving: bool = False) -> Proof:
        gang = self.gangs[handle]
        gang.wanted = False
        gang.end_pods(grace_seconds)
        gang.join(60)
        return Proof(gone=not gang.is_alive(), killed=1)

    def scale(self, handle: str, workers: int) -> None:
        """Its gangs keep their workers."""

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:
        return True


class Gang(threading.Thread):
    """One job: its pods, and how often they were started."""

    def __init__(self, folder: Path, spec: JobSpec, attempt: Attempt, *, news: Callable[[], None]) -> None:
        super().__init__(name=attempt.attempt_id, daemon=True)
        self.spec, self.attempt, self.news = spec, attempt, news
        self.folder = folder
        self.wanted = True
        self.restarts = self.port = 0
        self.codes: list[list[int | None]] = []
        self.pods: list[Pod] = []
        self.end: JobStatus | None = None

    @property
    def elastic(self) -> bool:
        return self.spec.least_workers < self.spec.workers

    def status(self) -> JobStatus:
        if self.end is not None:
            return self.end
        restarts = 0 if self.elastic else self.restarts
        return JobStatus(status=Status.STARTING, phase="Running", restarts=restarts)

    def run(self) -> None:
        archive = make_archive(self.folder / "runtime.pyz")
        self.pods = [Pod(self, archive, node) for node in range(self.spec.workers)]
        while self.end is None:
            self.codes.append([None] * self.spec.workers)
            self.port = free_port()
            for pod in self.pods:
                pod.start(self.restarts)
            self.tell()
            self.watch()
            self.tell()
            self.news()

    def watch(self) -> None:
        """Until all pods of this start are over, and what follows from it."""
        while self.wanted:
            self.codes[-1] = [pod.look() for pod in self.pods]
            bad = [code for code in self.codes[-1] if code]
            done = self.spec.least_workers if self.elastic else self.spec.workers
            if self.codes[-1].count(0) >= done:
                self.end_pods(GRACE_SECONDS)
                self.finish(Status.FINISHED)
                return
            if bad and not self.after(bad[0]):
                return
            time.sleep(0.05)
        self.end_pods(GRACE_SECONDS)
        self.finish(Status.KILLED)

    def after(self, code: int) -> bool:
        """A pod has failed; whether this start goes on."""
        last = self.restarts + 1 >= ATTEMPTS
        if code == HOPELESS or last or not self.elastic:
            self.end_pods(GRACE_SECONDS)
            self.codes[-1] = [pod.look() for pod in self.pods]
        if code == HOPELESS or last:
            self.finish(Status.FAILED)
            return False
        self.restarts += 1
        while self.elastic and (self.folder / "hold").exists() and self.wanted:
            time.sleep(0.05)
        for pod in self.pods if self.elastic else ():
            if pod.look():
                pod.start(self.restarts)
        self.tell()
        return self.elastic

    def finish(self, status: Status) -> None:
        self.end = JobStatus(status=status, phase="Over", restarts=0 if self.elastic else self.restarts)

    def end_pods(self, grace_seconds: float) -> None:
        for pod in self.pods:
            pod.signal(signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        while time.monotonic() < until and any(pod.look() is None for pod in self.pods):
            time.sleep(0.05)
        for pod in self.pods:
            pod.signal(signal.SIGKILL)
            pod.wait()

    def tell(self) -> None:
        path = self.folder / f"{self.attempt.attempt_id}.json"
        pods = [{"pid": pod.pid, "root": str(pod.root)} for pod in self.pods]
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"restarts": self.restarts, "pods": pods, "codes": self.codes}))
        part.rename(path)


class Pod:
    """One node of a gang; a new folder and process for each start."""

    def __init__(self, gang: Gang, archive: Path, node: int) -> None:
        self.gang, self.archive, self.node = gang, archive, node
        self.address = f"127.0.0.{2 + node}"
        self.starts = 0
        self.process: subprocess.Popen[bytes]

    def start(self, restarts: int) -> None:
        self.starts += 1
        self.root = self.gang.folder / self.gang.attempt.attempt_id / f"{self.node}-{self.starts}"
        (self.root / "request").mkdir(parents=True)
        (self.root / "request" / "agent.json").write_text(json.dumps(self.request()))
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "GLOO_SOCKET_IFNAME": "lo",
            "VC_TASK_INDEX": str(self.node),
            "SLICELIFT_RESTARTS": str(restarts) if restarts else "",
            "SLICELIFT_POD_IP": self.address,
            "SLICELIFT_NODE_NAME": "this-machine",
            "SLICELIFT_POD_ROOT": str(self.root),
        }
        with (self.root / "container.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*APART, self.gang.spec.python, "-P", str(self.archive)],
                env=variables,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.first_process()

    def first_process(self) -> int:
        """The one that counts; ours is the one that made its namespace."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        return int(found[0])

    def request(self) -> dict[str, Any]:
        spec, attempt = self.gang.spec, self.gang.attempt
        return {
            "attempt_id": attempt.attempt_id,
            "run_id": attempt.run_id,
            "promotion_id": attempt.promotion_id,
            "attempt": attempt.attempt,
            "launcher_url": attempt.launcher_url,
            "token": attempt.token,
            "checkpoints": str(self.gang.folder / "checkpoints" / attempt.run_id),
            "cache": str(self.gang.folder / "data"),
            "spec": to_dict(spec),
            "nodes": spec.workers,
            "min_nodes": spec.least_workers,
            "nproc": ranks_per_worker(spec, leased=False),
            "master": "127.0.0.2",
            "master_port": self.gang.port,
            "grace_seconds": GRACE_SECONDS - 10,
            "patience_seconds": 30,
        }

    def look(self) -> int | None:
        """Its exit code, negative for a signal."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self) -> None:
        self.process.wait(30)


def free_port() -> int:
    """On node 0, for real pods have their ports for themselves; below those that the kernel gives to anybody."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise RuntimeError("no port is free")


def make_archive(path: Path) -> Path:
    """runtime.pyz: all that an image need not have."""
    package = Path(slicelift.__file__).parent
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:
        archive.writestr("__main__.py", MAIN)
        for source in [*(package / name for name in _HEADS), *sorted((package / "runtime").glob("*.py"))]:
            archive.write(source, f"slicelift/{source.relative_to(package)}")
    part.rename(path)
    return path

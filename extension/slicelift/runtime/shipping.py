"""Sending what a job says, while it says it: metric events, logs, and where it stands.

One thread with one connection. It never gives up on a launcher that is away and never stands in the way of
training: everything waits on disk. A line logged by a rank is with the launcher about 50 ms later.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from slicelift.errors import Conflict, NotFound, SliceliftError, Unavailable
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.link import Link
from slicelift.runtime.nodes import Place
from slicelift.runtime.streams import Batch, Line, Spool, Stream, encode, halve, note_of_loss
from slicelift.runtime.tails import Tail

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 5.0
LONGEST_BACKOFF_SECONDS = 2.0
BATCH_POINTS = 1000
BATCHES_PER_ROUND = 50


class Report:
    """Where the attempt stands, set by the agent and read by the shipper; guarded by a lock."""

    def __init__(self, place: Place | None = None) -> None:
        self._lock = threading.Lock()
        self._content: dict[str, Any] = {"state": "preparing", "message": "", "ranks": []}
        here = place or Place()
        self._content |= {"node": here.node, "nodes": here.nodes}
        self.version = 0

    def update(self, **changes: Any) -> bool:
        """Set fields of the report; True when that changed anything."""
        with self._lock:
            if all(self._content.get(name) == value for name, value in changes.items()):
                return False
            self._content.update(changes)
            self.version += 1
            return True

    def read(self) -> tuple[int, dict[str, Any]]:
        """(version, content) that belong together."""
        with self._lock:
            return self.version, dict(self._content)


class Shipper(threading.Thread):
    """Ships until told to finish and everything is there, or until the launcher does not want it any more.

    `secrets` are values to mask in logs; `on_cancel` is called once when the launcher wants the job to end.
    `cancelled` is set then, `gone` when it no longer knows the attempt. The agent's own log goes under `name`;
    `source` tells this agent from others that write the same ranks' logs.
    """

    def __init__(
        self,
        folder: AttemptFolder,
        link: Link,
        report: Report,
        *,
        secrets: Iterable[str],
        on_cancel: Callable[[], None],
        name: str = "agent",
        source: str = "",
    ) -> None:
        super().__init__(name="shipper", daemon=True)
        self._agent = name
        self._source = source
        self.cancelled = threading.Event()
        self.gone = threading.Event()
        self.drained = threading.Event()
        self._folder = folder
        self._link = link
        self._report = report
        self._on_cancel = on_cancel
        self._spool = Spool(folder.root / "spool")
        self._tails: dict[str, Tail] = {}
        self._secrets = tuple(secrets)
        self._finishing = threading.Event()
        self._closing = threading.Event()
        self._set_aside = 0
        self._told = (-1, 0.0)
        self._trouble = ""

    def finish(self) -> None:
        """No rank lives any more: from now on `drained` is set when all events and logs are delivered."""
        self._finishing.set()

    def wait_drained(self, until: float) -> bool:
        """Wait until all is delivered, or unwanted; False when `until` (monotonic seconds) comes first."""
        while not (self.drained.is_set() or self.gone.is_set()):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    @property
    def logs_whole(self) -> bool:
        """True when the launcher refused no part of any log. Ask when all is delivered."""
        return not any(tail.refused for tail in self._tails.values())

    def close(self, until: float) -> bool:
        """Send the last report and the last lines, then end; False when `until` (monotonic seconds) comes first."""
        self._closing.set()
        self.join(max(0.0, until - time.monotonic()))
        return not self.is_alive()

    def run(self) -> None:
        """The thread's loop. Whatever goes wrong in one round is said once in agent.log and tried again."""
        pause = POLL_SECONDS
        while not self.gone.is_set():
            closing = self._closing.is_set()
            done = self._round()
            if done and closing:
                break
            pause = POLL_SECONDS if done else min(pause * 2, LONGEST_BACKOFF_SECONDS)
            time.sleep(pause)
        self._link.close()

    def _round(self) -> bool:
        """One look at everything; False when it has to be tried again."""
        finishing = self._finishing.is_set()
        try:
            self._send_state()
            empty = self._send_events()
            self._send_logs(final=finishing)
        except NotFound as error:
            self._say(f"the launcher does not know this attempt any more: {error}")
            self.gone.set()
        except Unavailable as error:
            self._say(str(error))
            return False
        except Exception:  # noqa: BLE001 - the thread must outlive whatever a broken disk or answer throws
            self._say(traceback.format_exc())
            return False
        else:
            self._trouble = ""
            if finishing and empty:
                self._spool.remove()
                self.drained.set()
        return True

    def _send_state(self) -> None:
        version, content = self._report.read()
        if version == self._told[0] and time.monotonic() - self._told[1] < HEARTBEAT_SECONDS:
            return
        try:
            answer = self._link.post_json("state", content)
        except (Unavailable, NotFound):
            raise
        except SliceliftError as refusal:
            self._say(f"the launcher refused a report: {refusal}")
            answer = None
        self._told = (version, time.monotonic())
        if isinstance(answer, dict) and answer.get("cancel") and not self.cancelled.is_set():
            self.cancelled.set()
            self._on_cancel()

    def _send_events(self) -> bool:
        """Send batches until there is nothing more (True) or the logs must have their turn (False)."""
        for _ in range(BATCHES_PER_ROUND):
            batch = self._spool.batch(BATCH_POINTS)
            if not batch:
                return True
            self._send_batch(batch)
        return False

    def _send_batch(self, batch: Batch) -> None:
        """One call. What is refused goes again in halves, until a single line is found guilty."""
        wanted = [(stream, lines) for stream, lines in batch if not stream.aside]
        if not wanted:
            return
        try:
            self._acknowledge(self._link.post_json("events", encode(wanted)))
        except Conflict as conflict:
            self._mend(conflict.detail)
        except (Unavailable, NotFound):
            raise
        except SliceliftError as refusal:
            self._give_way(wanted, refusal)

    def _acknowledge(self, answer: Any) -> None:
        for entry in answer["acked"]:
            stream = self._spool.stream(int(entry["rank"]), str(entry["process"]))
            if stream is not None:
                stream.acknowledge(int(entry["q"]))

    def _mend(self, detail: Any) -> None:
        """A gap between what the launcher has and what we sent: go back to what it has."""
        stream = self._spool.stream(int(detail["rank"]), str(detail["process"]))
        if stream is None:
            raise Unavailable("launcher-confused", f"The launcher misses events of {detail}, unknown here.")
        stream.rewind(int(detail["have"]))

    def _give_way(self, batch: Batch, refusal: SliceliftError) -> None:
        halves = halve(batch)
        for half in halves:
            self._send_batch(half)
        if not halves:
            stream, lines = batch[0]
            self._give_up(stream, lines[0], refusal)

    def _give_up(self, stream: Stream, line: Line, refusal: SliceliftError) -> None:
        """A note takes the place of a refused line. If that is refused, too, it is the stream that is not wanted:
        it must not hold up the others, nor the logs and models behind them."""
        try:
            self._acknowledge(self._link.post_json("events", encode([(stream, [note_of_loss(line)])])))
        except Conflict as conflict:
            self._mend(conflict.detail)
        except (Unavailable, NotFound):
            raise
        except SliceliftError:
            stream.aside = True
            self._set_aside += 1
            whose = f"process {stream.process} of rank {stream.rank}"
            self._say(
                f"the events of {whose} are refused and set aside ({self._set_aside} so far): {refusal}"
            )
        else:
            self._say(f"an event was refused and dropped: {refusal}")

    def _send_logs(self, *, final: bool) -> None:
        for tail in self._all_tails():
            tail.ship(self._link, final=final)

    def _all_tails(self) -> list[Tail]:
        paths = {self._agent: self._folder.agent_log}
        for path in (self._folder.root / "logs").glob("rank-*.log"):
            paths[path.stem.removeprefix("rank-")] = path
        for rank, path in paths.items():
            if rank not in self._tails:
                self._tails[rank] = Tail(path, rank, self._secrets, source=self._source)
        return list(self._tails.values())

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            say(trouble)


def say(text: str) -> None:
    """One message of the agent, into agent.log; a full disk must not end the agent."""
    try:
        sys.stderr.write(f"slicelift agent: {text.rstrip()}\n")
        sys.stderr.flush()
    except OSError:
        return

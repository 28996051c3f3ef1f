"""Tells watchers what happens, at once: one stream for any number of runs, resumable, never buffering for ever.

Used from the event loop's thread only. The last events are kept, so a watcher that comes back with the id of
the last one it saw misses nothing; one that was away for longer is told `reset` and reads the series again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

KEPT_BYTES = 16 * 1024 * 1024
PENDING_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, already as text of the stream."""

    number: int
    owner: str
    run_id: str
    text: bytes


class Watcher:
    """One open stream. `runs` None: all of the owner's. `drop` ends it when it falls too far behind."""

    def __init__(self, owner: str, runs: frozenset[str] | None, *, drop: Callable[[], None]) -> None:
        self.owner = owner
        self.runs = runs
        self.dropped = False
        self._drop = drop
        self._pending: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()

    def wants(self, owner: str, run_id: str) -> bool:
        """Whether an event of that run is for this watcher."""
        return owner == self.owner and (self.runs is None or run_id in self.runs)

    def put(self, text: bytes) -> None:
        """Queue one piece of the stream; a watcher that does not read is given up instead."""
        if self.dropped:
            return
        self._pending.append(text)
        self._size += len(text)
        self._news.set()
        if self._size > PENDING_BYTES:
            self.dropped = True
            self._pending.clear()
            self._drop()

    async def take(self, timeout_seconds: float) -> bytes:
        """Everything queued, or b"" when nothing comes in time."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_seconds)
        except TimeoutError:
            return b""
        text = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._news.clear()
        return text


class Broker:
    """Hands events to watchers. Ids are `<instance>-<number>`: a restarted launcher is another instance."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._number = 0
        self._kept: deque[Event] = deque()
        self._kept_size = 0
        self._watchers: set[Watcher] = set()

    def publish(self, kind: str, data: dict[str, Any], *, owner: str, run_id: str) -> None:
        """Send to whoever watches the run, and keep it for those who come back."""
        self._number += 1
        text = self._make_text(kind, data)
        event = Event(number=self._number, owner=owner, run_id=run_id, text=text)
        self._kept.append(event)
        self._kept_size += len(text)
        while self._kept_size > KEPT_BYTES:
            self._kept_size -= len(self._kept.popleft().text)
        for watcher in self._watchers:
            if watcher.wants(owner, run_id):
                watcher.put(text)

    def subscribe(self, watcher: Watcher, *, last_id: str) -> bool:
        """Whether the watcher missed nothing since `last_id`; what it missed is queued already."""
        missed = self._after(last_id)
        for event in missed or ():
            if watcher.wants(event.owner, event.run_id):
                watcher.put(event.text)
        self._watchers.add(watcher)
        return missed is not None

    def unsubscribe(self, watcher: Watcher) -> None:
        """It went away."""
        self._watchers.discard(watcher)

    def make_first(self, kind: str, data: dict[str, Any]) -> bytes:
        """An event for one watcher alone, with the id of the last public one."""
        return self._make_text(kind, data)

    def _make_text(self, kind: str, data: dict[str, Any]) -> bytes:
        body = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
        return f"id: {self._instance}-{self._number}\nevent: {kind}\ndata: {body}\n\n".encode()

    def _after(self, last_id: str) -> list[Event] | None:
        """What came after that id, or None when we cannot know."""
        instance, _, number = last_id.rpartition("-")
        if instance != self._instance or not number.isdecimal():
            return None
        seen = int(number)
        oldest = self._kept[0].number if self._kept else self._number + 1
        if not oldest - 1 <= seen <= self._number:
            return None
        return [event for event in self._kept if event.number > seen]


class Announcer:
    """Publishes the view of a run after it changed; changes that come while one is read become one."""

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()

    def changed(self, run_id: str) -> None:
        """Note it and return at once."""
        self._changed[run_id] = None
        self._news.set()

    async def run(self, announce: Callable[[str], Awaitable[None]]) -> None:
        """Announce for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            changed, self._changed = self._changed, {}
            for run_id in changed:
                await announce(run_id)

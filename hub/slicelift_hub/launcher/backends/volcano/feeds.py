"""One kind of object, listed once and then followed by one thread, found again by the job it belongs to."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slicelift.errors import SliceliftError, Unavailable

from slicelift_hub.launcher.backends.volcano.client import DENIED, Client, Gone, Watch
from slicelift_hub.launcher.backends.volcano.picture import Object

Kept = dict[str, Any]
Told = Callable[[str], None]

_LONGEST_PAUSE = 5.0
_DENIED_PAUSE = 30.0
_log = logging.getLogger(__name__)


class Feed:
    """Follows `path`. `owner_of` says under which name an object is found; `told` gets that name at every change.

    A broken connection goes on from the version it had; one that is too old (410) lists again. `keep` makes of an
    object what is kept, None for nothing, and of each owner the `most` newest are.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        keep: Callable[[Object], Kept | None],
        owner_of: Callable[[Object], str],
        told: Told,
        query: Mapping[str, str] | None = None,
        most: int = 0,
    ) -> None:
        self.path = path
        self.synced = threading.Event()
        self.broken_since: float | None = None
        self.broken_by: SliceliftError | None = None
        self._client = client
        self._keep = keep
        self._owner_of = owner_of
        self._told = told
        self._query = dict(query or {})
        self._most = most
        self._lock = threading.Lock()
        self._owned: dict[str, dict[str, Kept]] = {}
        self._version = ""
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)
        self._thread.start()

    def of(self, owner: str) -> list[Kept]:
        """What belongs to it now."""
        with self._lock:
            return list(self._owned.get(owner, {}).values())

    def values(self) -> list[Kept]:
        """All objects as they are now."""
        with self._lock:
            return [item for items in self._owned.values() for item in items.values()]

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.stop()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause * (0.5 + random.random() / 2)):  # noqa: S311 - no secret, a jitter
            try:
                self._follow()
                pause = 0.0
            except Gone:
                self._version, pause = "", 0.0
            except SliceliftError as error:
                # a kind that may not be read counts as empty: the sentences are poorer, jobs run all the same.
                # One that was read before is denied by an API server that has just started and knows no roles yet
                empty = not isinstance(error, Unavailable) or error.code == DENIED
                pause = (
                    _DENIED_PAUSE if empty and not self._version else min(_LONGEST_PAUSE, pause * 2 or 0.25)
                )
                self._break(error)
                if empty:
                    self.synced.set()
            except Exception:  # noqa: BLE001 - a watch must go on, whatever an object looks like
                _log.exception("Following %s failed; listing again.", self.path)
                self._version, pause = "", _LONGEST_PAUSE

    def _break(self, error: SliceliftError) -> None:
        self.broken_by = error
        if self.broken_since is None and not self._stopping.is_set():
            self.broken_since = time.time()
            _log.warning("Following %s: %s", self.path, error)

    def _follow(self) -> None:
        if not self._version:
            self._list()
        self._watch = self._client.watch(self.path, version=self._version, **self._query)
        self.broken_since = None
        for change in self._watch:
            item = change["object"]
            self._version = str(item["metadata"]["resourceVersion"])
            if change["type"] != "BOOKMARK":
                self._put(item, gone=change["type"] == "DELETED")
            if self._stopping.is_set():
                return

    def _list(self) -> None:
        found, version = self._client.list(self.path, **self._query)
        here = {(self._owner_of(item), _key(item)) for item in found}
        with self._lock:
            left = [(owner, key) for owner, items in self._owned.items() for key in items]
        for owner, key in left:
            if (owner, key) not in here:
                self._drop(owner, key)
        for item in found:
            self._put(item)
        self._version = version
        self.broken_since = None
        self.synced.set()

    def _put(self, item: Object, *, gone: bool = False) -> None:
        owner, key = self._owner_of(item), _key(item)
        fresh = None if gone else self._keep(item)
        if fresh is None:
            self._drop(owner, key)
            return
        with self._lock:
            items = self._owned.setdefault(owner, {})
            # put last, so that the order is that of the news
            before = items.pop(key, None)
            items[key] = _with_since(fresh, before)
            while self._most and len(items) > self._most:
                items.pop(next(iter(items)))
            changed = before is None or _news(before) != _news(fresh)
        if changed:
            self._told(owner)

    def _drop(self, owner: str, key: str) -> None:
        with self._lock:
            items = self._owned.get(owner, {})
            dropped = items.pop(key, None)
            if not items:
                self._owned.pop(owner, None)
        if dropped is not None:
            self._told(owner)


def wait_synced(feeds: Iterable[Feed], *, seconds: float) -> None:
    """Return when each has listed once. Raises Unavailable when that takes longer."""
    until = time.monotonic() + seconds
    for feed in feeds:
        if not feed.synced.wait(max(0.0, until - time.monotonic())):
            message = "The cluster's API server has not answered yet."
            raise Unavailable("cluster-away", message, "Jobs go on meanwhile; the launcher tries again.")


def _key(item: Object) -> str:
    metadata = item["metadata"]
    return str(metadata.get("uid") or metadata["name"])


def _news(item: Kept) -> Kept:
    """Without the time: a job that waits is told the same every second."""
    return {
        name: value for name, value in item.items() if name not in ("lastTimestamp", "series", "eventTime")
    }


def _with_since(fresh: Kept, before: Kept | None) -> Kept:
    """With the time since when it is in its phase, as far as seen."""
    if "status" in fresh:
        same = before is not None and _phase(before) == _phase(fresh)
        fresh["seen"] = before["seen"] if before is not None and same else time.time()
    return fresh


def _phase(item: Object) -> Any:
    """Of a pod or PodGroup `phase`, of a Job `state.phase`, of a queue `state`."""
    status = item.get("status") or {}
    state = status.get("state")
    return status.get("phase") or (state.get("phase") if isinstance(state, dict) else state)

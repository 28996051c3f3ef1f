"""Following a log file to the launcher by offset, secrets masked on the way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from slicelift.errors import Conflict, NotFound, SliceliftError, Unavailable
from slicelift.runtime.link import Link
from slicelift.runtime.masking import Masker

_CHUNK_BYTES = 256 * 1024
# how much of one log goes out before the others and the metrics get their turn
_TURN_BYTES = 2 * 1024 * 1024


class Tail:
    """One log. Offsets at the launcher count masked bytes; they follow from the file alone, so an agent that
    starts anew reads from the beginning and the launcher skips what it has."""

    def __init__(self, path: Path, rank: str, secrets: Iterable[str], *, source: str = "") -> None:
        """`source` names one of several agents, each with offsets of its own, that write the log of one rank."""
        self._path = path
        self._query = f"rank={quote(rank)}" + (f"&source={quote(source)}" if source else "")
        self._secrets = tuple(secrets)
        # the launcher takes no more of it (a limit): the rest is in the file alone
        self.refused = False
        self._masker = Masker(self._secrets)
        # read and masked, not yet at the launcher; `_offset` counts raw bytes, `_sent` and `_known` masked ones
        self._pending = b""
        self._offset = self._sent = self._known = 0

    def ship(self, link: Link, *, final: bool) -> None:
        """Send what is new, up to a turn's share, or all of it when `final`. Raises as `Link` does."""
        budget = _TURN_BYTES
        while (budget > 0 or final) and not self.refused:
            self._fill(final=final)
            if not self._pending:
                return
            budget -= len(self._pending)
            self._send(link)

    def _fill(self, *, final: bool) -> None:
        """Read on until something is pending that the launcher lacks, or the file ends."""
        while not self._pending:
            raw = self._read()
            self._pending = self._masker.feed(raw) if raw else self._masker.finish() if final else b""
            known = min(len(self._pending), max(0, self._known - self._sent))
            self._pending = self._pending[known:]
            self._sent += known
            if not raw:
                return

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                raw = stream.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(raw)
        return raw

    def _send(self, link: Link) -> None:
        try:
            answer = link.post_bytes(f"logs?{self._query}&offset={self._sent}", self._pending)
        except Conflict as conflict:
            # the launcher lost something, for instance to a restored backup
            self._restart(known=int((conflict.detail or {}).get("next", 0)))
            return
        except (Unavailable, NotFound):
            raise
        except SliceliftError:
            # for good: the file stays here, and the job's other news go on
            self.refused = True
            raise
        self._known = max(self._known, int(answer["next"]))
        done = min(len(self._pending), max(0, self._known - self._sent))
        self._pending = self._pending[done:]
        self._sent += done

    def _restart(self, *, known: int) -> None:
        self._masker = Masker(self._secrets)
        self._pending = b""
        self._offset = self._sent = 0
        self._known = known

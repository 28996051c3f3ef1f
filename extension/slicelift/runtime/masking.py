"""Taking secrets out of text on its way to the launcher, also where a chunk ends in the middle of one."""

from __future__ import annotations

import re
from collections.abc import Iterable

STARS = "***"
# shorter values are words of everyday text: masking them would ruin a log and hide nothing
_LEAST_CHARACTERS = 3


class Masker:
    """Replaces every secret by `***`. Its output depends on the bytes fed, not on how they were cut."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {value.encode() for value in secrets if len(value) >= _LEAST_CHARACTERS}
        # the longest first: a secret that begins with another one is masked whole
        self._secrets = sorted(found, key=len, reverse=True)
        alternatives = b"|".join(re.escape(secret) for secret in self._secrets)
        self._pattern = re.compile(alternatives) if self._secrets else None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The masked text so far certain; an end that may be the start of a secret is held back."""
        if self._pattern is None:
            return chunk
        text = self._held + chunk
        cut = len(text) - self._open_end(text)
        for match in self._pattern.finditer(text):
            if match.start() < cut < match.end():
                cut = match.start()
        self._held = text[cut:]
        return self._pattern.sub(STARS.encode(), text[:cut])

    def finish(self) -> bytes:
        """What was held back, when nothing follows any more."""
        rest, self._held = self._held, b""
        return self._pattern.sub(STARS.encode(), rest) if self._pattern else rest

    def _open_end(self, text: bytes) -> int:
        """How many bytes at the end are a true beginning of some secret."""
        longest = max((len(secret) for secret in self._secrets), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(secret) > length and secret.startswith(tail) for secret in self._secrets):
                return length
        return 0


def mask(text: str, secrets: Iterable[str]) -> str:
    """One whole text, masked."""
    masker = Masker(secrets)
    raw = text.encode(errors="backslashreplace")
    return (masker.feed(raw) + masker.finish()).decode(errors="replace")

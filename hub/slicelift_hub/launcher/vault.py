"""Secrets per owner: set by name, given to that owner's jobs, never shown again."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from slicelift.errors import NotFound, Refused

from slicelift_hub.launcher.names import check_secret_name
from slicelift_hub.launcher.store import Store, write_file

MAX_SECRETS = 200
MAX_BYTES = 64 * 1024


class Vault:
    """`store/<owner>/secrets.json`, 0600, replaced by rename."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()

    def names(self, owner: str) -> list[str]:
        """What the owner has, sorted; never a value."""
        return sorted(self._read(owner))

    def put(self, owner: str, name: str, value: str) -> None:
        """Set or replace. Raises `bad-secret-name`, `bad-secret`."""
        check_secret_name(name)
        if "\0" in value or not value or len(value.encode()) > MAX_BYTES:
            message = f"The value of {name} is empty, longer than {MAX_BYTES:,} bytes, or has a NUL."
            raise Refused("bad-secret", message, "Secrets are text that fits into an environment variable.")
        with self._lock:
            known = self._read(owner) | {name: value}
            if len(known) > MAX_SECRETS:
                raise Refused("bad-secret", f"There are {MAX_SECRETS} secrets already.", "Remove one first.")
            self._write(owner, known)

    def remove(self, owner: str, name: str) -> None:
        """Forget it. Raises `secret-unknown`."""
        with self._lock:
            known = self._read(owner)
            if name not in known:
                raise make_unknown(name, sorted(known))
            self._write(owner, {key: value for key, value in known.items() if key != name})

    def values(self, owner: str, names: tuple[str, ...]) -> dict[str, str]:
        """For a job that asked for these. Raises `secret-unknown`."""
        known = self._read(owner)
        for name in names:
            if name not in known:
                raise make_unknown(name, sorted(known))
        return {name: known[name] for name in names}

    def _path(self, owner: str) -> Path:
        return self._store.folder(owner) / "secrets.json"

    def _read(self, owner: str) -> dict[str, str]:
        try:
            found = json.loads(self._path(owner).read_bytes())
        except FileNotFoundError:
            return {}
        return {str(name): str(value) for name, value in found.items()}

    def _write(self, owner: str, known: dict[str, str]) -> None:
        write_file(self._path(owner), json.dumps(known).encode())


def make_unknown(name: str, have: list[str]) -> NotFound:
    """The error for a secret that is not there."""
    hint = f"Set it with `slicelift secrets set {name}`. You have: {', '.join(have) or 'none'}."
    return NotFound("secret-unknown", f"You have no secret {name}.", hint)

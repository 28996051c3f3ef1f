"""The request to end a job (cancel.json): why, and how much time its ranks have for that."""

from __future__ import annotations

from pathlib import Path

from slicelift.runtime.folder import AttemptFolder, read_object


class CancelRequest:
    """Looked up anew each time: a cancel may follow a suspend. `checkpoints` is the run's folder of them."""

    def __init__(self, folder: AttemptFolder, checkpoints: Path) -> None:
        self._file = folder.cancel
        self._checkpoints = checkpoints

    def asked(self) -> bool:
        """Whether the job is to end."""
        return self._file.exists()

    def reason(self, otherwise: str) -> str:
        """Why."""
        return str(read_object(self._file).get("reason", otherwise))

    def grace_seconds(self, otherwise: float) -> float:
        """How long ranks may take to end."""
        return float(read_object(self._file).get("grace_seconds", otherwise))

    def saving_seconds(self) -> float | None:
        """How long they may go on before that, to reach their next checkpoint; None: not at all."""
        found = read_object(self._file).get("saving_seconds")
        return None if found is None else float(found)

    def saved_since(self, moment: float) -> bool:
        """Whether a checkpoint was completed after `moment` (Unix seconds)."""
        # a job that ends by itself does without it
        from slicelift.runtime.checkpoint import saved_since

        return saved_since(self._checkpoints, moment)

"""What a card shows of an attempt beside its curves: the newest values, parameters, tags, and signs of life."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from slicelift.runtime.network import TAG

MAX_WORDS = 1000
MAX_TEXT = 8000
MAX_SENTENCE = 500
MAX_PATH = 4096
# of all parameters and tags: a card reads them at every look
MAX_TEXTS = 2**20


@dataclass(kw_only=True)
class Live:
    """Folded from the log of events; small whatever a job logs: who folds sees to the number of metrics.

    `metrics` maps a name (`loss` of rank 0, `rank/3/loss` of others) to [step, value, time]; `seen` maps a rank to
    [time of its last line, its last step]; `dropped` counts points that are not here, `dropped_by` them by reason.
    """

    metrics: dict[str, list[Any]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = None
    dropped: int = 0
    dropped_by: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> Live:
        """What `to_json` wrote; `{}` is a fresh one."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """For the ledger."""
        return json.dumps(asdict(self))

    def set_metric(self, rank: int, key: str, *, step: int, time: float, value: float) -> None:
        """Keep the value if it is not older than the known one: what was logged last, not the highest step."""
        name = key if rank == 0 else f"rank/{rank}/{key}"
        known = self.metrics.get(name)
        if known is None or time >= known[2]:
            self.metrics[name] = [step, value, time]

    def drop(self, reason: str, count: int = 1) -> None:
        """Count points that were lost or left out, by one of the reasons of `RunView.dropped_by`."""
        self.dropped += count
        self.dropped_by[reason] = self.dropped_by.get(reason, 0) + count

    def set_words(self, kind: str, words: dict[str, Any]) -> None:
        """Parameters (`param`) or tags (`tag`), as text, newest wins."""
        target = self.params if kind == "param" else self.tags
        room = MAX_TEXTS - sum(len(text) for known in (self.params, self.tags) for text in known.values())
        for name, value in words.items():
            key, text = str(name)[:250], str(value)[:MAX_TEXT]
            more = len(text) - len(target.get(key, ""))
            if more <= room and (key in target or len(target) < MAX_WORDS):
                target[key] = text
                room -= more

    def touch(self, rank: int, *, time: float, step: int | None) -> None:
        """A line of this rank came in."""
        known = self.seen.get(str(rank), [time, None])
        self.seen[str(rank)] = [max(known[0], time), known[1] if step is None else step]

    def checkpoint_step(self) -> int | None:
        """The step of the newest checkpoint, as far as one was told of."""
        step = (self.checkpoint or {}).get("step")
        return step if isinstance(step, int) else None

    def network(self) -> str:
        """As `RunView.network` has it."""
        return self.tags.get(TAG, "")[:MAX_SENTENCE]

    def latest(self) -> dict[str, tuple[int, float]]:
        """As `RunView.latest` has it."""
        return {name: (step, value) for name, (step, value, _) in self.metrics.items()}

    def ranks(self, posted: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
        """The agent's rows `{rank, pid, state}` and what the ranks logged, as one row per rank."""
        rows = {int(row["rank"]): {"rank": int(row["rank"]), "state": row.get("state", "")} for row in posted}
        for rank, (time, step) in self.seen.items():
            row = rows.setdefault(int(rank), {"rank": int(rank), "state": ""})
            row |= {"last_seen": time, "step": step}
        return tuple({"last_seen": None, "step": None} | rows[rank] for rank in sorted(rows))

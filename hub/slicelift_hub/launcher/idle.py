"""Gangs whose GPUs do nothing: when their owner is told so, and when they are ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slicelift.models import JobStatus, Status

IDLE, BUSY = "gpus-idle", "gpus-busy"


@dataclass(frozen=True, kw_only=True)
class IdleLimit:
    """For how many minutes all GPUs of a gang may do nothing, and whether it is ended then."""

    minutes: int
    stop: bool = False

    @property
    def told_after(self) -> int:
        """Minutes after which the owner is told: in time to do something about it."""
        return max(1, self.minutes // 2) if self.stop else self.minutes


def judge_idle(limit: IdleLimit, *, minutes: int, reason: str) -> JobStatus | None:
    """What a running gang is told, or KILLED with the reason for which it is to be ended; None when there is nothing new.

    `reason` is that of its status: nobody is ended who has not been told.
    """
    told = reason == IDLE
    if limit.stop and told and minutes >= limit.minutes:
        return JobStatus(status=Status.KILLED, reason=f"GPUs idle for {limit.minutes} min")
    if minutes < limit.told_after:
        return _make(BUSY, "The GPUs work again.") if told else None
    # always the same words: each change of them is a line of the run's history
    if limit.stop:
        message = f"All GPUs have been idle for {limit.told_after} min; the job is ended after {limit.minutes} min of that."
    else:
        message = f"All GPUs have been idle for {limit.told_after} min."
    return None if told else _make(IDLE, message)


def _make(reason: str, message: str) -> JobStatus:
    return JobStatus(status=Status.RUNNING, reason=reason, message=message)

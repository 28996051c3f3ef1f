"""What the agents of a gang said, one per node, folded into what its attempt shows. Pure.

A gang of one machine has one node. Everything here comes from a job's own processes: it is checked and cut to size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slicelift.models import Failure, JobStatus, Status, from_dict, to_dict

# one node's part of the ledger's row, as JSON has it: {state, message, ranks, exit}; keys are numbers as text
Nodes = dict[str, dict[str, Any]]

ENDED = "ended"
STATES = {"preparing": Status.STARTING, "running": Status.RUNNING}
# the reason of an attempt that a cluster started again, as long as nobody says what happened
RESTARTED = "restarted"
WORKER_LOST = "worker-lost"
# characters that are kept of a text
_WORDS = {"reason": 200, "message": 8000}
_TEXTS = {"message": 8000, "exception": 200, "file": 1024, "source": 2000, "traceback": 64 * 1024}


@dataclass(frozen=True, kw_only=True)
class Report:
    """One post of one agent. `state` is preparing, running or ended; `exit` has the fields of exit.json.

    `idle` is for how many minutes the node's GPUs have done nothing, None where that is not known.
    """

    node: int = 0
    state: str
    message: str = ""
    ranks: tuple[Mapping[str, Any], ...] = ()
    exit: Mapping[str, Any] | None = None
    idle: int | None = None


def take_in(nodes: Nodes, report: Report) -> Nodes:
    """The nodes with this report. What a node once told of its end stays, unless its place was taken by a new one."""
    known = nodes.get(str(report.node), {})
    row: dict[str, Any] = {"state": report.state, "message": report.message}
    row["ranks"] = [dict(rank) for rank in report.ranks] or known.get("ranks", [])
    row["exit"] = _checked_exit(report.exit) if report.state == ENDED else None
    if report.idle is not None:
        row["idle"] = report.idle
    return {**nodes, str(report.node): row}


def fold_status(nodes: Nodes, *, needed: int) -> JobStatus:
    """STARTING until `needed` nodes run or have run, then RUNNING; the message of one that has something to say."""
    begun = [node for node, row in nodes.items() if row["state"] != "preparing"]
    preparing = len(begun) < needed
    state = "preparing" if preparing else "running"
    message = next((_said(nodes, node) for node in _in_order(nodes) if _speaks(nodes[node], state)), "")
    return JobStatus(status=STATES[state], phase=state, message=message)


def fold_ranks(nodes: Nodes) -> list[dict[str, Any]]:
    """One row per rank, with its node where there are several. Of two processes that were one rank the living one."""
    found: dict[int, dict[str, Any]] = {}
    for node in _in_order(nodes):
        for row in nodes[node]["ranks"]:
            known = found.get(row["rank"])
            if known is None or known.get("state") != "running":
                found[row["rank"]] = {**row, "node": int(node)} if len(nodes) > 1 else row
    return [found[rank] for rank in sorted(found)]


def fold_idle(nodes: Nodes) -> int | None:
    """For how many minutes no GPU of the gang has done anything; None when one of its nodes does not tell."""
    told = [row.get("idle") for row in nodes.values() if row["state"] == "running"]
    known = [minutes for minutes in told if minutes is not None]
    return min(known) if known and len(known) == len(told) else None


def all_ended(nodes: Nodes, *, workers: int) -> bool:
    """Whether every node has sent all it had."""
    # others may have been of a gang that had more workers before
    return all(nodes.get(str(node), {}).get("state") == ENDED for node in range(workers))


def fold_end(nodes: Nodes, *, workers: int) -> JobStatus | None:
    """How the gang failed: the first trigger over all nodes. None when nobody told of one.

    An end that only echoes another one's is a cause when there is no other; then, or when the cluster ended all others, a
    node that ended without a word has most likely been lost with its pod or machine.
    """
    told = [row["exit"] for row in nodes.values() if row["exit"]]
    silent = [str(node) for node in range(workers) if not nodes.get(str(node), {}).get("exit")]
    failed = [row for row in told if row["status"] == Status.FAILED]
    if not failed:
        ended = any(row["status"] == Status.KILLED for row in told)
        return _lost(silent, "the cluster ended the others") if ended and silent else None
    first = min(failed, key=lambda row: (row["echo"], row["time"]))
    failure = None if first["failure"] is None else from_dict(Failure, first["failure"])
    end = JobStatus(
        status=Status.FAILED,
        reason=first["reason"],
        message=first["message"],
        failure=failure,
        exit_code=first["exit_code"],
    )
    if not (first["echo"] and silent):
        return end
    lost = _lost(silent, f"the others failed without it: {end.message}")
    shown = failure and replace(failure, message=lost.message)
    return replace(lost, failure=shown or lost.failure, exit_code=end.exit_code)


def _lost(silent: list[str], then: str) -> JobStatus:
    who = f"Worker {silent[0]}" if len(silent) == 1 else f"Workers {', '.join(silent[:5])}"
    message = f"{who} ended without a word, and {then.rstrip('.')}."
    failure = Failure(message=message)
    return JobStatus(status=Status.FAILED, reason=WORKER_LOST, message=message, failure=failure)


def _speaks(row: Mapping[str, Any], state: str) -> bool:
    return bool(row["message"]) and row["state"] == state


def _said(nodes: Nodes, node: str) -> str:
    message = str(nodes[node]["message"])
    return f"Worker {node}: {message}" if len(nodes) > 1 else message


def _in_order(nodes: Nodes) -> list[str]:
    return sorted(nodes, key=int)


def _checked_exit(told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields of exit.json that are used, each of its type; None when it is no exit status."""
    if not isinstance(told, Mapping):
        return None
    status = told.get("status")
    if status not in (Status.FINISHED, Status.FAILED, Status.KILLED):
        return None
    code, moment = told.get("exit_code"), told.get("time")
    return {
        "status": str(status),
        **{name: str(told.get(name) or "")[:length] for name, length in _WORDS.items()},
        "exit_code": code if type(code) is int and abs(code) < 2**31 else None,
        "failure": _checked_failure(told.get("failure")),
        "time": float(moment) if isinstance(moment, int | float) and 0 < moment < 1e12 else 1e12,
        "echo": told.get("echo") is True,
        "saved": told.get("saved") is True,
    }


def _checked_failure(told: Any) -> dict[str, Any] | None:
    if not isinstance(told, Mapping):
        return None
    texts = {name: str(told.get(name) or "")[:length] for name, length in _TEXTS.items()}
    numbers = {name: told.get(name) for name in ("rank", "exit_code", "cell", "line")}
    whole = {name: value if type(value) is int else None for name, value in numbers.items()}
    file = texts.pop("file") or None
    failure: dict[str, Any] = to_dict(from_dict(Failure, {**texts, **whole, "file": file}))
    return failure

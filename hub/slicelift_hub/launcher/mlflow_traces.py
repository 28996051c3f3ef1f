"""Traces stay with whom they belong to: what MLflow 3.17.2's auth app leaves open, closed in MLflow's store.

The auth app asks by which experiment a call comes. The store then takes any trace that the call names: whoever knew an
id could write into another's trace, or move it, with all its spans, into an experiment of their own. Here a trace stays
in the experiment it was made in, an assessment with its trace, and no span says where MLflow's process is to read (what
JSON says of it the gate refuses; spans come as protobuf).

Loaded by MLflow's own process, which gives what is needed of MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from slicelift_hub.launcher.mlflow_exposed import PLACE_TAGS

# attributes of a root span that MLflow makes tags of
_TAG_ATTRIBUTES = frozenset(f"mlflow.traceTag.{tag}" for tag in PLACE_TAGS)

Refusal = Callable[[str], Exception]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """MLflow's tables of SQLAlchemy."""

    traces: Any
    assessments: Any


def keep_apart(store_class: Any, rows: Rows, *, refusal: Refusal) -> None:
    """Let the stores of this class refuse such calls with the error that `refusal` makes of a sentence. Call it once."""
    start_trace, log_spans = store_class.start_trace, store_class.log_spans

    def start_kept(store: Any, trace_info: Any) -> Any:
        given = {item.assessment_id for item in trace_info.assessments if item.assessment_id}
        with store.ManagedSessionMaker() as session:
            away = _is_elsewhere(session, rows, {trace_info.trace_id}, trace_info.experiment_id)
            if away or _has_other_trace(session, rows, given, trace_info.trace_id):
                raise refusal("Permission denied")
        return start_trace(store, trace_info)

    def log_kept(store: Any, location: str, spans: Any, *others: Any, **named: Any) -> Any:
        if any(not _TAG_ATTRIBUTES.isdisjoint(span.attributes) for span in spans):
            raise refusal("A trace may not name a place of its own for files.")
        with store.ManagedSessionMaker() as session:
            if _is_elsewhere(session, rows, {span.trace_id for span in spans}, location):
                raise refusal("Permission denied")
        return log_spans(store, location, spans, *others, **named)

    store_class.start_trace, store_class.log_spans = start_kept, log_kept


def _is_elsewhere(session: Any, rows: Rows, traces: Collection[str], experiment: str) -> bool:
    """Whether one of the traces is there already, in another experiment."""
    table = rows.traces
    found = session.query(table.experiment_id).filter(table.request_id.in_(traces))
    return any(str(place) != str(experiment) for (place,) in found)


def _has_other_trace(session: Any, rows: Rows, assessments: Collection[str], trace: str) -> bool:
    """Whether one of the assessments is there already, at another trace."""
    table = rows.assessments
    found = session.query(table.trace_id).filter(table.assessment_id.in_(assessments))
    return any(place != trace for (place,) in found)

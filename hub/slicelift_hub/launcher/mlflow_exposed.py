"""What of MLflow can be reached through the launcher at all: the one list. Whatever is not in it does not exist there.

Who may do what with what is MLflow's own to say (its auth app). The list leaves out what that app opens to everyone who
is signed in, what belongs to the whole server, and what would let MLflow's process reach out in somebody's name:
docs/tracking.md has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from slicelift_hub.launcher.names import is_plain

_API_2 = r"(?:api|ajax-api)/2\.0/mlflow/"
_API_3 = r"(?:api|ajax-api)/3\.0/mlflow/"
_EXPERIMENTS = "create|get|get-by-name|search|update|delete|restore|set-experiment-tag|delete-experiment-tag|search-datasets"
_RUNS = (
    "create|get|search|update|delete|restore|set-tag|delete-tag|log-metric|log-parameter|log-batch|log-model"
    "|log-inputs|outputs"
)
_MODELS = "create|get|search|update|rename|delete|set-tag|delete-tag|alias|get-latest-versions"
_VERSIONS = "create|get|search|update|delete|set-tag|delete-tag|get-download-uri|transition-stage"
_FAMILIES = (
    rf"{_API_2}experiments/(?:{_EXPERIMENTS})",
    rf"{_API_2}runs/(?:{_RUNS})",
    rf"{_API_2}metrics/get-history(?:-bulk(?:-interval)?)?",
    rf"{_API_2}artifacts/list",
    rf"{_API_2}upload-artifact",
    rf"{_API_2}logged-models(?:/.+)?",
    rf"{_API_2}registered-models/(?:{_MODELS})",
    rf"{_API_2}model-versions/(?:{_VERSIONS})",
    rf"{_API_2}traces(?:/.+)?",
    rf"{_API_3}traces(?:/.+)?",
    r"(?:api|ajax-api)/[23]\.0/mlflow/get-trace-artifact",
    rf"{_API_3}datasets/.+",
    rf"{_API_3}server-info",
    rf"{_API_2}users/current",
    r"(?:api|ajax-api)/2\.0/mlflow-artifacts/artifacts(?:/.+)?",
    r"v1/traces",
    r"get-artifact",
    r"model-versions/get-artifact",
    r"version",
    r"health",
)
# what MLflow's pages need besides
_PAGES = (r"", r"graphql", r"static-files/.+")
_EXPOSED = re.compile("|".join(_FAMILIES))
_EXPOSED_PAGES = re.compile("|".join(_PAGES))
# tags of traces that name a place: MLflow's process reads, and of the second one also deletes, what lies there
PLACE_TAGS = ("mlflow.artifactLocation", "mlflow.trace.archiveLocation")
_SOURCES = re.compile(r"(?:mlflow-artifacts:|models:|runs:)/.*|[^:]*", re.DOTALL)

# one thing by all its spellings: protobuf's JSON has two of each name
_THINGS = {
    **dict.fromkeys(("run_id", "run_uuid", "runId", "runUuid"), "run"),
    **dict.fromkeys(("trace_id", "traceId", "request_id", "requestId"), "trace"),
    **dict.fromkeys(("model_id", "modelId"), "logged model"),
    **dict.fromkeys(("dataset_id", "datasetId"), "data set"),
    **dict.fromkeys(("experiment_id", "experimentId"), "experiment"),
    **dict.fromkeys(("name", "experiment_name", "experimentName"), "name"),
}
_PATH_THINGS = (
    (re.compile(r"/traces/([^/]+)"), "trace"),
    (re.compile(r"/logged-models/([^/]+)"), "logged model"),
    (re.compile(r"/datasets/([^/]+)"), "data set"),
)
_PATH_WORDS = (
    *("search", "get", "create", "batchGet", "batchGetInfos", "delete-traces", "link-to-run", "link-prompts"),
    *("metrics", "calculate-filter-correlation"),
)


def is_exposed(method: str, path: str, *, pages: bool = False) -> bool:
    """Whether a call, its path decoded and without a leading slash, is passed on; `pages`: also those of the browser.

    GraphQL is for pages alone, and by POST alone: a link must not be a query.
    """
    if any(part in (".", "..") for part in path.split("/")) or "\\" in path or not is_plain(path):
        return False
    if _EXPOSED.fullmatch(path):
        return True
    wanted = "POST" if path == "graphql" else "GET"
    return pages and method == wanted and bool(_EXPOSED_PAGES.fullmatch(path))


def find_foreign_place(path: str, body: Any) -> str | None:
    """A place of files that the body wants MLflow to use and that is not the server's own to choose, else None.

    MLflow's auth app checks by whose experiment or model one comes, not to where that points: with a place of one's
    own, MLflow's process would read and write for the caller whatever it can reach.
    """
    if not isinstance(body, dict):
        return None
    asked = body.get("artifact_location") or body.get("artifactLocation")
    if path.endswith("/experiments/create") and asked:
        return str(asked)
    if path.endswith("/model-versions/create") and not _SOURCES.fullmatch(str(body.get("source") or "")):
        return str(body["source"])
    return next(_place_tags(body), None)


def find_ambiguity(method: str, path: str, *, query: Sequence[tuple[str, str]], body: Any) -> str | None:
    """Why a call can be read in two ways, as the end of a sentence; None if all is clear.

    MLflow's auth app and its handlers do not always look in the same place, and handlers decode a string once more.
    """
    if not isinstance(body, dict | None):
        return "has a body that is no JSON object"
    if body and (query or method == "GET"):
        return "has a query and a body, or a body where none belongs"
    thing = _named_twice(path, query, body)
    return f"names its {thing} twice, and not the same one" if thing else None


def _named_twice(path: str, query: Sequence[tuple[str, str]], body: dict[str, Any] | None) -> str | None:
    found: dict[str, set[str]] = {}
    for rule, thing in _PATH_THINGS:
        match = rule.search(path)
        if match and match[1] not in _PATH_WORDS:
            found.setdefault(thing, set()).add(match[1])
    pairs = (
        [] if path.endswith("/get-history-bulk") else list(query)
    )  # which takes a list of runs by that name
    if isinstance(body, dict):
        nested = body.get("assessment")
        pairs += [*body.items(), *(nested.items() if isinstance(nested, dict) else ())]
    for key, value in pairs:
        if key in _THINGS and isinstance(value, str | int):
            found.setdefault(_THINGS[key], set()).add(str(value))
    return next((thing for thing, names in found.items() if len(names) > 1), None)


def _place_tags(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("key") in PLACE_TAGS:
            yield str(value.get("value"))
        yield from (str(value[tag]) for tag in PLACE_TAGS if tag in value)
        for item in value.values():
            yield from _place_tags(item)
    elif isinstance(value, list):
        for item in value:
            yield from _place_tags(item)

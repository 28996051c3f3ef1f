"""Names of experiments and models between their owner and an MLflow that several people share. Pure.

Inward every name gets its owner's account before it, so that one can only ever name what is one's own; outward it goes
again. MLflow's experiment 0, which belongs to nobody, becomes the owner's own `Default`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slicelift.tracking_account import Account

from slicelift_hub.launcher.mlflow_translation import ONE_EXPERIMENT, SOME_EXPERIMENTS, Call

DEFAULT_EXPERIMENT = "Default"
NOBODYS_EXPERIMENT = "0"
_ONE_EXPERIMENT = (*ONE_EXPERIMENT, "x-mlflow-experiment-id")
_EXPERIMENTS = re.compile(r".*/mlflow/experiments/[\w-]+")
_MODELS = re.compile(r".*/mlflow/(?:registered-models|model-versions)/[\w-]+|model-versions/get-artifact")
# protobuf's JSON has two spellings of each
_NAME_FIELDS = ("name", "new_name", "newName", "experiment_name", "experimentName")
_PROMPT_FIELDS = ("prompt_versions", "promptVersions")
_MODEL_SOURCE = re.compile(r"models:/([^/@]+)([/@].*)")
# `name = 'x'`, `attributes.name LIKE "x%"`; strings of MLflow's language have no escapes
_STRING = r"'[^']*'|\"[^\"]*\""
_NAME_CLAUSE = re.compile(
    rf"({_STRING})|((?<![\w.`])(?:attributes?\.)?`?name`?\s*(?:=|!=|(?:NOT\s+)?I?LIKE)\s*)({_STRING})",
    re.IGNORECASE,
)


def named_inward(call: Call, account: Account, *, default_experiment: str) -> Call:
    """The call with MLflow's names and with `default_experiment` in place of nobody's."""
    renamed = _renamer(call.path, account)
    query = tuple((key, _query_value(key, text, renamed, default_experiment)) for key, text in call.query)
    headers = {
        key: _query_value(key, text, renamed, default_experiment) for key, text in call.headers.items()
    }
    body = call.json
    if isinstance(body, dict):
        body = {key: _body_value(key, item, renamed) for key, item in body.items()}
    return replace(call, query=query, headers=headers, json=_placed(body, default_experiment))


def names_nobodys_experiment(call: Call) -> bool:
    """Whether the owner's own `Default` must be known for `named_inward`."""
    named = (*call.query, *call.headers.items())
    places = (*_ONE_EXPERIMENT, *SOME_EXPERIMENTS)
    asked = any(key.lower() in places and text == NOBODYS_EXPERIMENT for key, text in named)
    return asked or _placed(call.json, "") != call.json


def has_names(path: str) -> bool:
    """Whether answers of this path hold names."""
    return path == "graphql" or bool(_EXPERIMENTS.fullmatch(path) or _MODELS.fullmatch(path))


def named_outward(value: Any, account: Account) -> Any:
    """MLflow's answer with the owner's own words."""
    if isinstance(value, dict):
        return {key: _shown(key, item, account) for key, item in value.items()}
    return [named_outward(item, account) for item in value] if isinstance(value, list) else value


def _renamer(path: str, account: Account) -> Callable[[str, str], str]:
    """How a field's text changes in calls of this path."""
    rename = account.experiment if _EXPERIMENTS.fullmatch(path) else account.model
    if not (has_names(path) or path.endswith("/traces/link-prompts")):
        return lambda _key, text: text

    def renamed(key: str, text: str) -> str:
        if key in _NAME_FIELDS:
            return rename(text)
        if key == "filter":
            return _in_filter(text, rename)
        return _in_source(text, rename) if key == "source" else text

    return renamed


def _in_filter(text: str, rename: Callable[[str], str]) -> str:
    """A prefix before a name is one before a pattern of names, too."""

    def renamed(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        quoted = found[3]
        return f"{found[2]}{quoted[0]}{rename(quoted[1:-1])}{quoted[-1]}"

    return _NAME_CLAUSE.sub(renamed, text)


def _in_source(text: str, rename: Callable[[str], str]) -> str:
    """`models:/name/1` names a model; `models:/m-...` has no version and is an id."""
    found = _MODEL_SOURCE.fullmatch(text)
    return f"models:/{rename(found[1])}{found[2]}" if found else text


def _query_value(key: str, text: str, renamed: Callable[[str, str], str], default: str) -> str:
    here = key.lower() in _ONE_EXPERIMENT or key in SOME_EXPERIMENTS
    return default if here and text == NOBODYS_EXPERIMENT else renamed(key, text)


def _body_value(key: str, value: Any, renamed: Callable[[str, str], str]) -> Any:
    if isinstance(value, str):
        return renamed(key, value)
    if key in _PROMPT_FIELDS and isinstance(value, list):
        return [
            {name: _body_value(name, item, renamed) for name, item in one.items()}
            for one in value
            if isinstance(one, dict)
        ]
    return value


def _placed(value: Any, default: str) -> Any:
    """The value with `default` wherever it names nobody's experiment, at any depth."""
    if isinstance(value, list):
        return [_placed(item, default) for item in value]
    if not isinstance(value, dict):
        return value
    placed: dict[str, Any] = {}
    for key, item in value.items():
        if key in _ONE_EXPERIMENT and str(item) == NOBODYS_EXPERIMENT:
            placed[key] = default
        elif key in SOME_EXPERIMENTS and isinstance(item, list):
            placed[key] = [default if str(one) == NOBODYS_EXPERIMENT else one for one in item]
        else:
            placed[key] = _placed(item, default)
    return placed


def _shown(key: str, value: Any, account: Account) -> Any:
    if not isinstance(value, str):
        return named_outward(value, account)
    if key == "name":
        return account.shown_model(account.shown_experiment(value))
    if key == "source":
        return _in_source(value, account.shown_model)
    return value

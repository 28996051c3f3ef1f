"""`slicelift.save_model`: a standard MLmodel directory, whole or not at all, hashed where it is made.

MLflow (the user's own) only writes files here: no tracker is asked and nothing is registered. In a job the
agent takes the directory from there, and the launcher registers it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slicelift.errors import UserError
from slicelift.runtime import contents, modelcode
from slicelift.runtime.folder import locked, write_json
from slicelift.runtime.metrics import as_float, check_name
from slicelift.runtime.outputs import output_folder
from slicelift.runtime.sink import latest
from slicelift.runtime.world import world

# the module a model's class comes from -> MLflow's flavour for it
_FLAVORS = {
    "catboost": "catboost",
    "keras": "keras",
    "lightgbm": "lightgbm",
    "onnx": "onnx",
    "prophet": "prophet",
    "sentence_transformers": "sentence_transformers",
    "sklearn": "sklearn",
    "spacy": "spacy",
    "statsmodels": "statsmodels",
    "tensorflow": "tensorflow",
    "torch": "pytorch",
    "transformers": "transformers",
    "xgboost": "xgboost",
}
_NAME_BYTES = 200


def save_model(
    model: Any,
    name: str | None = None,
    *,
    example: Any = None,
    flavor: str | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> Path | None:
    """Save `model` as an MLmodel directory; in a job the last one under a name becomes its next version.

    Rank 0 writes and returns the path, the others return None at once: call it on every rank or on rank 0 only.
    A DDP or compiled module is saved as the module inside, in eval mode. `name` defaults to the job's model
    name, else to the notebook's. `example` is one input (array, tensor, data frame), of which MLflow makes the
    signature. `flavor` is a module of MLflow ("sklearn", "pytorch", "pyfunc", ...), by default found by the
    model's class. `metrics` default to the last values logged. Outside a job: `./outputs/models/<name>`.

    Raises UserError `mlflow-missing`, `model-flavor`, `model-name`; OSError on a full disk, with nothing left.
    """
    here = world()
    chosen = _checked_name(name or os.environ.get("SLICELIFT_MODEL_NAME") or _notebook_stem())
    step, logged = latest()
    values = dict(logged) if metrics is None else _checked_metrics(metrics)
    if here.rank != 0:
        return None
    inner = _unwrapped(model)
    writer = _flavor_module(inner, flavor)
    folder = here.attempt_folder / "models" if here.attempt_folder else output_folder("models")
    folder.mkdir(parents=True, exist_ok=True)
    # a name with a dot in front is not complete: whoever collects models passes it by
    temporary = folder / f".{chosen}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        _write(writer, inner, path=temporary, example=example)
        about = {"name": chosen, "created": time.time(), "step": step, "metrics": _plain(values)}
        write_json(temporary / contents.DESCRIPTION, {**about, **contents.describe(temporary)})
        return _publish(temporary, folder, name=chosen, numbered=here.in_job)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _checked_name(name: str) -> str:
    """MLflow's rules for a registered model, and what fits into a file's name."""
    wrong = any(character in name for character in "/:\\\0\n") or name.startswith(".") or name != name.strip()
    if wrong or not name or len(name.encode("utf-8", "replace")) > _NAME_BYTES:
        raise UserError(
            "model-name",
            f"{name[:60]!r} cannot be the name of a registered model.",
            f"Use 1 to {_NAME_BYTES} bytes without '/', ':', '\\', a leading dot or spaces at the ends.",
        )
    return name


def _notebook_stem() -> str:
    """The notebook's name as its Jupyter server told the kernel, else `model`."""
    return Path(os.environ.get("JPY_SESSION_NAME", "")).stem.strip(". ").replace(":", "_") or "model"


def _checked_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    for name in metrics:
        check_name(name)
    return {name: as_float(name, value) for name, value in metrics.items()}


def _plain(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """NaN and infinities as strings, as in every answer of the launcher."""
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return {name: value if math.isfinite(value) else words[repr(value)] for name, value in metrics.items()}


def _unwrapped(model: Any) -> Any:
    """The module inside DistributedDataParallel, DataParallel and torch.compile, in any order."""
    for _ in range(4):
        kind = type(model).__name__
        if kind in ("DistributedDataParallel", "DataParallel"):
            model = model.module
        elif kind == "OptimizedModule":
            model = model._orig_mod
        else:
            break
    return model


def _flavor_module(model: Any, flavor: str | None) -> Any:
    """The module of MLflow that writes this model. Raises UserError when there is none."""
    chosen = flavor or _flavor_of(model)
    if importlib.util.find_spec("mlflow") is None:
        raise UserError(
            "mlflow-missing",
            f"slicelift.save_model() writes MLflow's format, and {sys.executable} has no mlflow.",
            "Install it into the kernel's environment: pip install mlflow==3.17.2 (or mlflow-skinny).",
        )
    # no figures about the user's work leave the machine
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        # mlflow takes seconds to load, and only rank 0 needs it
        module = importlib.import_module(f"mlflow.{chosen}")
    except ModuleNotFoundError as error:
        raise _no_flavor(f"MLflow has no flavour {chosen!r} here: {error}.") from error
    if not callable(getattr(module, "save_model", None)):
        raise _no_flavor(f"mlflow.{chosen} cannot save models.")
    return module


def _flavor_of(model: Any) -> str:
    roots = [kind.__module__.partition(".")[0] for kind in type(model).__mro__]
    for root in roots:
        if root in _FLAVORS:
            return _FLAVORS[root]
    if "mlflow" in roots or callable(model):
        return "pyfunc"
    raise _no_flavor(
        f"A model of type {type(model).__module__}.{type(model).__qualname__} has no known format."
    )


def _no_flavor(message: str) -> UserError:
    known = ", ".join(sorted({*_FLAVORS.values(), "pyfunc"}))
    return UserError("model-flavor", message, f"Give flavor=, one of MLflow's: {known}.")


def _write(writer: Any, model: Any, *, path: Path, example: Any) -> None:
    wanted = {
        "pip_requirements": modelcode.requirements(writer, model),
        "code_paths": modelcode.local_sources() or None,
        "input_example": _as_arrays(example),
        # the format every model can be written in; MLflow's default needs an example or another package
        "serialization_format": {"mlflow.pytorch": "pickle", "mlflow.sklearn": "cloudpickle"}.get(
            writer.__name__
        ),
    }
    known = modelcode.parameters_of(writer.save_model)
    options = {key: value for key, value in wanted.items() if value is not None and key in known}
    with _quiet(), _evaluating(model):
        if writer.__name__ == "mlflow.pyfunc":
            writer.save_model(path=str(path), python_model=model, **options)
        else:
            writer.save_model(model, str(path), **options)


def _as_arrays(example: Any) -> Any:
    """MLflow takes arrays, not tensors, as an example."""
    if isinstance(example, Mapping):
        return {key: _as_arrays(value) for key, value in example.items()}
    return example.detach().cpu().numpy() if hasattr(example, "detach") else example


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without MLflow's advice on formats and examples, of which it gives some at every save."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """A torch module in eval mode: so it is served, and an example must not move its running statistics."""
    modes = [(module, module.training) for module in _submodules(model)]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _submodules(model: Any) -> list[Any]:
    found = model.modules() if hasattr(model, "named_parameters") else ()
    return [module for module in found if hasattr(module, "training")]


def _publish(temporary: Path, folder: Path, *, name: str, numbered: bool) -> Path:
    """Give the finished directory its name and take away what it replaces; a reader sees whole ones only."""
    with locked(folder / ".lock"):
        saved = {path: path.name.partition("-") for path in folder.glob("[0-9]*-*")} if numbered else {}
        number = 1 + max((int(parts[0]) for parts in saved.values() if parts[0].isdigit()), default=0)
        target = folder / (f"{number}-{name}" if numbered else name)
        for former in (path for path, parts in saved.items() if parts[2] == name):
            _remove(former)
        if not numbered and target.exists():
            _remove(target)
        return temporary.rename(target)


def _remove(path: Path) -> None:
    aside = path.with_name(f".{path.name}.{time.monotonic_ns()}.old")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)

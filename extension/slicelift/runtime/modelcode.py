"""What a saved model needs beside its weights: packages by version, and the project's own modules."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_OURS = ("__main__", "__mp_main__", "builtins", "slicelift", "mlflow")


def requirements(writer: Any, model: Any) -> list[str]:
    """Pinned requirements: those of the flavour, and of the packages that the model's classes come from.

    Given explicitly, since MLflow would else load the model once more in another process to find out.
    """
    defaults = getattr(writer, "get_default_pip_requirements", None)
    found = []
    if defaults:
        pickled = "include_cloudpickle" in parameters_of(defaults)
        found = list(defaults(include_cloudpickle=True) if pickled else defaults())
    known = {_bare(line) for line in found}
    owners = importlib.metadata.packages_distributions()
    for root in sorted(_roots(model) | {"numpy"} & sys.modules.keys()):
        for owner in owners.get(root, [])[:1]:
            if _bare(owner) not in known:
                known.add(_bare(owner))
                found.append(f"{owner}=={importlib.metadata.version(owner).partition('+')[0]}")
    return found


def local_sources() -> list[str]:
    """Files and packages of the working folder that are imported now, by path: pickles only name them."""
    folder = Path.cwd()
    installed = [Path(path) for path in (sys.prefix, sysconfig.get_path("purelib"))]
    # an environment inside the project is not part of it
    foreign = [path for path in installed if folder in path.parents]
    tops = {name.partition(".")[0] for name in sys.modules} - set(_OURS)
    sources = {_source(sys.modules[top]) for top in tops & sys.modules.keys()}
    local = (source for source in sources if source and folder in source.parents)
    return sorted(str(source) for source in local if not any(source.is_relative_to(path) for path in foreign))


def parameters_of(function: Callable[..., Any]) -> frozenset[str]:
    """Names of a function's parameters: MLflow's flavours and versions differ in theirs."""
    return frozenset(inspect.signature(function).parameters)


def _roots(model: Any) -> set[str]:
    """Top-level modules of the classes in a model, as far as they are installed packages."""
    parts = list(model.modules()) if hasattr(model, "named_parameters") else [model]
    return {type(part).__module__.partition(".")[0] for part in parts} - set(_OURS)


def _source(module: ModuleType) -> Path | None:
    """The file of a module or the folder of a package."""
    file = getattr(module, "__file__", None)
    if file:
        path = Path(file)
        return path.parent if path.stem == "__init__" else path
    places = list(getattr(module, "__path__", []))
    return Path(places[0]) if places else None


def _bare(requirement: str) -> str:
    name = requirement.partition("==")[0].partition("[")[0]
    return name.strip().lower().replace("_", "-")

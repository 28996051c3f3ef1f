"""Things that work in a session and not, or not well, in a job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from slicelift.models import Finding, Severity
from slicelift.notebook.bindings import bound_names
from slicelift.notebook.static import text_of
from slicelift.preflight.view import View

_DEVICE = re.compile(r"cuda:\d+")
_ASKING = {
    "input": "input",
    "getpass": "getpass",
    "getpass.getpass": "getpass",
    "breakpoint": "breakpoint",
    "pdb.set_trace": "pdb.set_trace",
    "ipdb.set_trace": "ipdb.set_trace",
    "code.interact": "code.interact",
    "IPython.embed": "IPython.embed",
}
_SHOWING = frozenset(
    {
        "display",
        "IPython.display.display",
        "IPython.core.display.display",
        "IPython.display.clear_output",
        "ipywidgets.interact",
        "ipywidgets.interactive",
        "ipywidgets.interact_manual",
    }
)
_OF_SESSION = frozenset({"slicelift.promote", "slicelift.show", "slicelift.jobs"})


def check_habits(view: View) -> list[Finding]:
    """Devices by number, questions to the user, widgets, a tracking address of one's own, our session's calls."""
    own = bound_names(view.tree.body) - set(view.aliases)
    return list(dict.fromkeys(_all(view, own)))


def _all(view: View, own: set[str]) -> Iterator[Finding]:
    for text in view.of(ast.Constant):
        yield from _device(view, text)
    for call in view.of(ast.Call):
        name = view.called(call)
        if name not in own:
            yield from _call(view, call, name=name)
    for assignment in view.of(ast.Assign):
        yield from _environment(view, assignment)
    for function in view.functions:
        # `@interact` without brackets is no call.
        bare = [item for item in function.decorator_list if not isinstance(item, ast.Call)]
        yield from (_shown(view, item) for item in bare if view.named(item) in _SHOWING)


def _device(view: View, node: ast.Constant) -> Iterator[Finding]:
    if isinstance(node.value, str) and _DEVICE.fullmatch(node.value):
        message = f"{node.value} is one fixed device; each rank of a job has its own."
        fix = 'Write "cuda" after torch.cuda.set_device(local_rank), or f"cuda:{local_rank}".'
        yield view.finding("hardcoded-device", Severity.WARNING, node=node, message=message, fix=fix)


def _call(view: View, node: ast.Call, *, name: str) -> Iterator[Finding]:
    if name in _ASKING:
        yield _asked(view, node, name=_ASKING[name])
    elif name in _SHOWING:
        yield _shown(view, node.func)
    elif name in _OF_SESSION:
        message = f"{name}() is a call of a session: it does nothing in the job."
        yield view.finding("promotes-itself", Severity.NOTE, node=node, message=message)
    elif name in ("mlflow.set_tracking_uri", "mlflow.tracking.set_tracking_uri"):
        argument = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
        if argument is not None and text_of(argument, known=view.constants, folder=view.folder) is not None:
            yield _tracking(view, node)


def _asked(view: View, node: ast.Call, *, name: str) -> Finding:
    message = f"{name}() waits for an answer, and nobody can give one in a job."
    fix = "Make it a parameter (tag `parameters`), or a secret (`slicelift secrets set`)."
    severity = Severity.WARNING if _never_called(view, node) else Severity.ERROR
    return view.finding("interactive-input", severity, node=node, message=message, fix=fix)


def _never_called(view: View, node: ast.AST) -> bool:
    """True inside a function that nothing in the program mentions."""
    outer = [item for item in view.above(node) if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not outer:
        return False
    names = {item.id for item in view.of(ast.Name)}
    attributes = {item.attr for item in view.of(ast.Attribute)}
    return outer[-1].name not in names | attributes


def _shown(view: View, node: ast.AST) -> Finding:
    name = view.named(node).rpartition(".")[2]
    message = f"{name} draws in the notebook; in a job its text goes to the log."
    return view.finding("display-only", Severity.NOTE, node=node, message=message)


def _environment(view: View, node: ast.Assign) -> Iterator[Finding]:
    """Variables that the job sets itself."""
    for target in node.targets:
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
            continue
        literal = isinstance(node.value, ast.Constant)
        if not literal or not view.named(target.value).endswith("environ"):
            continue
        if target.slice.value == "MLFLOW_TRACKING_URI":
            yield _tracking(view, node)
        elif target.slice.value == "CUDA_VISIBLE_DEVICES":
            message = (
                "CUDA_VISIBLE_DEVICES is set by the job; a fixed value puts all ranks on the same device."
            )
            fix = "Drop the line."
            yield view.finding("hardcoded-device", Severity.WARNING, node=node, message=message, fix=fix)


def _tracking(view: View, node: ast.AST) -> Finding:
    message = "The tracking address is fixed here; what is logged then does not reach the job's own run."
    fix = "Drop the line: a session and a job both set MLFLOW_TRACKING_URI."
    return view.finding("tracking-uri-literal", Severity.WARNING, node=node, message=message, fix=fix)

"""The one place where a fault becomes words and an exit status."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from slicelift.cli.printing import complain, print_json
from slicelift.cli.tree import slicelift
from slicelift.errors import Refused, SliceliftError

USAGE_EXIT = 2
INTERRUPTED_EXIT = 130
BROKEN_PIPE_EXIT = 141
_BUG_EXIT = 1


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status. Never raises, never shows a raw traceback."""
    _never_fail_on_a_character()
    as_json = "--json" in arguments
    try:
        result = slicelift.main(args=list(arguments), prog_name="slicelift", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _broken_pipe()
    except BaseException as error:  # noqa: BLE001 - the last place that can turn a fault into words
        return report(error, as_json=as_json)
    return result if isinstance(result, int) else 0


def report(error: BaseException, *, as_json: bool) -> int:
    """Say `error` on stderr in a message and a hint; with `as_json` also as the last line of stdout."""
    body, status = _describe(error)
    if body:
        complain(body["message"], body["hint"], lines=_findings(error))
    if body and as_json:
        print_json(body)
    return status


def _describe(error: BaseException) -> tuple[dict[str, Any], int]:
    """`{code, message, hint}` and the exit status; an empty body says nothing."""
    if isinstance(error, SliceliftError):
        return error.to_dict(), error.exit_code
    if isinstance(error, click.exceptions.Exit):
        return {}, error.exit_code
    if isinstance(error, click.UsageError):
        return _usage(error), USAGE_EXIT
    if isinstance(error, click.ClickException):
        return _body("usage", error.format_message(), ""), USAGE_EXIT
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _body("interrupted", "Interrupted.", ""), INTERRUPTED_EXIT
    if isinstance(error, SystemExit):
        return {}, error.code if isinstance(error.code, int) else _BUG_EXIT
    return _unexpected(error), _BUG_EXIT


def _findings(error: BaseException) -> list[str]:
    """A refusal's findings, told one by one, since its message only counts them."""
    detail = getattr(error, "detail", None)
    if not isinstance(error, Refused) or not isinstance(detail, dict):
        return []
    from slicelift.findings import finding_lines

    return finding_lines(detail.get("findings", []))


def _body(code: str, message: str, hint: str) -> dict[str, Any]:
    return {"code": code, "message": message, "hint": hint}


def _usage(error: click.UsageError) -> dict[str, Any]:
    path = error.ctx.command_path if error.ctx else "slicelift"
    return _body("usage", error.format_message(), f"See `{path} --help`.")


def _unexpected(error: BaseException) -> dict[str, Any]:
    """A fault of ours: one line for the user, the traceback for whoever mends it."""
    name = type(error).__name__
    message = f"Slicelift met a fault of its own: {name}: {error}".rstrip(": ")
    path = _write_traceback(error)
    hint = f"The traceback is in {path}; please report it." if path else "The traceback could not be written."
    return _body("internal", message, hint)


def _write_traceback(error: BaseException) -> Path | None:
    """Append to one file in the launcher's folder, else in the temporary one; None when both are full."""
    import tempfile  # 10 ms, needed here only

    from slicelift.launcher_client import default_home

    text = "".join(traceback.format_exception(error))
    stamp = datetime.now().astimezone().isoformat(timespec="seconds")
    for folder in (default_home(), Path(tempfile.gettempdir())):
        path = folder / f"slicelift-errors-{os.getuid()}.log"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
                file.write(f"{stamp} {' '.join(sys.argv)}\n{text}\n")
        except OSError:
            continue
        return path
    return None


def _broken_pipe() -> int:
    """Whoever read our output has left (`slicelift logs last | head`): that is no fault."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE_EXIT


def _never_fail_on_a_character() -> None:
    """Under a narrow locale a character that cannot be shown becomes `?`, not a crash."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")

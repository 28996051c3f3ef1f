"""IPython's own translation of a cell, with the line every translated line comes from.

The steps are those of `TransformerManager.transform_cell`, run one by one, since only so can a line map
be kept: blank lines at the top go, pasted prompts go, `%%magic` swallows its cell, `%magic \\` its
continuation lines.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

from slicelift.notebook.policies import is_line_magic

_ROUNDS = 500
# IPython's own pattern (core/splitinput.py): what automagic takes for the first word of a line.
_FIRST_WORD = re.compile(r"^\s*([\w.*]+)\s*(.*)$")


@dataclass(frozen=True, kw_only=True)
class Translated:
    """Python lines without line ends; `origins[i]` is the line (from 1) of the cell behind `lines[i]`.

    After a cell magic `body` holds the origins of its body's lines.
    """

    lines: tuple[str, ...]
    origins: tuple[int, ...]
    body: tuple[int, ...] = ()


def translate(source: str, *, bound: Collection[str] = ()) -> Translated:
    """Translate one cell. `bound` are the names that switch automagic off for a one-line cell.

    A cell that IPython itself cannot translate comes back as it is: the compiler will say why.
    """
    # IPython takes 0.4 s to import; nothing of the command line needs it before here.
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()
    lines = (source if source.endswith("\n") else source + "\n").splitlines(keepends=True)
    origins = _first_origins(lines)
    for step in manager.cleanup_transforms:
        lines, origins = _cleaned(step, lines, origins=origins)
    body: list[int] = []
    for step in manager.line_transforms:
        before, lines = lines, step(lines)
        if len(lines) < len(before):
            body, origins = origins[1:], origins[:1]
    lines, origins = _tokens(manager.do_one_token_transform, lines, origins=origins)
    lines = _automagic(lines, bound)
    return _by_newline(lines, origins, body=body)


def _first_origins(lines: list[str]) -> list[int]:
    """Line numbers as an editor counts them: IPython also splits at characters that end no line."""
    origins, line = [], 1
    for text in lines:
        origins.append(line)
        line += text.endswith("\n")
    return origins


def _cleaned(
    step: Callable[[list[str]], list[str]], lines: list[str], *, origins: list[int]
) -> tuple[list[str], list[int]]:
    after = step(lines)
    # The clean-up steps change lines in place, or drop them at the top.
    return after, origins[len(lines) - len(after) :]


def _tokens(
    transform: Callable[[list[str]], tuple[bool, list[str]]], lines: list[str], *, origins: list[int]
) -> tuple[list[str], list[int]]:
    """Run the token transforms until nothing changes; each turns some lines into one."""
    for _ in range(_ROUNDS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns of rare characters that it takes for line ends
                changed, after = transform(lines)
        except Exception:  # noqa: BLE001  on broken code IPython and the tokenizer raise many things
            break
        if not changed:
            break
        start = next((i for i, pair in enumerate(zip(lines, after, strict=False)) if pair[0] != pair[1]), 0)
        gone = len(lines) - len(after)
        lines, origins = after, origins[: start + 1] + origins[start + 1 + gone :]
    return lines, origins


def _automagic(lines: list[str], bound: Collection[str]) -> list[str]:
    """`pip install x` alone in a cell is `%pip install x`, unless a variable has the magic's name."""
    if len(lines) != 1:
        return lines
    match = _FIRST_WORD.match(lines[0].rstrip("\n"))
    if match is None or match[1] in bound or not is_line_magic(match[1]) or match[2][:1] in ("=", ","):
        return lines
    return [f"get_ipython().run_line_magic({match[1]!r}, {match[2].rstrip()!r})\n"]


def _by_newline(lines: list[str], origins: list[int], *, body: list[int]) -> Translated:
    """Regroup IPython's lines into lines that end in a newline, as Python counts them."""
    texts: list[str] = []
    places: list[int] = []
    open_line = False
    for text, origin in zip(lines, origins, strict=True):
        if open_line:
            texts[-1] += text
        else:
            texts.append(text)
            places.append(origin)
        open_line = not text.endswith("\n")
    return Translated(
        lines=tuple(text.rstrip("\n") for text in texts), origins=tuple(places), body=_line_starts(body)
    )


def _line_starts(body: list[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(body))

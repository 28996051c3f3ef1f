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

from slicelift.notebook.pieces import is_too_deep, parse_text
from slicelift.notebook.policies import is_line_magic

_ROUNDS = 500
# Up to Python 3.12.3 every token holds a copy of its line (python/cpython#119118): characters copied in one round, which
# are in memory at once, and in all rounds.
_COPIED = 2**27
_COPIED_IN_ALL = 2**30
_TOKEN = re.compile(r"\w+|[^\w\s]")
# IPython's own pattern (core/splitinput.py): what automagic takes for the first word of a line.
_FIRST_WORD = re.compile(r"^\s*([\w.*]+)\s*(.*)$")


@dataclass(frozen=True, kw_only=True)
class Translated:
    """Python lines without line ends; `origins[i]` is the line (from 1) of the cell behind `lines[i]`.

    After a cell magic `body` holds the origins of its body's lines. `too_long` is the line of the cell that made the
    translation stop, since it would have taken the machine's memory; 0 for none.
    """

    lines: tuple[str, ...]
    origins: tuple[int, ...]
    body: tuple[int, ...] = ()
    too_long: int = 0


class TooLongError(Exception):
    """A line that cannot be cut into tokens at a sane price."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


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
    too_long = 0
    if not _is_plain(lines):
        try:
            lines, origins = _tokens(manager.do_one_token_transform, lines, origins=origins)
        except TooLongError as error:
            too_long = error.line
    lines = _automagic(lines, bound)
    return _by_newline(lines, origins, body=body, too_long=too_long)


def _is_plain(lines: list[str]) -> bool:
    """Whether this is plain Python: no syntax of IPython's is, so there is nothing to translate.

    At characters that end a line for IPython alone it may see its syntax inside a string.
    """
    text = "".join(lines)
    return all(line.endswith("\n") for line in lines) and (parse_text(text) is not None or is_too_deep(text))


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
    """Run the token transforms until nothing changes; each turns some lines into one. Raises TooLongError."""
    left = _COPIED_IN_ALL
    for _ in range(_ROUNDS):
        left -= _checked_cost(lines, origins, left=min(left, _COPIED))
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


def _checked_cost(lines: list[str], origins: list[int], *, left: int) -> int:
    """How many characters one round copies. Raises TooLongError with the dearest line when that is more than `left`."""
    costs = [len(line) * sum(1 for _ in _TOKEN.finditer(line)) for line in lines]
    if sum(costs) > left:
        raise TooLongError(origins[costs.index(max(costs))])
    return sum(costs)


def _automagic(lines: list[str], bound: Collection[str]) -> list[str]:
    """`pip install x` alone in a cell is `%pip install x`, unless a variable has the magic's name."""
    if len(lines) != 1:
        return lines
    match = _FIRST_WORD.match(lines[0].rstrip("\n"))
    if match is None or match[1] in bound or not is_line_magic(match[1]) or match[2][:1] in ("=", ","):
        return lines
    return [f"get_ipython().run_line_magic({match[1]!r}, {match[2].rstrip()!r})\n"]


def _by_newline(lines: list[str], origins: list[int], *, body: list[int], too_long: int) -> Translated:
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
        lines=tuple(text.rstrip("\n") for text in texts),
        origins=tuple(places),
        body=_line_starts(body),
        too_long=too_long,
    )


def _line_starts(body: list[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(body))

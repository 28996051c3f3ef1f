"""What the ranks printed, with tracebacks led back to cells and lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from slicelift.cli import follow
from slicelift.cli.access import connect, find_run, json_option, run_argument
from slicelift.cli.printing import print_json, remark
from slicelift.errors import SliceliftError, Unavailable, UserError
from slicelift.models import RunView, map_traceback, places_from_json
from slicelift.sentences import sentence

if TYPE_CHECKING:
    from slicelift.launcher_client import Client

CHUNK_BYTES = 1024 * 1024
_POLL_SECONDS = 0.3
_AGENT = "agent"
# a progress bar ends its lines with a carriage return alone
_LINE_END = re.compile(rb"\r\n|\n|\r(?!$)")

Mapper = Callable[[str], str]


@click.command()
@run_argument
@click.option(
    "--rank", metavar="N|all|agent", default="all", show_default=True, help="Whose output; agent is ours."
)
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Attempt. By default the last.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run is over.")
@json_option
def logs(run: str, rank: str, attempt: int | None, following: bool, as_json: bool) -> None:
    """Print what the ranks printed; frames of a traceback name the notebook's cell and line."""
    client = connect()
    view = find_run(client, run)
    number = attempt or view.attempt
    tails = [Tail(client, view.run_id, rank=name, attempt=number) for name in _ranks(view, rank)]
    lines = _followed(client, view, tails) if following else _read(tails)
    mapped = mapper(client, view)
    if as_json:
        print_json(_object(view, number, lines=lines, mapped=mapped))
        return
    silent = True
    for tail, text in lines:
        silent = False
        print(f"{_prefix(tail, tails)}{mapped(text)}", end="", flush=following)
    if silent:
        remark(f"Nothing was printed ({sentence(view)}).")


def last_lines(client: Client, view: RunView, *, rank: str, count: int) -> list[str]:
    """The end of one log, mapped; empty when there is none."""
    tail = Tail(client, view.run_id, rank=rank, attempt=view.attempt)
    mapped = mapper(client, view)
    return [mapped(text.rstrip("\r\n")) for text in list(tail.rest())[-count:]]


def mapper(client: Client, view: RunView) -> Mapper:
    """Leads frames of the generated script back to the notebook; without its line map nothing changes."""
    script = view.spec.script
    path = script.removesuffix(".py") + ".map.json"
    try:
        text = client.snapshot_file(view.spec.snapshot_id, path)
        places = places_from_json(text.decode())
    except (SliceliftError, ValueError, TypeError):
        return str
    return lambda line: map_traceback(line, script, places=places, notebook=view.spec.notebook)


class Tail:
    """One log read from where the last read ended, in whole lines."""

    def __init__(self, client: Client, run_id: str, *, rank: str, attempt: int) -> None:
        self.rank = rank
        self._client, self._run_id, self._attempt = client, run_id, attempt
        self._offset = 0
        self._begun = b""

    def new_lines(self) -> Iterator[str]:
        """Whole lines that came since, each with its end."""
        while chunk := self._chunk():
            whole = self._begun + chunk
            start = 0
            for end in _LINE_END.finditer(whole):
                yield whole[start : end.end()].decode(errors="replace")
                start = end.end()
            self._begun = whole[start:]

    def rest(self) -> Iterator[str]:
        """All that is left, a last line without an end included."""
        yield from self.new_lines()
        if self._begun:
            yield self._begun.decode(errors="replace") + "\n"
            self._begun = b""

    def _chunk(self) -> bytes:
        chunk, following = self._client.logs(
            self._run_id,
            rank=self.rank,
            attempt=self._attempt,
            offset=self._offset,
            limit=CHUNK_BYTES,
        )
        self._offset = following
        return chunk


def _ranks(view: RunView, asked: str) -> list[str]:
    # on a cluster a worker may have several ranks, which are known once they run
    count = max([view.spec.workers, *(int(row["rank"]) + 1 for row in view.ranks)])
    known = [str(rank) for rank in range(count)]
    if asked == "all":
        return known
    agents = [_AGENT, *(f"{_AGENT}-{node}" for node in range(1, view.spec.workers))]
    if asked in agents or asked in known:
        return [asked]
    span = "0" if len(known) == 1 else f"0 to {known[-1]}"
    message = f"Run {view.run_id} has no rank {asked!r}."
    raise UserError("rank-unknown", message, f"Its ranks are {span}; or --rank all, --rank agent.")


def _read(tails: list[Tail]) -> Iterator[tuple[Tail, str]]:
    for tail in tails:
        for text in tail.rest():
            yield tail, text


def _followed(client: Client, view: RunView, tails: list[Tail]) -> Iterator[tuple[Tail, str]]:
    """Until the run is over. Outlives restarts of the launcher for `AWAY_SECONDS`, then raises `Unavailable`."""
    over, lost_since = False, 0.0
    while not over:
        try:
            over = client.job(view.run_id).status.terminal
            yield from _read(tails) if over else _news(tails)
            lost_since = 0.0
        except Unavailable:
            over, lost_since = False, lost_since or _tell_away()
            if time.monotonic() - lost_since > follow.AWAY_SECONDS:
                raise
        if not over:
            time.sleep(_POLL_SECONDS)


def _news(tails: list[Tail]) -> Iterator[tuple[Tail, str]]:
    for tail in tails:
        for text in tail.new_lines():
            yield tail, text


def _tell_away() -> float:
    """Say it once, and give the moment from which it counts."""
    remark(follow.AWAY_TEXT)
    return time.monotonic()


def _prefix(tail: Tail, tails: list[Tail]) -> str:
    return f"rank {tail.rank} | " if len(tails) > 1 else ""


def _object(
    view: RunView, attempt: int, *, lines: Iterator[tuple[Tail, str]], mapped: Mapper
) -> dict[str, object]:
    texts: dict[str, list[str]] = {}
    for tail, text in lines:
        texts.setdefault(tail.rank, []).append(mapped(text))
    ranks = [{"rank": rank, "text": "".join(parts)} for rank, parts in texts.items()]
    return {"run_id": view.run_id, "attempt": attempt, "ranks": ranks}

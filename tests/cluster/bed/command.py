"""The command line of the bed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bed import builds, cleanup, cluster, layout
from bed.cluster import Cluster

DEFAULT = Path(__file__).resolve().parents[3] / ".build" / "cluster"


def main(arguments: list[str]) -> int:
    """Exit status 0 when it was done; what was wrong goes to the terminal in one line."""
    chosen = _parser().parse_args(arguments)
    action: Callable[[argparse.Namespace], int] = chosen.action
    try:
        return action(chosen)
    except (RuntimeError, TimeoutError, FileNotFoundError, KeyError) as problem:
        print(f"error: {problem.args[0] if problem.args else problem}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/cluster/bed", description="A real Kubernetes with Volcano, for tests."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--run-dir", type=Path, default=DEFAULT, help="folder of the bed (default: %(default)s)"
    )
    up = commands.add_parser("up", parents=[where], help="build what is missing, then start")
    up.add_argument("--fast-faults", action="store_true", help="notice a lost node in 8 s instead of 50")
    up.add_argument("--image", action="store_true", help="also load this Python's environment as an image")
    up.set_defaults(action=_up)
    for name, action, about in (
        ("down", _down, "take everything away, also after a crash"),
        ("status", _status, "what runs, and since when"),
        ("build", _build, "compile the programs, without starting them"),
    ):
        commands.add_parser(name, parents=[where], help=about).set_defaults(action=action)
    for name, action, about in (
        ("kill", lambda bed, of: bed.kill(of), "kill -9 one program"),
        ("stop", lambda bed, of: bed.stop(of), "end one program in order"),
        ("start", lambda bed, of: bed.start(of), "start it again as it was"),
    ):
        one = commands.add_parser(name, parents=[where], help=about)
        one.add_argument("program")
        one.set_defaults(action=_on_program(action))
    return parser


def _up(chosen: argparse.Namespace) -> int:
    if (chosen.run_dir / "layout.json").exists() and _status(chosen) == 0:
        print("it is up already; `down` takes it away")
        return 0
    bed = cluster.up(chosen.run_dir, fast_faults=chosen.fast_faults, report=_say)
    if chosen.image:
        print(f"image: {bed.environment_image(project=DEFAULT.parents[1]).name}")
    print(f"\nexport KUBECONFIG={bed.kubeconfig}")
    print(f"{bed.binaries / 'kubectl'} get nodes,queues")
    print(f"tests on it: SLICELIFT_CLUSTER={bed.run} python -m pytest tests/cluster")
    print(f"the end of it: python tests/cluster/bed down --run-dir {bed.run}")
    return 0


def _down(chosen: argparse.Namespace) -> int:
    found = layout.load(chosen.run_dir)
    if found is None:
        print(f"no bed in {chosen.run_dir}")
        return 0
    cleanup.remove(found)
    print("gone")
    return 0


def _status(chosen: argparse.Namespace) -> int:
    bed = cluster.attach(chosen.run_dir, report=_say)
    runs = bed.programs()
    for name, pid in runs.items():
        print(f"  {name:<28} {pid or 'does not run'}")
    print(f"  kubeconfig {bed.kubeconfig}")
    return int(not runs or None in runs.values())


def _build(_: argparse.Namespace) -> int:
    for module in builds.ALL:
        print(builds.build(module, report=_say))
    return 0


def _on_program(action: Callable[[Cluster, str], None]) -> Callable[[argparse.Namespace], int]:
    def act(chosen: argparse.Namespace) -> int:
        action(cluster.attach(chosen.run_dir, report=_say), chosen.program)
        return 0

    return act


def _say(line: str) -> None:
    print(line, flush=True)

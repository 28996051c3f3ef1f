"""Runs every tier of tests that can run here, and says aloud which it leaves out and why.

    python tests/tiers.py [TIER ...] [-- PYTEST ARGUMENTS]

A tier named in SLICELIFT_REQUIRE (comma separated, or `all`) must run: there a reason to skip is a failure, and so is a
skipped test inside it.

Two tiers run beside each other, on machines that others use, too. Where no more than `AGAIN` tests of a tier have failed,
these run once more when all is over, with the machine to themselves. What passes then is named at the end as unsteady: it
is to be mended, but it holds nothing up. What fails again fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BED = ROOT / "tests" / "cluster" / "bed"
AGAIN = 3


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One group of tests with one reason why it might not run; `alone`: it needs the whole machine.

    `on_demand`: runs only when it is named.
    """

    name: str
    what: str
    arguments: tuple[str, ...]
    lacks: Callable[[], str] = lambda: ""
    alone: bool = False
    on_demand: bool = False


def _no_root() -> str:
    return "" if os.geteuid() == 0 else "read-only mounts and users of their own need root"


def _no_postgresql() -> str:
    found = any(Path("/usr/lib/postgresql").glob("*/bin/postgres")) or shutil.which("postgres")
    return "" if found else "no PostgreSQL is installed (apt-get install postgresql)"


def _no_demo_repository() -> str:
    return "" if (ROOT / ".git").exists() else "this is no git clone, and a promotion needs one"


def _no_chromium() -> str:
    if not shutil.which("chromium") and not shutil.which("chromium-browser"):
        return "no chromium is installed (apt-get install chromium)"
    return _no_demo_repository()


def _no_cluster() -> str:
    return _no_place_for_a_cluster() or (
        "" if _is_built() else "its programs are not built yet (`make cluster`)"
    )


def _no_place_for_a_cluster() -> str:
    if _is_external():
        return "" if os.environ.get("KUBECONFIG") else "SLICELIFT_CLUSTER=external needs KUBECONFIG"
    sys.path.append(str(BED.parent))
    from bed import cluster  # needs what the environment has installed

    return cluster.lacks()


def _is_built() -> bool:
    from bed import builds

    return _is_external() or builds.is_built()


def _is_external() -> bool:
    return os.environ.get("SLICELIFT_CLUSTER") == "external"


_WITHOUT_ROOT = tuple(f"--ignore=tests/{folder}" for folder in ("browser", "jupyter", "cluster"))

# the longest first, so that no long one is left alone at the end
TIERS = (
    Tier(
        name="e2e",
        what="make up, promote, faults and kills, from outside",
        arguments=("tests/e2e", "-m", "not needs_root"),
        lacks=_no_demo_repository,
    ),
    Tier(
        name="browser",
        what="a person in Chromium, through the hub and in JupyterLab alone",
        arguments=("tests/browser",),
        lacks=_no_chromium,
    ),
    Tier(name="hub", what="the real JupyterHub", arguments=("tests/hub", "-m", "not needs_root")),
    Tier(
        name="jobs",
        what="agent, ranks, gangs: real processes and torch",
        arguments=("tests/unit/agent", "tests/unit/runtime", "-m", "not needs_root"),
    ),
    Tier(
        name="unit",
        what="one room at a time, real git, DVC and kernels",
        arguments=(
            "tests/unit",
            "--ignore=tests/unit/agent",
            "--ignore=tests/unit/runtime",
            "-m",
            "not needs_root",
        ),
    ),
    Tier(
        name="server",
        what="the real launcher over HTTP",
        arguments=("tests/server", "-m", "not needs_root and not needs_postgresql"),
    ),
    Tier(
        name="postgresql",
        what="the same over a ledger on a real PostgreSQL",
        arguments=("tests/server", "-m", "needs_postgresql"),
        lacks=_no_postgresql,
    ),
    Tier(name="jupyter", what="the real Jupyter server", arguments=("tests/jupyter",)),
    Tier(name="mlflow", what="the real MLflow server", arguments=("tests/mlflow",)),
    Tier(
        name="notebooks",
        what="the demos, by nbval",
        arguments=("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120", "notebooks"),
        lacks=_no_demo_repository,
    ),
    Tier(
        name="root",
        what="what only root can show: read-only mounts, users kept apart",
        arguments=("tests", "-m", "needs_root", *_WITHOUT_ROOT),
        lacks=_no_root,
    ),
    Tier(
        name="cluster",
        what="a real Kubernetes and Volcano, pods on slices",
        arguments=("tests/cluster", "-m", "not drill or quick"),
        lacks=_no_cluster,
        alone=True,
    ),
    Tier(
        name="drills",
        what="what takes too long for every time: faults and restarts on the cluster",
        arguments=("tests/cluster", "-m", "drill"),
        lacks=_no_cluster,
        alone=True,
        on_demand=True,
    ),
)


def main(arguments: list[str]) -> int:
    """Exit status 0 when every tier that ran passed and no required one was left out."""
    names, extra = _split(arguments)
    unknown = set(names) - {tier.name for tier in TIERS}
    if unknown:
        print(f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(t.name for t in TIERS)}")
        return 2
    chosen = [tier for tier in TIERS if (tier.name in names if names else not tier.on_demand)]
    if any(tier.name == "notebooks" for tier in chosen):
        subprocess.run([sys.executable, str(ROOT / "notebooks" / "prepare_demo.py")], cwd=ROOT, check=True)
    on_a_cluster = [tier for tier in chosen if tier.lacks is _no_cluster]
    wanted = any(names or _required(tier.name) for tier in on_a_cluster)
    if wanted and not _no_place_for_a_cluster() and not _is_built():
        # a quarter of an hour the first time, and no test's time should pay for it
        subprocess.run([sys.executable, str(BED), "build"], cwd=ROOT, check=True)
    results = _run_all(chosen, extra)
    unsteady = [name for tier in chosen for name in _run_again(tier, results)]
    print("\ntiers")
    for tier, (outcome, seconds) in results.items():
        print(f"  {tier.name:<10} {outcome:<40} {seconds:6.0f} s   {tier.what}")
    for name in unsteady:
        print(f"  unsteady: {name} failed, and passed when it ran again")
    return int(any(outcome.startswith(("failed", "required")) for outcome, _ in results.values()))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _run_all(chosen: list[Tier], extra: list[str]) -> dict[Tier, tuple[str, float]]:
    """How each went. Two at a time: most of a tier is waiting for servers and processes."""
    alone = len(chosen) == 1
    beside = [tier for tier in chosen if not tier.alone]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(beside, pool.map(lambda tier: _run(tier, extra, live=alone), beside), strict=True))
    return results | {tier: _run(tier, extra, live=alone) for tier in chosen if tier.alone}


def _run_again(tier: Tier, results: dict[Tier, tuple[str, float]]) -> list[str]:
    """The tests that failed and now pass, if all that failed do; the tier's result is then another."""
    names = _failures(tier)
    if results[tier][0] != _outcome(1) or not 0 < len(names) <= AGAIN:
        return []
    outcome, seconds = _run(tier, ["--last-failed", "--last-failed-no-failures=none"], live=False)
    if outcome != "passed":
        return []
    results[tier] = (f"passed, {len(names)} when run again", results[tier][1] + seconds)
    return names


def _failures(tier: Tier) -> list[str]:
    """What pytest remembers of the tier's last run."""
    kept = _cache(tier) / "v" / "cache" / "lastfailed"
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


def _cache(tier: Tier) -> Path:
    return ROOT / ".pytest_cache" / tier.name


def _run(tier: Tier, extra: list[str], *, live: bool) -> tuple[str, float]:
    """How one tier went and how long it took; its output comes at once when `live`, else when it is over."""
    reason, start = tier.lacks(), time.monotonic()
    if reason:
        print(f"— {tier.name}: not run, {reason}", flush=True)
        return (f"required, but {reason}" if _required(tier.name) else f"skipped: {reason}"), 0.0
    print(f"— {tier.name} begins: {tier.what}", flush=True)
    environment = os.environ | {"SLICELIFT_NO_SKIP": "1" if _required(tier.name) else ""}
    options = ("-q", "-o", f"cache_dir={_cache(tier)}")
    command = [sys.executable, "-m", "pytest", *options, *tier.arguments, *extra]
    pipe = {} if live else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, text=True, **pipe)
    outcome = _outcome(done.returncode)
    if not live:
        print(f"\n— {tier.name}: {outcome}\n{done.stdout}", flush=True)
    return outcome, time.monotonic() - start


def _outcome(status: int) -> str:
    return f"failed (pytest exit {status})" if status else "passed"


def _required(name: str) -> bool:
    wanted = os.environ.get("SLICELIFT_REQUIRE", "").replace(" ", "").split(",")
    return name in wanted or "all" in wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

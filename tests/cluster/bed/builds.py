"""The programs of a bed, compiled from the Go modules below go/ and kept by the content of these."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bed.layout import CACHE, ENVIRONMENT

SOURCES = Path(__file__).resolve().parent / "go"
KUBERNETES = "v1.34.4"
NEWEST_KEPT = 2
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Go module: what is compiled, under which names, and which folders of its dependencies are needed beside."""

    name: str
    packages: dict[str, str]
    folders: dict[str, tuple[str, str]]


CLUSTER = Module(
    name="cluster",
    packages={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "vcctl": "volcano.sh/volcano/cmd/cli",
        "volcano-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
        "volcano-scheduler": "volcano.sh/volcano/cmd/scheduler",
        "volcano-webhook-manager": "volcano.sh/volcano/cmd/webhook-manager",
        "coredns": "./coredns",
        "pause": "./pause",
        "stand-in-device-plugin": "./deviceplugin",
    },
    folders={"volcano": ("volcano.sh/volcano", "installer")},
)
KWOK = Module(
    name="kwok",
    packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    folders={"kwok": ("sigs.k8s.io/kwok", "kustomize/stage")},
)
ALL = (CLUSTER, KWOK)


def build(module: Module, *, report: Report = print) -> Path:
    """The folder with `bin/` and `share/` of a module, compiled first when its content is new: minutes, then never again."""
    target = _place(module)
    with _alone(module, report):
        if is_built(module):
            os.utime(target)
        else:
            _make(module, target, report)
    return target


def gather(into: Path, *, report: Report = print) -> None:
    """`bin/` and `share/` of all modules as links in one folder; builds what is missing."""
    for module in ALL:
        built = build(module, report=report)
        for kind in ("bin", "share"):
            (into / kind).mkdir(parents=True, exist_ok=True)
            for made in (built / kind).iterdir():
                (into / kind / made.name).symlink_to(made)


def is_built(*modules: Module) -> bool:
    """Whether `build` would return at once, for all modules unless some are named."""
    return all((_place(module) / "complete").exists() for module in modules or ALL)


def missing() -> str:
    """Why nothing can be compiled here, empty when it can or need not be."""
    if is_built() or shutil.which("go"):
        return ""
    return "Go is not installed, and the programs of the test cluster are compiled from source"


def _make(module: Module, target: Path, report: Report) -> None:
    report(f"building {module.name} from source: {', '.join(module.packages)}")
    shutil.rmtree(target, ignore_errors=True)
    (target / "bin").mkdir(parents=True)
    _compile(module, into=target / "bin", report=report)
    for name, (path, folder) in module.folders.items():
        shutil.copytree(_source(module, path) / folder, target / "share" / name)
    (target / "complete").touch()
    _forget_old(module)


@contextlib.contextmanager
def _alone(module: Module, report: Report) -> Iterator[None]:
    """Two that start at once build once."""
    file = CACHE / "builds" / f".{module.name}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"somebody else is building {module.name}: waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _place(module: Module) -> Path:
    return CACHE / "builds" / f"{module.name}-{_digest(module)}"


def _digest(module: Module) -> str:
    found = hashlib.sha256(repr(sorted(module.packages.items())).encode() + KUBERNETES.encode())
    for file in sorted((SOURCES / module.name).rglob("*")):
        if file.is_file():
            found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:12]


def _compile(module: Module, *, into: Path, report: Report) -> None:
    """One call for all, so that what they share is compiled once; the names come after, two mains are both `scheduler`."""
    raw = into.parent / "raw"
    raw.mkdir()
    command = [
        "go",
        "build",
        "-v",
        "-trimpath",
        "-ldflags",
        _stamp(),
        "-o",
        f"{raw}/",
        *module.packages.values(),
    ]
    _run_go(command, folder=SOURCES / module.name, report=report)
    for name, package in module.packages.items():
        (raw / _made_name(package)).rename(into / name)
    raw.rmdir()


def _stamp() -> str:
    """Stripped, and with the version that a release build would carry."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    version = "k8s.io/component-base/version"
    return f"-s -w -X {version}.gitVersion={KUBERNETES} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"


def _made_name(package: str) -> str:
    """What go calls the program of a package: its last word that is no version."""
    return [word for word in package.split("/") if not re.fullmatch(r"v\d+", word)][-1]


def _run_go(command: list[str], *, folder: Path, report: Report) -> None:
    start = told = time.monotonic()
    packages, tail = 0, [""]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT | {"CGO_ENABLED": "0", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as go:
        for line in go.stdout or ():
            packages, tail = packages + 1, [*tail[-30:], line]
            if time.monotonic() - told > 15:
                told = time.monotonic()
                report(f"  {packages} packages compiled after {told - start:.0f} s")
    if go.returncode:
        raise RuntimeError(f"go build failed in {folder.name}:\n{''.join(tail)}")
    report(f"  built in {time.monotonic() - start:.0f} s")


def _source(module: Module, path: str) -> Path:
    done = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", path],
        cwd=SOURCES / module.name,
        env=ENVIRONMENT | {"GOWORK": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


def _forget_old(module: Module) -> None:
    """A build is half a gigabyte."""
    builds = (CACHE / "builds").glob(f"{module.name}-*")
    for old in sorted(builds, key=lambda one: one.stat().st_mtime, reverse=True)[NEWEST_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)

"""One cluster for the whole run, a namespace and a queue per test, and what the cluster said beside a failed test.

`bed` is a new one, or the one that runs in the folder SLICELIFT_CLUSTER names. SLICELIFT_CLUSTER=external takes the cluster
of KUBECONFIG instead; tests that want `own_bed`, for its programs, its node or its devices, are then left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import elsewhere
import members
import pytest
import shared_storage
from bed import cluster as bed_cluster
from bed import kit
from bed.cluster import Cluster
from bed.kit import Api
from elsewhere import Place
from kubernetes.client import ApiException
from members import Person
from place import ClusterHub
from shared_storage import Claims, Storage
from urllib3.exceptions import HTTPError

EXTERNAL = "external"
ROOT = Path(__file__).resolve().parents[2]
# before the tests' empty home takes the place of the real one
ADMIN = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On somebody's own cluster nobody kills an API server."""
    if os.environ.get("SLICELIFT_CLUSTER") != EXTERNAL:
        return
    own = [item for item in items if "own_bed" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=own)
    items[:] = [item for item in items if item not in own]


@pytest.fixture(scope="session")
def own_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The bed, for what can only be done to one's own cluster: its programs, its node, its devices."""
    running = os.environ.get("SLICELIFT_CLUSTER", "")
    if running:
        yield bed_cluster.attach(Path(running))
        return
    mine = bed_cluster.up(tmp_path_factory.mktemp("bed"), owner=os.getpid())
    yield mine
    mine.down()


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest) -> Place:
    """Where everything runs: the bed, or somebody's own cluster."""
    if os.environ.get("SLICELIFT_CLUSTER") == EXTERNAL:
        return elsewhere.find(ADMIN)
    own: Cluster = request.getfixturevalue("own_bed")
    return own


@pytest.fixture(scope="session")
def kubeconfig(bed: Place) -> Path:
    """The admin's."""
    return bed.kubeconfig


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Iterator[Api]:
    """Clients of the admin."""
    clients = kit.connect(kubeconfig)
    yield clients
    clients.raw.close()


@pytest.fixture(scope="session")
def image(bed: Place) -> str:
    """An image with this Python's environment, without Slicelift's code, as a training image is."""
    return bed.environment_image().name


@pytest.fixture(scope="session")
def session_image(bed: Place) -> str:
    """The same with Slicelift, as a session's image is, by digest."""
    return bed.environment_image(project=ROOT).by_digest


@pytest.fixture
def queue(api: Api) -> Iterator[str]:
    """A queue that may use all slices and GPUs there are."""
    with kit.queue(api) as name:
        yield name


@pytest.fixture
def namespace(api: Api, queue: str) -> Iterator[str]:
    """An empty namespace; its Jobs and pods are gone before the queue is."""
    with kit.namespace(api) as name:
        yield name


@pytest.fixture(scope="session")
def juicefs(own_bed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A JuiceFS that this machine and the node see."""
    with shared_storage.mounted(own_bed, tmp_path_factory.mktemp("juicefs")) as found:
        yield found


@pytest.fixture
def claims(juicefs: Storage, api: Api, namespace: str) -> Iterator[Claims]:
    """Claims `data` and `checkpoints` on JuiceFS in the test's namespace."""
    with juicefs.claims(api, namespace) as found:
        yield found


@pytest.fixture(scope="module")
def sign_in(hub: ClusterHub) -> Iterator[Callable[[str], Person]]:
    """A new account of the module's hub, signed in."""
    with members.signing_in(hub) as sign_in:
        yield sign_in


@pytest.fixture(scope="module")
def anna(sign_in: Callable[[str], Person]) -> Person:
    return sign_in("anna")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Events, Jobs and pod logs of the test's namespace beside a failure."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's Result
    arguments = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and {"api", "namespace"} <= arguments.keys():
        try:
            told = kit.told(arguments["api"], arguments["namespace"])
        except (ApiException, HTTPError) as error:  # a test that has taken the API server away
            told = {"the cluster says nothing": str(error)}
        report.sections.extend(told.items())

"""The whole line on a real cluster, as a data scientist sees it: from the login to a model that a gang of pods made.

About four minutes on two cores: a session's pod and four pods of a gang, each importing torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accounts
import place
import pytest
from bed import kit
from bed.kit import Api
from elsewhere import Place
from place import ClusterHub
from playwright.sync_api import Browser, Page, expect, sync_playwright
from shared_storage import Claims

from tests.browser.people import Person, choose, sign_in
from tests.browser.windows import Lab, launch, window

# two attempts of two pods import torch on half a core each, on a machine that may be busy
pytestmark = [pytest.mark.drill, pytest.mark.quick, pytest.mark.timeout(1200)]
SLICE = "nvidia.com/mig-1g.10gb"
STEPS = 40
CELLS = (
    f"steps = {STEPS}\npause = 0.4",
    """
import os
import time
from pathlib import Path

import numpy as np
import slicelift
import torch
import torch.distributed as dist
from torch import nn

rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(7)
""",
    """
files = sorted(Path("data/points").glob("*.npy"))[rank::world]
points = torch.from_numpy(np.concatenate([np.load(file) for file in files]))
inputs, targets = points[:, :4], points[:, 4:]
model = nn.Linear(4, 1)
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
""",
    """
found = slicelift.resume()
state, start = found if found else ({}, 0)
if state:
    model.load_state_dict(state["model"])
print(f"rank {rank} of {world}, {len(points)} points, from step {start}", flush=True)
for step in range(start, steps):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(inputs), targets)
    loss.backward()
    optimizer.step()
    slicelift.log(step=step, samples=len(inputs), loss=loss)
    slicelift.checkpoint({"model": model.state_dict()}, step=step + 1)
    time.sleep(pause)
""",
    """
slicelift.save_model(model, name="line", example=inputs[:1].numpy())
if world > 1:
    dist.destroy_process_group()
""",
)


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=60_000)
        started = launch(playwright)
        yield started
        started.close()


@pytest.fixture
def hub(
    api: Api, bed: Place, claims: Claims, namespace: str, queue: str, session_image: str, tmp_path: Path
) -> Iterator[ClusterHub]:
    """A hub on this machine, and the volumes that its sessions and jobs mount, with a project in anna's home."""
    remote = tmp_path / "remote"
    remote.mkdir()
    with (
        place.claim(api, bed, namespace, "home") as home,
        place.serving(remote, address=bed.host_ip) as url,
        accounts.account(api, accounts.HUB, namespace=namespace, folder=tmp_path) as for_hub,
        accounts.account(api, accounts.LAUNCHER, namespace=namespace, folder=tmp_path) as for_launcher,
    ):
        place.make_project(home / "points", *CELLS, remote=remote, url=url)
        words = {"address": bed.host_ip, "namespace": namespace, "queue": queue}
        made = ClusterHub(
            home=tmp_path / "home",
            image=session_image,
            claims={"home": place.HOME},
            kubeconfig=for_hub,
            launcher_kubeconfig=for_launcher,
            shown=place.show_presets(api, namespace, queue=queue),
            settings={"data_claim": claims.data, "checkpoints_claim": claims.checkpoints},
            **words,
        )
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def anna(hub: ClusterHub, browser: Browser, tmp_path: Path) -> Iterator[Person]:
    """Signed in and in JupyterLab, in a pod that holds a slice; pictures of the way there."""
    with window(browser) as context:
        page = context.new_page()
        sign_in(hub, page, "anna")
        cards = page.locator(".sl-offer")
        cards.first.wait_for()
        offers = {card.locator(".sl-title").inner_text(): card.inner_text() for card in cards.all()}
        choose(page, "1g.10gb slice")
        page.screenshot(path=tmp_path / "1-spawn.png")
        page.get_by_role("button", name="Start").click()
        page.wait_for_timeout(3_000)
        page.screenshot(path=tmp_path / "2-starting.png")
        page.wait_for_url("**/user/anna/**", timeout=240_000)
        lab = Lab(page, f"{hub.url}/user/anna", alone=True)
        yield Person(name="anna", place=hub, lab=lab, offers=offers)
        page.screenshot(path=tmp_path / "9-last.png")
        assert lab.faults == [], lab.faults


def test_from_the_login_to_a_model_over_a_killed_worker(
    anna: Person, hub: ClusterHub, api: Api, namespace: str, queue: str, tmp_path: Path
) -> None:
    lab, page = anna.lab, anna.lab.page
    free = re.search(r"(\d+) of (\d+) free", anna.offers["1g.10gb slice"])
    assert free, anna.offers
    assert "simulated" not in " ".join(anna.offers.values())
    session = see_session(api, namespace, queue)

    lab.open("points/train.ipynb")
    lab.save()  # its kernel has told its version, which is a change
    card = submit(lab, workers=2)
    run = str(card.get_attribute("data-run"))
    page.screenshot(path=tmp_path / "3-submitted.png")
    lab.wait_status(card, "RUNNING", seconds=240)
    before = lab.wait_points(card, 8, seconds=240)
    page.screenshot(path=tmp_path / "4-running.png")
    pods = see_gang(api, namespace, queue, run, image=session)

    api.core.delete_namespaced_pod(pods[1], namespace, grace_period_seconds=0)
    expect(card.get_by_text("attempt 2").first).to_be_visible(timeout=120_000)
    assert card.get_attribute("data-run") == run
    page.screenshot(path=tmp_path / "5-again.png")
    lab.wait_status(card, "RUNNING", seconds=240)
    lab.wait_points(card, before + 1, seconds=240)
    page.screenshot(path=tmp_path / "6-goes-on.png")
    lab.wait_status(card, "FINISHED", seconds=240)
    expect(card.get_by_text("line version 1", exact=True)).to_be_visible(timeout=120_000)
    page.screenshot(path=tmp_path / "7-done.png")
    card.get_by_text("2 attempts", exact=True).click()
    expect(card.get_by_text(re.compile("Worker 1 ended without a word")).first).to_be_visible()
    card.get_by_role("row").last.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "8-attempts.png")
    see_outcome(anna, run)


def submit(lab: Lab, *, workers: int) -> Any:
    """Through the Promote button, as many workers; the card."""
    page: Page = lab.page
    lab.promote_button().click()
    panel = page.get_by_role("region", name=re.compile("^Promote "))
    expect(panel.get_by_text(re.compile(r"\d+ of \d+ code cells"))).to_be_visible(timeout=120_000)
    said = re.compile("starts now: the cluster has room for it|would wait, see below")
    expect(panel.get_by_text(said)).to_be_visible(timeout=120_000)
    expect(panel.get_by_role("combobox", name="preset")).to_have_value("small")
    panel.get_by_role("spinbutton", name="workers").fill(str(workers))
    button = panel.get_by_role("button", name="Submit")
    expect(button).to_have_attribute("aria-disabled", "false", timeout=120_000)
    button.click()
    card = panel.locator(".sl-card")
    card.wait_for(timeout=120_000)
    news = page.locator(".Toastify__toast", has_text="Jupyter news")
    if news.count():  # JupyterLab's own question hides the end of the panel
        news.get_by_role("button", name="No", exact=True).click()
    return card


def see_session(api: Api, namespace: str, queue: str) -> str:
    """One pod that holds one slice, placed by Volcano, counted in the queue, without a token of the cluster; its image."""
    (pod,) = api.core.list_namespaced_pod(namespace, label_selector="component=singleuser-server").items
    resources = pod.spec.containers[0].resources
    assert (resources.limits[SLICE], resources.requests[SLICE]) == ("1", "1")
    assert pod.spec.scheduler_name == "volcano"
    assert pod.spec.automount_service_account_token is False
    inside = kit.execute(
        api,
        namespace,
        pod.metadata.name,
        "sh",
        "-c",
        "id -u; ls /var/run/secrets 2>&1; echo $NVIDIA_VISIBLE_DEVICES",
    )
    assert inside.startswith("1000\n")
    assert "kubernetes.io" not in inside
    assert "MIG-" in inside
    kit.wait_for("the queue to count the slice", lambda: allocated(api, queue, SLICE) == "1")
    assert "@sha256:" in pod.spec.containers[0].image
    return str(pod.spec.containers[0].image)


def see_gang(api: Api, namespace: str, queue: str, run: str, *, image: str) -> list[str]:
    """Two pods of one Volcano Job, in the session's queue and of its image; their names."""
    pods = api.core.list_namespaced_pod(namespace, label_selector=f"slicelift.io/run={run}").items
    names = sorted(pod.metadata.name for pod in pods if pod.status.phase == "Running")
    assert names == [f"{run}-1-worker-0", f"{run}-1-worker-1"]
    assert {pod.spec.containers[0].image for pod in pods} == {image}
    job = api.custom.get_namespaced_custom_object(*kit.BATCH, namespace, "jobs", f"{run}-1")
    assert (job["spec"]["queue"], job["spec"]["minAvailable"]) == (queue, 2)
    for name in names:
        mounts = kit.execute(api, namespace, name, "cat", "/proc/mounts").splitlines()
        options = [line.split()[3].split(",") for line in mounts if line.split()[2] == "fuse.juicefs"]
        assert any("ro" in each for each in options), mounts  # the data, beside the checkpoints
    return names


def see_outcome(anna: Person, run: str) -> None:
    """The second attempt went on where the first had saved; the series has every step of the run, both logs are there."""
    first, second = anna.fetch(f"slicelift/api/jobs/{run}/attempts")["attempts"]
    assert (first["status"], second["status"]) == ("FAILED", "FINISHED")
    for attempt in (1, 2):
        asked = [f"slicelift/api/jobs/{run}/logs?rank={rank}&attempt={attempt}" for rank in (0, 1)]
        logs = [anna.call(path)[1] for path in asked]
        told = [re.search(r"rank \d of 2, (\d+) points, from step (\d+)", log) for log in logs]
        assert all(told), logs
        assert sum(int(each[1]) for each in told if each) == place.POINTS
        assert all((int(each[2]) > 0) is (attempt == 2) for each in told if each), logs
    series = anna.fetch(f"slicelift/api/jobs/{run}/series?keys=loss&attempt=all&points=5000")["series"]
    steps = {point[0] for row in series if row["rank"] == 0 for point in row["points"]}
    assert steps == set(range(STEPS))
    (model,) = anna.fetch("slicelift/api/models")["models"]
    assert (model["name"], str(model["version"]), model["run_id"]) == ("line", "1", run)


def allocated(api: Api, queue: str, resource: str) -> str:
    """What the queue has given out of it."""
    found = api.custom.get_cluster_custom_object(*kit.SCHEDULING, "queues", queue)
    return str(found.get("status", {}).get("allocated", {}).get(resource, "0"))

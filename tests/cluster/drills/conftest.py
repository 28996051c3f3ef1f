"""One scene for the drills of a module; those that need a launcher of their own open one (`scenes.opened`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scenes
from bed.kit import Api
from elsewhere import Place
from scenes import Scene


@pytest.fixture(scope="module")
def scene(api: Api, bed: Place, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scenes.opened(api, bed, image, tmp_path_factory.mktemp("drills") / "home") as found:
        yield found


@pytest.fixture
def namespace(scene: Scene) -> str:
    """For the report of a failure."""
    return scene.namespace

"""The simulated run that most tests of this folder look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifest_world import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def honest(world: World) -> bytes:
    return world.manifest()


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder

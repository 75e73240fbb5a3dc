"""Collection is cheap: every worker of pytest-xdist collects every file before its first test."""

from __future__ import annotations

import pytest
from collecting import LOADED


def test_collection_loads_no_training_library(request: pytest.FixtureRequest) -> None:
    """Each package names the file that loaded it: see ``tests/support/collecting.py``."""
    assert request.config.stash[LOADED] == {}

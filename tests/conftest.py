"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Third-party vectors and evidence, kept outside this repository."""
    folder = Path(os.environ.get("SEALTRAIN_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "vectors").is_dir():
        pytest.skip(f"no third-party vectors at {folder}: set SEALTRAIN_SHARED to their folder")
    return folder

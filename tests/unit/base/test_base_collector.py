"""Modules are loaded without the garbage collector, which works again afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sealtrain.base.collector import pause_collection


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_nothing_is_collected_inside_and_what_stays_is_frozen() -> None:
    before = gc.get_freeze_count()
    with pause_collection():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), pause_collection():
        raise ModuleNotFoundError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with pause_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

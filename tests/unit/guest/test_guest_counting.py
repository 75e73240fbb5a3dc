"""A guest records what trains before the first step, and lets exact counts out where they may."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_world import OWNERS, seal_records, sft, sources_of, write_records

from sealtrain.guest.validating import counts_of_records, log_counts

pytestmark = pytest.mark.claim("C570")

FIT = {"prompt": "a?", "completion": " yes"}
LONG = {"prompt": "?" * 80, "completion": " yes"}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    paths = write_records(folder, made=lambda _count, _label: [FIT, LONG, LONG])
    return dict(seal_records(paths, folder))


def counted(sealed: dict[str, Any], *, records: int | None = 3, **changed: Any) -> Any:
    """What a guest records of a recipe, and what it says."""
    policy = sft().release_policy.model_copy(update={"logs": changed.pop("logs", "structured")})
    recipe = sft(trainer={"max_length": 24}, **changed).model_copy(
        update={"release_policy": policy}
    )
    sources = sources_of(recipe, sealed)
    told: list[tuple[str, Any]] = []
    said: list[str] = []
    run: Any = SimpleNamespace(
        recipe=recipe,
        base=Path(),
        model=None,
        sources=sources,
        sealed_datasets=[
            SimpleNamespace(
                manifest=SimpleNamespace(dataset_id=source.dataset.dataset_id, records=records)
            )
            for source in sources
        ],
        record=lambda event, fields: told.append((event, fields)),
    )
    counts = counts_of_records(run, said.append)
    if counts is not None:
        log_counts(run.record, counts)
    return told, said, [source.dataset.dataset_id for source in sources if source.role == "train"]


def test_public_counts_are_recorded_and_said(sealed: dict[str, Any]) -> None:
    told, said, trained = counted(sealed)
    counts = {"records": 3, "whole": 1, "truncated": 0, "filtered": 0, "empty": 2}
    assert told == [("data.counted", dict.fromkeys(trained, counts))]
    assert len(said) == len(OWNERS)


@pytest.mark.parametrize(
    "changed",
    [
        {"records": None},
        {"logs": "none"},
        {"logs": "error-summary"},
    ],
)
def test_nothing_exact_leaves_where_counts_are_not_public(
    sealed: dict[str, Any], changed: dict[str, Any]
) -> None:
    told, said, trained = counted(sealed, **changed)
    assert told == [("data.counted", dict.fromkeys(trained))]
    assert said == []

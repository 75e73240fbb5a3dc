"""What a run log may say of products made elsewhere, and what contradicts itself or the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries

from sealtrain.manifest.checks.collaborations.pads import read_pad_use
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaborations.pads import Pads

HOW = Pads(kind="pads", pads="dealer", checks=2, policy="policy.yaml")
BEGUN = {
    "pads": "dealer",
    "checks": 2,
    "skip": [],
    "layers": {"q_proj": 2, "down_proj": 2},
    "products": 4,
    "dealer": {"simulated": True},
}


def spent(products: int) -> dict[str, int]:
    return {
        "products": products,
        "rows": 8 * products,
        "bytes_out": 64 * products,
        "bytes_in": 32 * products,
    }


def log() -> list[dict[str, Any]]:
    """Two processes: the first ended after a checkpoint."""
    events: list[tuple[str, dict[str, Any]]] = [
        ("run.started", {}),
        ("keys.released", {}),
        ("pads.begun", BEGUN),
        ("pads.spent", spent(10)),
        ("checkpoint.sealed", {"counter": 1}),
        ("run.resumed", {}),
        ("keys.released", {}),
        ("pads.begun", BEGUN),
        ("pads.spent", spent(4)),
        ("checkpoint.sealed", {"counter": 2}),
        ("pads.spent", spent(7)),
        ("training.finished", {}),
    ]
    return [
        {"seq": number + 1, "event": event, "fields": fields}
        for number, (event, fields) in enumerate(events)
    ]


def test_counts_of_all_processes_are_added() -> None:
    found = read_pad_use(log(), HOW)
    assert (found.beginnings, found.products, found.rows) == (2, 17, 136)
    assert (found.bytes_out, found.bytes_in) == (17 * 64, 17 * 32)
    assert found.layers == {"q_proj": 2, "down_proj": 2}


def changed(number: int, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        entries[number]["fields"] = entries[number]["fields"] | fields

    return change


def dropped(*numbers: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        for number in sorted(numbers, reverse=True):
            del entries[number]

    return change


@pytest.mark.claim("C74")
@pytest.mark.parametrize(
    ("change", "where", "field"),
    [
        (changed(2, pads="own"), "run log entry 3", "pads"),
        (changed(2, checks=1), "run log entry 3", "checks"),
        (changed(2, skip=["lm_head"]), "run log entry 3", "skip"),
        (changed(2, dealer=None), "run log entry 3", "dealer"),
        (
            changed(2, dealer={"key_sha256": "ab" * 32, "simulated": True}),
            "run log entry 3",
            "dealer.key_sha256",
        ),
        (changed(7, layers={"q_proj": 2}), "run log entry 8", "layers"),
        (changed(2, more=1), "run log entry 3", "more"),
        (changed(3, products=-1), "run log entry 4", "products"),
        (changed(10, products=3), "run log entry 11", "products"),
        (changed(10, bytes_out=1), "run log entry 11", "products"),
        (dropped(2), "run log entry 4", "event"),
        (dropped(3), "run log entry 5", "products"),
        (dropped(8, 10), "run log entry 10", "products"),
        (dropped(5, 6), "run log entry 8", "event"),
        (dropped(*range(1, 12)), "pads", None),
    ],
)
def test_a_log_that_contradicts_itself_or_the_recipe_is_refused(
    change: Callable[[list[dict[str, Any]]], None], where: str, field: str | None
) -> None:
    entries = log()
    change(entries)
    with pytest.raises(ClaimContradicted, check=carries(field=field)) as caught:
        read_pad_use(entries, HOW)
    assert (caught.value.got or caught.value.check) == where

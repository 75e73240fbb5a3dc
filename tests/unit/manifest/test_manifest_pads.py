"""What a run log may say of products made elsewhere, and what contradicts itself or the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sealtrain.errors import ClaimContradicted
from sealtrain_collab.pads.check import read_pad_use
from sealtrain_collab.pads.recipe import Pads

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
    ("change", "said"),
    [
        (changed(2, pads="own"), "otherwise than the recipe says: pads"),
        (changed(2, checks=1), "otherwise than the recipe says: checks"),
        (changed(2, skip=["lm_head"]), "otherwise than the recipe says: skip"),
        (changed(2, dealer=None), "otherwise than the recipe says: dealer"),
        (changed(2, dealer={"key_sha256": "ab" * 32, "simulated": True}), "entry 3"),
        (changed(7, layers={"q_proj": 2}), "other layers than before"),
        (changed(2, more=1), "pads.begun|more|fields|entry 3"),
        (changed(3, products=-1), "entry 4"),
        (changed(10, products=3), "counts of products fall"),
        (changed(10, bytes_out=1), "counts of products fall"),
        (dropped(2), "before pads began"),
        (dropped(3), "before any count"),
        (dropped(8, 10), "before any count"),
        (dropped(5, 6), "begin twice"),
        (dropped(*range(1, 12)), "names no product"),
    ],
)
def test_a_log_that_contradicts_itself_or_the_recipe_is_refused(
    change: Callable[[list[dict[str, Any]]], None], said: str
) -> None:
    entries = log()
    change(entries)
    with pytest.raises(ClaimContradicted, match=said):
        read_pad_use(entries, HOW)

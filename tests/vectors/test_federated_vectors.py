"""Merging against vectors that were made without sealtrain and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sealtrain_collab.federated.merging import RULES, merge
from sealtrain_collab.federated.update import Update

FILE = Path(__file__).parents[2] / "vectors" / "federated" / "merging.json"
DOCUMENT: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


def state(listed: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(rows, dtype=torch.float32) for name, rows in listed.items()}


def test_every_rule_has_a_vector() -> None:
    assert {one["rule"] for one in DOCUMENT["cases"]} == set(RULES)


@pytest.mark.parametrize(
    "case", DOCUMENT["cases"], ids=lambda one: one["rule"] + " bounded" * ("max_norm" in one)
)
def test_merged_as_the_vector_says(case: dict[str, Any]) -> None:
    updates = [
        Update(party=one["party"], weight=one["weight"], state=state(one["state"]))
        for one in reversed(DOCUMENT["updates"])
    ]
    settings = {name: case[name] for name in ("rank", "trim", "max_norm") if name in case}
    merged = merge(case["rule"], updates, state(DOCUMENT["previous"]), **settings)
    wanted = state(case["merged"])
    assert merged.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(merged[name], tensor, rtol=0, atol=DOCUMENT["tolerance"])

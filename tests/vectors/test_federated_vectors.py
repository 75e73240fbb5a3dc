"""Merging against vectors that were made without sealtrain and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import COLLECTING
from pydantic import TypeAdapter
from safetensors.numpy import load

from sealtrain.recipe.collaborations.strategies import Strategy
from sealtrain_together.federated.engine import FlowerStrategy, PartyUpdate
from sealtrain_together.federated.merging import RULES, merge
from sealtrain_together.federated.update import Update

if not COLLECTING:
    import torch

FOLDER = Path(__file__).parents[2] / "vectors" / "federated"
DOCUMENT: dict[str, Any] = json.loads((FOLDER / "merging.json").read_text("utf-8"))
STRATEGIES: dict[str, Any] = json.loads((FOLDER / "strategies.json").read_text("utf-8"))


def state(listed: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(rows, dtype=torch.float32) for name, rows in listed.items()}


def test_every_rule_has_a_vector() -> None:
    assert {case["rule"] for case in DOCUMENT["cases"]} == set(RULES)


@pytest.mark.parametrize(
    "case", DOCUMENT["cases"], ids=lambda one: one["rule"] + " bounded" * ("max_norm" in one)
)
def test_merged_as_the_vector_says(case: dict[str, Any]) -> None:
    updates = [
        Update(party=update["party"], weight=update["weight"], state=state(update["state"]))
        for update in reversed(DOCUMENT["updates"])
    ]
    settings = {name: case[name] for name in ("rank", "trim", "max_norm") if name in case}
    merged = merge(case["rule"], updates, state(DOCUMENT["previous"]), **settings)
    wanted = state(case["merged"])
    assert merged.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(merged[name], tensor, rtol=0, atol=DOCUMENT["tolerance"])


def arrays(listed: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(rows, "<f4") for name, rows in listed.items()}


def rounds(strategy: FlowerStrategy, numbers: range, state: dict[str, Any]) -> list[dict[str, Any]]:
    merged = []
    for number in numbers:
        parties = tuple(sorted(STRATEGIES["weights"]))
        strategy.choose(number, parties, state)
        given = []
        for party in parties:
            step = arrays(STRATEGIES["steps"][number - 1][party])
            share = np.float32(STRATEGIES["step_share"])
            update = {name: state[name] + share * step[name] for name in state}
            given.append(
                PartyUpdate(party=party, records=STRATEGIES["weights"][party], arrays=update)
            )
        state = strategy.merge(number, given)
        merged.append(state)
    return merged


@pytest.mark.flower
@pytest.mark.claim("C242")
@pytest.mark.parametrize("case", STRATEGIES["cases"], ids=lambda one: one["strategy"]["name"])
def test_a_strategy_merges_and_remembers_as_the_vector_says(case: dict[str, Any]) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    settings = TypeAdapter(Strategy).validate_python(case["strategy"])
    near = {"rtol": 0, "atol": STRATEGIES["tolerance"]}
    strategy = FlowerStrategy(settings, seed=0)
    states = rounds(strategy, range(1, 5), arrays(STRATEGIES["previous"]))
    for state, wanted in zip(states, case["merged"], strict=True):
        for name, rows in wanted.items():
            np.testing.assert_allclose(state[name], rows, **near)
    halfway = FlowerStrategy(settings, seed=0)
    rounds(halfway, range(1, 3), arrays(STRATEGIES["previous"]))
    held = load(halfway.memory()) if case["memory_after_2"].keys() - {"arrays"} else {}
    for attribute, named in case["memory_after_2"].items():
        for name, rows in named.items() if attribute != "arrays" else ():
            np.testing.assert_allclose(held[f"{attribute}/{name}"], rows, **near)
    # From the memory as the vector has it a second lead goes on to the same states.
    second = FlowerStrategy(settings, seed=0)
    second.recall(bytes.fromhex(case["memory_after_2_encoded"]))
    for state, wanted in zip(
        rounds(second, range(3, 5), states[1]), case["merged"][2:], strict=True
    ):
        for name, rows in wanted.items():
            np.testing.assert_allclose(state[name], rows, **near)

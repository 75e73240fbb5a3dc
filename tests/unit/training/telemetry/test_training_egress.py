from __future__ import annotations

import math
from typing import Any

import pytest

from sealtrain.recipe.terms import ModelRelease, ReleasePolicy
from sealtrain.training.telemetry.metric_gate import MetricGate

pytestmark = pytest.mark.claim("C21")


def gate(**changed: Any) -> tuple[MetricGate, list[tuple[int, dict[str, float | None]]]]:
    fields: dict[str, Any] = {
        "metrics": ("loss", "accuracy"),
        "round_to": 3,
        "model": ModelRelease(recipients=("hospital-a",)),
    }
    left: list[tuple[int, dict[str, float | None]]] = []
    policy = ReleasePolicy(**(fields | changed))
    return MetricGate(policy, lambda step, values: left.append((step, values))), left


def test_named_metrics_leave_rounded_and_others_are_counted() -> None:
    guard, left = gate()
    guard.offer(10, {"loss": 0.123456, "grad_norm": 2.0})
    guard.offer(20, {"loss": 0.1, "grad_norm": 2.0, "secret": 1.0})
    assert left == [(10, {"loss": 0.123}), (20, {"loss": 0.1})]
    assert guard.withheld == {"grad_norm": 2, "secret": 1}


def test_nothing_leaves_between_the_steps_the_policy_names() -> None:
    guard, left = gate(every_n_steps=20)
    for step in (10, 20, 30, 40):
        guard.offer(step, {"loss": 1.0})
    assert [step for step, _ in left] == [20, 40]


@pytest.mark.claim("C597")
def test_a_metric_leaves_at_rising_steps_only() -> None:
    guard, left = gate(every_n_steps=20)
    for step, loss in ((20, 1.0), (40, 2.0), (20, 3.0), (40, 4.0), (0, 5.0), (60, 6.0)):
        guard.offer(step, {"loss": loss})
    guard.offer(20, {"accuracy": 0.5})
    assert [(step, *values.values()) for step, values in left] == [
        (20, 1.0),
        (40, 2.0),
        (60, 6.0),
        (20, 0.5),
    ]


def test_a_number_that_is_none_becomes_null() -> None:
    guard, left = gate()
    guard.offer(1, {"loss": math.nan, "accuracy": math.inf})
    assert left == [(1, {"loss": None, "accuracy": None})]


def test_no_call_is_made_when_nothing_may_leave() -> None:
    guard, left = gate(metrics=())
    guard.offer(1, {"loss": 1.0})
    assert left == []
    assert guard.filter({"loss": 1.0}) == {}

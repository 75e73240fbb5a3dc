"""The switches of the walk: each names its step, a promise, and tests that try to refute it."""

from __future__ import annotations

from pathlib import Path

import pytest
from carrying import carries

from sealtrain.errors import UsageError
from sealtrain_console.walk.claims import claims
from sealtrain_console.walk.switch import STEPS, Switch
from sealtrain_console.walk.table import SWITCHES, TITLES, of_step, switch_named

TESTS = Path(__file__).resolve().parents[2]


def test_every_step_has_switches_in_the_order_of_a_run() -> None:
    assert tuple(TITLES) == STEPS
    assert [switch for step in STEPS for switch in of_step(step)] == list(SWITCHES)
    assert all(len(of_step(step)) >= 4 for step in STEPS)


def test_no_name_stands_twice() -> None:
    names = [switch.name for switch in SWITCHES]
    assert len(set(names)) == len(names)
    assert [switch_named(name) for name in names] == list(SWITCHES)


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_a_switch_names_its_step_and_a_promise_that_tests_try_to_refute(switch: Switch) -> None:
    assert switch.name.startswith(f"{switch.step}-")
    claim = claims()[switch.claim]
    assert claim.promise
    for test in claim.tests:
        text = (TESTS / test).read_text("utf-8")
        assert f'"{switch.claim}"' in text
    assert claim.tests


def test_a_switch_that_the_walk_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, check=carries(check="switch", got="approve-nothing")):
        switch_named("approve-nothing")

"""Room for states that grow: no honest training outgrows its first checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.training.checkpoints.checkpoint_growth import (
    growth_of_log,
    growth_of_optimizers,
    growth_of_ranks,
)

if not COLLECTING:
    import torch

    from sealtrain.training.checkpoints.statefile import lay_out


def length(state: dict[str, Any]) -> int:
    layout = lay_out(state)
    return len(layout.header) + layout.size


def trained(optimizer: Any, parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(lambda: torch.tensor(1.0))
    optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("kind", ["AdamW", "Adagrad", "Adafactor", "SGD", "RMSprop"])
def test_state_of_parameters_without_a_gradient_so_far_has_room(kind: str) -> None:
    settings = {"momentum": 0.9} if kind == "SGD" else {}
    seen, unseen = (torch.nn.Parameter(torch.zeros(64, 64)) for _ in range(2))
    optimizer = getattr(torch.optim, kind)([seen, unseen], **settings)
    trained(optimizer, [seen])
    first, growth = length(optimizer.state_dict()), growth_of_optimizers(optimizer)
    trained(optimizer, [seen, unseen])
    assert length(optimizer.state_dict()) <= first + growth + 512
    assert growth_of_optimizers(optimizer) == 0
    assert growth <= 2 * 64 * 64 * 4 + 16


def test_the_steps_that_lbfgs_remembers_have_room() -> None:
    weight = torch.nn.Parameter(torch.ones(4096))
    optimizer = torch.optim.LBFGS([weight], history_size=5, max_iter=4)

    def loss() -> Any:
        optimizer.zero_grad()
        value = (weight**4).sum()
        value.backward()
        return value

    first, growth = length(optimizer.state_dict()), growth_of_optimizers(optimizer)
    for _ in range(6):
        optimizer.step(loss)
    assert length(optimizer.state_dict()) <= first + growth + (64 << 10)


def test_entries_of_the_log_that_are_still_to_come_have_room() -> None:
    entry = {"loss": 0.12345678901234567, "grad_norm": 1.25e-17, "learning_rate": 5e-05}
    entries = [entry | {"step": step, "epoch": step / 7} for step in range(1, 2001)]
    growth = growth_of_log(entries[:10], steps=1990, periods=(1, 0))
    assert length({"history": entries}) <= length({"history": entries[:10]}) + growth
    long = {f"a/rather_long_name_of_a_reward_{number}": 1 / 3 for number in range(60)}
    growth = growth_of_log([long], steps=99, periods=(1,))
    assert length({"history": [long] * 100}) <= length({"history": [long]}) + growth
    assert growth_of_log([], steps=0, periods=()) == 0
    assert growth_of_log([], steps=100, periods=(50,)) <= 3 * len(json.dumps(entries[0])) * 6


def test_ranks_that_may_join_have_room() -> None:
    assert growth_of_ranks((1, 2, 8), 2) == 6 * growth_of_ranks((2,), 1) > 0
    assert growth_of_ranks((), 4) == growth_of_ranks((1, 2), 4) == 0


def test_of_an_optimizer_that_is_none_of_pytorchs_nothing_is_known() -> None:
    assert growth_of_optimizers(object(), None) == 0

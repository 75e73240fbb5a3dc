"""Advantages, losses and the weight of the divergence, against sums by hand and plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from collecting import COLLECTING

from sealtrain.training.ppo.mathematics import (
    DivergenceWeight,
    average_masked,
    estimate_advantages,
    estimate_divergence,
    policy_losses,
    token_rewards,
    value_losses,
    whiten,
)
from sealtrain.training.telemetry.averages import Averages

if not COLLECTING:
    import torch


def by_definition(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> list[float]:
    """GAE as its paper writes it (eq. 16): a sum over the errors that follow, no recursion."""
    length = len(rewards)
    following = [*values[1:], 0.0]
    errors = [rewards[at] + gamma * following[at] - values[at] for at in range(length)]
    return [
        sum((gamma * lam) ** (later - at) * errors[later] for later in range(at, length))
        for at in range(length)
    ]


def test_advantages_by_hand() -> None:
    # errors: 0 + 0.9*2 - 1 = 0.8; 0 + 0.9*3 - 2 = 0.7; 1 - 3 = -2
    advantages, returns = estimate_advantages(
        torch.tensor([[0.0, 0.0, 1.0]]),
        torch.tensor([[1.0, 2.0, 3.0]]),
        torch.ones(1, 3),
        gamma=0.9,
        lam=0.5,
    )
    third = -2.0
    second = 0.7 + 0.45 * third
    first = 0.8 + 0.45 * second
    assert advantages[0].tolist() == pytest.approx([first, second, third])
    assert returns[0].tolist() == pytest.approx([1 + first, 2 + second, 3 + third])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 1.0), (0.97, 0.0), (0.5, 0.5)])
def test_advantages_are_those_of_the_paper(gamma: float, lam: float) -> None:
    source = np.random.default_rng(5)
    lengths = [7, 1, 4]
    mask = torch.tensor([[float(at < length) for at in range(7)] for length in lengths])
    # What stands in padding must not count, whatever it is.
    rewards = torch.tensor(source.normal(size=(3, 7)), dtype=torch.float32) * mask
    values = torch.tensor(source.normal(size=(3, 7)), dtype=torch.float32)
    advantages, returns = estimate_advantages(rewards, values, mask, gamma=gamma, lam=lam)
    for row, length in enumerate(lengths):
        expected = by_definition(
            rewards[row, :length].tolist(), values[row, :length].tolist(), gamma, lam
        )
        assert advantages[row, :length].tolist() == pytest.approx(expected, abs=1e-5)
        assert advantages[row, length:].tolist() == [0.0] * (7 - length)
    assert torch.equal(returns, advantages + values * mask)


def test_without_values_and_discount_the_advantage_is_the_score() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    rewards = token_rewards(torch.tensor([3.0]), torch.zeros(1, 3), mask, 0.2)
    advantages, _ = estimate_advantages(rewards, torch.zeros(1, 3), mask, gamma=1.0, lam=1.0)
    assert advantages.tolist() == [[3.0, 3.0, 0.0]]


def test_the_score_stands_at_the_last_token() -> None:
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    log_ratio = torch.tensor([[0.5, -0.5, 1.0], [2.0, 9.0, 9.0]])
    rewards = token_rewards(torch.tensor([1.0, -1.0]), log_ratio, mask, 0.1)
    assert rewards.numpy() == pytest.approx(
        np.array([[-0.05, 0.05, -0.1 + 1.0], [-0.2 - 1.0, 0.0, 0.0]])
    )


def test_whitening_counts_real_tokens_only() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    values = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]])
    whitened = whiten(values, mask)
    real = whitened[mask.bool()].numpy()
    expected = np.array([1.0, 2.0, 6.0])
    assert real == pytest.approx((expected - 3.0) / expected.std(), abs=1e-5)
    assert whitened[~mask.bool()].abs().sum() == 0
    assert float(average_masked(values, mask)) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0.0),
        (1.5, 2.0, -2.4, 1.0),  # too far up: counts as 1.2
        (1.5, -2.0, 3.0, 0.0),  # worse than it was: counts in full
        (0.5, 2.0, -1.0, 0.0),
        (0.5, -2.0, 1.6, 1.0),  # too far down: counts as 0.8
        (1.1, -1.0, 1.1, 0.0),
    ],
)
def test_the_clipped_objective(ratio: float, advantage: float, loss: float, clipped: float) -> None:
    new = torch.tensor([math.log(ratio) - 3.0], requires_grad=True)
    losses, where = policy_losses(new, torch.tensor([-3.0]), torch.tensor([advantage]), clip=0.2)
    assert float(losses.detach()) == pytest.approx(loss)
    assert float(where) == clipped
    losses.sum().backward()
    assert (float(new.grad) == 0.0) is bool(clipped)


@pytest.mark.parametrize(
    ("new", "old", "target", "loss"),
    [
        (1.1, 1.0, 2.0, 0.5 * 0.9**2),
        (1.9, 1.0, 2.0, 0.5 * 0.8**2),  # moved too far towards it: counts as 1.2
        (0.0, 1.0, 2.0, 0.5 * 2.0**2),  # moved away: counts in full
    ],
)
def test_the_clipped_value_loss(new: float, old: float, target: float, loss: float) -> None:
    losses = value_losses(
        torch.tensor([new]), torch.tensor([old]), torch.tensor([target]), clip=0.2
    )
    assert float(losses) == pytest.approx(loss)


def test_how_far_a_policy_moved_estimates_the_divergence() -> None:
    source = np.random.default_rng(0)
    old, new = source.dirichlet(np.ones(5)), source.dirichlet(np.ones(5) * 3)
    exact = float((old * np.log(old / new)).sum())
    old_log, new_log = (torch.tensor(np.log(value)) for value in (old, new))
    each = estimate_divergence(new_log, old_log)
    assert float((torch.tensor(old) * each).sum()) == pytest.approx(exact)
    assert float(each.min()) >= 0
    assert float(estimate_divergence(old_log, old_log).abs().max()) == 0


def test_the_weight_follows_the_target_as_in_the_paper() -> None:
    weight = DivergenceWeight(0.2, target=6.0, horizon=10_000)
    weight.correct(6.6, 256)  # error 0.1
    assert weight.coefficient == pytest.approx(0.2 * (1 + 0.1 * 256 / 10_000))
    weight.correct(60.0, 256)  # error 9, counts as 0.2
    second = 0.2 * (1 + 0.1 * 256 / 10_000) * (1 + 0.2 * 256 / 10_000)
    assert weight.coefficient == pytest.approx(second)
    weight.correct(-3.0, 100)  # error -1.5, counts as -0.2
    assert weight.coefficient == pytest.approx(second * (1 - 0.2 * 100 / 10_000))


def test_a_weight_without_target_stays() -> None:
    weight = DivergenceWeight(0.3, target=None, horizon=10)
    weight.correct(1000.0, 100)
    assert weight.coefficient == 0.3


def test_averages_begin_again() -> None:
    account = Averages()
    account.add({"loss": 1.0, "kl": 3.0})
    account.add({"loss": 2.0})
    assert account.close() == {"loss": 1.5, "kl": 3.0}
    assert account.close() == {}

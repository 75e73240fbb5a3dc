"""Rules of merging, against plain arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.merging import RULES, merge, merge_factors
from sealtrain_together.federated.update import Update, change_norm, decode_state, encode_state

if not COLLECTING:
    import torch

A, B, HEAD = "model.q.lora_A.default.weight", "model.q.lora_B.default.weight", "model.head.weight"
RANK, INPUTS, OUTPUTS = 2, 12, 9


def state(seed: int, *, rank: int = RANK, size: float = 1.0) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    shapes = {A: (rank, INPUTS), B: (OUTPUTS, rank), HEAD: (3, 5)}
    return {name: size * torch.randn(shape, generator=chance) for name, shape in shapes.items()}


def updates(*weights: int) -> list[Update]:
    return [
        Update(party=f"party-{number}", weight=weight, state=state(number))
        for number, weight in enumerate(weights)
    ]


def settings(rule: str) -> dict[str, Any]:
    return {"exact": {"rank": RANK}, "trimmed-mean": {"trim": 1}}.get(rule, {})


def test_fedavg_is_the_mean_by_records() -> None:
    given = updates(1, 3)
    merged = merge("fedavg", given, state(9))
    for name in (A, B, HEAD):
        wanted = 0.25 * given[0].state[name] + 0.75 * given[1].state[name]
        torch.testing.assert_close(merged[name], wanted)


def test_averaging_factors_misses_their_covariance_and_exact_does_not() -> None:
    given = updates(5, 5)
    wanted = sum(0.5 * update.state[B] @ update.state[A] for update in given)
    averaged = merge("fedavg", given, state(9))
    apart = averaged[B] @ averaged[A]
    spread = [(update.state[B] - averaged[B]) @ (update.state[A] - averaged[A]) for update in given]
    torch.testing.assert_close(apart, wanted - sum(spread) / 2)
    assert torch.linalg.norm(apart - wanted) > 0.5 * torch.linalg.norm(wanted)
    # Two parties of rank 2 make a product of rank 4: with room for it, nothing is lost.
    factors = [(update.state[A], update.state[B]) for update in given]
    whole_a, whole_b = merge_factors(factors, (0.5, 0.5), rank=2 * RANK, row_length=1.0)
    torch.testing.assert_close((whole_b @ whole_a).float(), wanted)
    # In the recipe's rank it is the best that this rank allows.
    merged = merge("exact", given, state(9), rank=RANK)
    left, sizes, right = torch.linalg.svd(wanted.double(), full_matrices=False)
    best = left[:, :RANK] * sizes[:RANK] @ right[:RANK]
    torch.testing.assert_close((merged[B] @ merged[A]).double(), best, rtol=1e-5, atol=1e-5)
    assert torch.linalg.norm(merged[B] @ merged[A] - wanted) < torch.linalg.norm(apart - wanted)
    torch.testing.assert_close(merged[HEAD], averaged[HEAD])


def test_exact_leaves_what_all_agree_on() -> None:
    one = state(1)
    given = [Update(party=party, weight=7, state=one) for party in "abc"]
    merged = merge("exact", given, state(9), rank=RANK)
    torch.testing.assert_close(merged[B] @ merged[A], one[B] @ one[A])


def test_exact_keeps_the_length_of_rows_and_every_direction_alive() -> None:
    before = state(9)
    given = updates(1, 1)
    for update in given:  # one direction only, of the two that the rank has
        update.state[B][:, 1] = 0.0  # type: ignore[index]
    merged = merge("exact", given[:1], before, rank=RANK)
    length = before[A].square().sum(dim=1).mean().sqrt()
    torch.testing.assert_close(merged[A].norm(dim=1), length.expand(RANK))
    assert float(merged[B][:, 1].norm()) < 1e-5
    assert float(merged[A][1].norm()) > 0.1, "an unused direction has a row to learn along"


def test_exact_takes_layers_narrower_than_the_rank() -> None:
    factors = [(torch.randn(8, 3), torch.randn(2, 8)) for _ in range(2)]
    rows, columns = merge_factors(factors, (0.5, 0.5), rank=8, row_length=1.0)
    assert rows.shape == (8, 3)
    assert columns.shape == (2, 8)
    wanted = sum(0.5 * b @ a for a, b in factors)
    torch.testing.assert_close((columns @ rows).float(), wanted)


@pytest.mark.parametrize("shared", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("fade", [1.0, 1e-2, 1e-5, 0.0])
@pytest.mark.parametrize("inputs", [40, 64])
def test_exact_is_the_best_of_its_rank_however_the_parties_agree(
    shared: float, fade: float, inputs: int
) -> None:
    """From parties that learned alike to ones apart, and directions down to nothing."""
    chance = torch.Generator().manual_seed(3)
    outputs, rank, parties = 48, 4, 5

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance)

    common = drawn(rank, inputs), drawn(outputs, rank)
    sizes = torch.tensor([1.0, 1.0, fade, fade])
    factors = [
        (
            shared * common[0] + (1 - shared) * drawn(rank, inputs),
            (shared * common[1] + (1 - shared) * drawn(outputs, rank)) * sizes,
        )
        for _ in range(parties)
    ]
    shares = [1 / parties] * parties
    rows, columns = merge_factors(factors, shares, rank=rank, row_length=2.0)
    whole = sum(w * b.double() @ a.double() for (a, b), w in zip(factors, shares, strict=True))
    left, found, right = torch.linalg.svd(torch.as_tensor(whole), full_matrices=False)
    best = left[:, :rank] * found[:rank] @ right[:rank]
    torch.testing.assert_close(columns @ rows, best, rtol=1e-9, atol=1e-9 * float(found[0]))
    torch.testing.assert_close(rows @ rows.T, 4.0 * torch.eye(rank).double(), rtol=0, atol=1e-6)


def test_with_a_frozen_the_mean_is_exact() -> None:
    given = updates(2, 1, 1)
    start = state(9)[A]
    merged = merge("ffa", [
        Update(party=update.party, weight=update.weight, state={B: update.state[B]})
        for update in given
    ], {B: torch.zeros(OUTPUTS, RANK)})  # fmt: skip
    wanted = sum(
        w * update.state[B] @ start for w, update in zip((0.5, 0.25, 0.25), given, strict=True)
    )
    torch.testing.assert_close(merged[B] @ start, wanted)


def test_median_and_trimmed_mean_are_of_every_number() -> None:
    given = updates(1, 1, 1, 1)
    stacked = torch.stack([update.state[HEAD].double() for update in given])
    middle = stacked.sort(dim=0).values[1:3].mean(dim=0).float()
    torch.testing.assert_close(merge("median", given, state(9))[HEAD], middle)
    torch.testing.assert_close(merge("trimmed-mean", given, state(9), trim=1)[HEAD], middle)
    odd = merge("median", given[:3], state(9))[HEAD]
    torch.testing.assert_close(odd, torch.median(stacked[:3], dim=0).values.float())


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_arrival_changes_no_bit(rule: str) -> None:
    given = updates(3, 1, 2)
    merged = [merge(rule, some, state(9), **settings(rule)) for some in (given, given[::-1])]
    assert encode_state(merged[0]) == encode_state(merged[1])


def test_a_change_is_cut_to_its_bound() -> None:
    before, far = state(9), state(1, size=100.0)
    one = Update(party="a", weight=1, state=far)
    merged = merge("fedavg", [one], before, max_norm=0.5)
    assert change_norm(merged, before) == pytest.approx(0.5, rel=1e-4)
    near = {name: tensor + 1e-3 for name, tensor in before.items()}
    kept = merge("fedavg", [Update(party="a", weight=1, state=near)], before, max_norm=0.5)
    assert encode_state(kept) == encode_state(near)


def test_states_come_back_from_bytes() -> None:
    one = state(4)
    turned = dict(reversed(one.items()))
    assert encode_state(one) == encode_state(turned)
    back = decode_state(encode_state(one), state(5))
    assert all(torch.equal(back[name], one[name]) for name in one)


@pytest.mark.parametrize(
    ("rule", "weights", "changed"),
    [
        ("krum", [1], {}),
        ("fedavg", [], {}),
        ("exact", [1], {}),
        ("fedavg", [1], {"rank": RANK}),
        ("exact", [1], {"rank": 3}),
        ("trimmed-mean", [1, 1], {"trim": 1}),
        ("trimmed-mean", [1, 1], {}),
        ("median", [1, 1], {"trim": 1}),
    ],
)
def test_what_does_not_fit_a_rule_is_refused(rule: str, weights: list[int], changed: Any) -> None:
    with pytest.raises(UsageError):
        merge(rule, updates(*weights), state(9), **changed)


def test_exact_needs_factors() -> None:
    head = {HEAD: torch.zeros(3, 5)}
    with pytest.raises(UsageError):
        merge("exact", [Update(party="a", weight=1, state=head)], head, rank=RANK)


def test_numbers_whose_mean_is_not_finite_are_refused() -> None:
    huge = {HEAD: torch.full((3, 5), 3e38)}
    before = {HEAD: torch.full((3, 5), -3e38)}
    assert merge("fedavg", [Update(party="a", weight=1, state=huge)], before)
    wide = {name: torch.full_like(tensor, 3e38) for name, tensor in state(1).items()}
    with pytest.raises(UpdateRefused):
        merge("exact", [Update(party="a", weight=1, state=wide)], state(9), rank=RANK)

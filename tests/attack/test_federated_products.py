"""Federated rounds under pads: their bits, and what an accelerator of several parties can do.

The accelerator answers all parties; it may lie, give one party the answers of another or of an
earlier round, or answer nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import OWNERS, seal_records, write_records
from variants import variants

from sealtrain.errors import AcceleratorUnreachable
from sealtrain_together.errors import ProductAltered

if not COLLECTING:
    import torch
    from learner_world import PREFIX, Terms, classifier, language
    from outside_world import InGuest, Meddler, learner, meddling, outside, rounds
    from pads_world import Address, dealing

    from sealtrain_together.pads.protect import IntegerWeights

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
exact = pytest.mark.claim("C600")
lying = pytest.mark.claim("C601")
once = pytest.mark.claim("C603")

RECIPES: dict[str, Callable[[], Any]] = {
    "lora": lambda: language(),
    "prefix": lambda: classifier(peft=PREFIX),
    "prefix of a language model": lambda: language(peft=PREFIX),
}
LAYERS = {
    "lora": "down_proj gate_proj k_proj lm_head o_proj q_proj up_proj v_proj",
    "prefix": "dense key query value",
    "prefix of a language model": (
        "down_proj gate_proj k_proj lm_head o_proj q_proj up_proj v_proj"
    ),
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rounds")
    return seal_records(write_records(folder), folder)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Meddler, Address]]:
    with meddling() as there:
        yield there


@pytest.fixture
def accelerator(shared: tuple[Meddler, Address]) -> tuple[Meddler, Address]:
    """Honest, and it has seen nothing."""
    shared[0].meddle = None
    shared[0].seen.clear()
    shared[0].answered.clear()
    return shared


@exact
@pytest.mark.parametrize(
    ("name", "aggregation", "pads"),
    [
        ("lora", "fedavg", "own"),
        pytest.param("prefix", "fedavg", "dealer", marks=pytest.mark.nightly),
        pytest.param("lora", "exact", "dealer", marks=pytest.mark.nightly),
        pytest.param("lora", "ffa", "pool", marks=pytest.mark.nightly),
        pytest.param("prefix of a language model", "median", "pool", marks=pytest.mark.nightly),
    ],
)
def test_rounds_end_in_the_bits_of_the_same_arithmetic_in_the_parties_guests(
    name: str,
    aggregation: str,
    pads: str,
    sealed: dict[str, Any],
    accelerator: tuple[Meddler, Address],
    tmp_path: Path,
) -> None:
    recipe, terms = RECIPES[name](), Terms(aggregation=aggregation)
    inside = {party: learner(recipe, sealed, party, InGuest(), terms) for party in OWNERS}
    plain = {party: learner(recipe, sealed, party, IntegerWeights(), terms) for party in OWNERS}
    with ExitStack() as stack:
        dealer = stack.enter_context(dealing()) if pads == "dealer" else None
        made = {}
        for party in OWNERS:
            folder = tmp_path / party
            folder.mkdir()
            made[party] = stack.enter_context(
                outside(recipe, folder, accelerator[1], dealer, party=party, how={"pads": pads})
            )
        under = {party: learner(recipe, sealed, party, made[party], terms) for party in OWNERS}
        state, losses = rounds(recipe, under, terms)
        assert (state, losses) == rounds(recipe, inside, terms)
        # Twelve bits of activations and gradients cost little; the weights are the same int8.
        assert losses == pytest.approx(rounds(recipe, plain, terms)[1], abs=0.02)
        tested = under[OWNERS[0]].evaluate(state)
        assert tested == inside[OWNERS[0]].evaluate(state)
        for case in made.values():
            assert " ".join(case.report_begun().layers) == LAYERS[name]
            assert case.report_spent().products >= terms.rounds * terms.local_steps
        assert made[OWNERS[0]].session != made[OWNERS[1]].session


@once
def test_no_pad_hides_two_rows_of_rounds_parties_or_beginnings(
    sealed: dict[str, Any], accelerator: tuple[Meddler, Address], tmp_path: Path
) -> None:
    """What is hidden is the same each time, so what is seen tells whether a pad was."""
    recipe, (there, address) = RECIPES["lora"](), accelerator
    sessions = set()
    for _beginning in range(2):  # a party that was killed, and began again
        with outside(recipe, tmp_path, address) as made:
            party = learner(recipe, sealed, OWNERS[0], made)
            start = party.initial()
            first, again = party.learn(1, start), party.learn(1, start)  # a lead that asks again
            assert first.state == again.state
            sessions.add(made.session)
    assert len(sessions) == 2
    assert there.seen
    by_width: dict[int, list[torch.Tensor]] = {}
    for asked in there.seen:
        by_width.setdefault(asked.shape[1], []).append(asked)
    for width, asked in by_width.items():
        rows = torch.cat(asked)
        assert len(torch.unique(rows, dim=0)) == len(rows), width


def lie(there: Meddler) -> None:
    def other(asked: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        product.view(-1)[-1] ^= 1
        return product

    there.meddle = other


@lying
@pytest.mark.parametrize(
    "attack",
    variants(
        ["lies", "another party's", "an earlier round's", "the same"],
        each_time=["lies", "an earlier round's"],
    ),
)
def test_a_party_gives_no_update_after_an_answer_that_is_not_its_own(
    attack: str, sealed: dict[str, Any], accelerator: tuple[Meddler, Address], tmp_path: Path
) -> None:
    recipe, (there, address) = RECIPES["lora"](), accelerator
    with outside(recipe, tmp_path, address) as other, outside(recipe, tmp_path, address) as made:
        neighbour = learner(recipe, sealed, OWNERS[1], other)
        party = learner(recipe, sealed, OWNERS[0], made)
        start = party.initial()
        kept = there.answered
        if attack == "another party's":
            neighbour.learn(1, start)
        else:
            party.learn(1, start)
        earlier = [tensor.clone() for tensor in kept]
        number = 1 if attack in ("another party's", "the same") else 2
        if attack == "lies":
            lie(there)
        else:
            there.replay(earlier)
        before = made.report_spent().products
        with pytest.raises(ProductAltered):
            party.learn(number, start)
        there.meddle = None  # honest again: too late for this session
        with pytest.raises(ProductAltered):
            party.learn(number, start)
        assert isinstance(made.failure, ProductAltered)
        assert made.report_spent().products == before
        # The other party goes on, and this one with other pads.
        assert neighbour.learn(2, start).records
    with outside(recipe, tmp_path, address) as anew:
        again = learner(recipe, sealed, OWNERS[0], anew)
        inside = learner(recipe, sealed, OWNERS[0], InGuest())
        assert again.learn(number, start) == inside.learn(number, start)


@lying
def test_a_party_whose_accelerator_withholds_answers_ends_in_its_time(
    sealed: dict[str, Any], accelerator: tuple[Meddler, Address], tmp_path: Path
) -> None:
    recipe, (there, address) = RECIPES["lora"](), accelerator
    over = threading.Event()
    with outside(recipe, tmp_path, address, seconds=0.5) as made:
        party = learner(recipe, sealed, OWNERS[0], made)
        there.withhold(over)
        try:
            with pytest.raises(AcceleratorUnreachable):
                party.learn(1, party.initial())
            assert isinstance(made.failure, AcceleratorUnreachable)
        finally:
            over.set()

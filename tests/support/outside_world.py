"""Parties of a tiny federation whose products an accelerator makes, in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from channel_world import acceptance, guest
from learner_world import Terms
from pads_world import DEVICE, Address
from training_world import OWNERS, sources_of

from sealtrain.recipe.collaborations.pads import ProductSettings
from sealtrain_together.channel.ports import listening
from sealtrain_together.federated.learner import Learner
from sealtrain_together.federated.merging import merge
from sealtrain_together.federated.update import Update, decode_state, encode_state
from sealtrain_together.pads.guest.protected_model import OutsideProducts, ReachedMachines
from sealtrain_together.pads.multiplying import Limits
from sealtrain_together.pads.protect import quantise, restore
from sealtrain_together.pads.serving import Multiplier

Meddle = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What an accelerator answers: of the rows that it was asked for, and their right product."""


class Meddler(Multiplier):
    """An accelerator that keeps what it saw and answers as a test says.

    Attributes:
        seen: Rows that it was asked for, request by request, of all parties.
        meddle: Makes its answers; ``None`` for honest ones.
    """

    def __init__(self) -> None:
        super().__init__(DEVICE, Limits())
        self.seen: list[torch.Tensor] = []
        self.answered: list[torch.Tensor] = []
        self.meddle: Meddle | None = None

    def multiply(self, asked: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        product = super().multiply(asked, factor)
        self.seen.append(asked.clone())
        self.answered.append(product.clone())
        return product if self.meddle is None else self.meddle(asked, product)

    def replay(self, kept: list[torch.Tensor]) -> None:
        """From now on answer with earlier answers, each in the place of one of its form."""
        left = list(kept)

        def again(asked: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
            for place, departure in enumerate(left):
                if departure.shape == product.shape:
                    return left.pop(place)
            return product

        self.meddle = again

    def withhold(self, until: threading.Event) -> None:
        """From now on answer nothing before an event."""

        def nothing(asked: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
            until.wait(60)
            return product

        self.meddle = nothing


@contextmanager
def meddling() -> Iterator[tuple[Meddler, Address]]:
    """An accelerator that parties share, on loopback."""
    work = Meddler()
    limits = Limits()
    with listening(
        ("127.0.0.1", 0), work.serve, what="accelerator", connections=limits.connections
    ) as address:
        yield work, address


def outside(
    recipe: Any,
    folder: Path,
    accelerator: Address,
    dealer: Address | None = None,
    *,
    party: str = OWNERS[0],
    how: Mapping[str, Any] | None = None,
    seconds: float = 20.0,
) -> OutsideProducts:
    """The products of one process of a party. Use as a context: it is ended."""
    products = ProductSettings.model_validate({"pads": "own", "checks": 1} | dict(how or {}))
    proof, accepts = guest(), acceptance()
    made: Any = SimpleNamespace(
        recipe=SimpleNamespace(
            collaboration=SimpleNamespace(kind="federated", products=products),
            trainer=recipe.trainer,
        ),
        settings=SimpleNamespace(
            accelerator="{}:{}".format(*accelerator),
            dealer=None if dealer is None else "{}:{}".format(*dealer),
            out=folder,
        ),
        collect=proof.collect,
        policy=accepts.policy,
        compose_hash=accepts.compose_hash,
        now=accepts.clock,
    )
    run_id = f"{OWNERS.index(party):032x}"
    return OutsideProducts(made.recipe, ReachedMachines(made, run_id, seconds=seconds))


class InGuest:
    """``StandIns``: the arithmetic of pads, and every product made by the guest."""

    def put_in(self, model: Any) -> None:
        quantise(model)

    def take_out(self, model: Any) -> None:
        restore(model)


def learner(
    recipe: Any, sealed: dict[str, Any], party: str, standins: Any, terms: Terms | None = None
) -> Learner:
    sources = [source for source in sources_of(recipe, sealed) if source.owner == party]
    return Learner(recipe, Path(), sources, party=party, terms=terms or Terms(), standins=standins)


def rounds(recipe: Any, parties: Mapping[str, Learner], terms: Terms) -> tuple[bytes, list[float]]:
    """Every round of a federation: the last adapter, and all losses that parties told."""
    form = next(iter(parties.values())).form
    state = encode_state(form)
    losses = []
    rank = recipe.peft.r if terms.aggregation == "exact" else None
    for number in range(1, terms.rounds + 1):
        updates = []
        for party, each_party in sorted(parties.items()):
            learned = each_party.learn(number, state)
            losses.append(learned.loss or 0.0)
            given = decode_state(learned.state, form)
            updates.append(Update(party=party, weight=learned.records, state=given))
        before = decode_state(state, form)
        state = encode_state(merge(terms.aggregation, updates, before, rank=rank))
    return state, losses

"""A lead knows how far each session of pads is, also after it was resumed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from carrying import carries
from federated_world import PARTIES, Adds, federated_world, rounds
from manifest_world import FEDERATED
from run_logs import fields_of

from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid, PadsRefused
from sealtrain.manifest.checks.collaborations.padfacts import PadsBegun
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain_together.errors import ProductAltered, UpdateRefused
from sealtrain_together.federated.guest.merging import Merge
from sealtrain_together.federated.messages import LearnedMessage, PartyJoined

STEPS = 3
HOW = FEDERATED | {"local_steps": STEPS, "products": {"pads": "dealer", "checks": 2}}
BEGUN = fields_of("pads.begun", skip=[])
ONE, OTHER = "aa" * 16, "bb" * 16
A, B, _C = PARTIES


def merge(how: dict[str, Any] = HOW) -> Merge:
    run: Any = SimpleNamespace()
    return Merge(run, Federated.model_validate(how), {})


def joined(party: str = A, **changed: Any) -> PartyJoined:
    begun = load_model(PadsBegun, BEGUN | changed, DataInvalid, "products")
    return PartyJoined(party=party, records=10, countable=True, products=begun)


def learned(session: str, products: int, **changed: int) -> LearnedMessage:
    spent = {
        "session": session, "products": products, "rows": 8 * products,
        "bytes_out": 64 * products, "bytes_in": 32 * products,
    } | changed  # fmt: skip
    return LearnedMessage.model_validate(
        {"round": 1, "records": 10, "steps": STEPS, "loss": 0.5, "report": {}, "products": spent}
    )


def silent() -> LearnedMessage:
    return learned(ONE, 3).model_copy(update={"products": None})


def test_sessions_that_go_forward_are_in_the_log() -> None:
    lead = merge()
    assert lead.admit(joined(A)) == {"products": BEGUN}
    assert lead.admit(joined(B)) == {"products": BEGUN}
    told = learned(ONE, 3)
    assert told.products is not None
    assert lead.outside(A, told) == {"products": told.products.to_dict()}
    assert lead.outside(B, learned(OTHER, 3))
    assert lead.outside(A, learned(ONE, 6))
    assert lead.outside(A, learned("cc" * 16, 3))  # it began anew
    assert lead.outside(A, learned(ONE, 9))  # and the one before lives after all


@pytest.mark.claim("C603")
@pytest.mark.parametrize(
    ("party", "told", "field"),
    [
        (B, learned(ONE, 6), "session"),
        (A, learned(ONE, 3), "products"),
        (A, learned(ONE, 2), "products"),
        (A, learned(ONE, 5), "products"),
        (A, learned(ONE, 6, rows=26), "products"),
        (A, learned(ONE, 6, bytes_out=1), "products"),
        (B, learned(OTHER, 2), "products"),
        (A, silent(), "products"),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_an_update_of_pads_that_were_used_or_not_used_is_refused(
    party: str, told: LearnedMessage, field: str, resumed: bool
) -> None:
    lead = merge()
    lead.admit(joined(A))
    first = lead.outside(A, learned(ONE, 3))
    if resumed:
        lead = merge()
        entries = [
            {"event": "update.taken", "fields": {"party": A} | first},
            {"event": "round.merged", "fields": {}},
        ]
        lead.sessions.recount(entries)
    with pytest.raises(PadsRefused, check=carries(check=field)):
        lead.outside(party, told)
    assert lead.outside(A, learned(ONE, 6)), "a refused update changes nothing"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"pads": "own"}, "pads"),
        ({"checks": 1}, "checks"),
        ({"skip": ["lm_head"]}, "skip"),
        ({"dealer": None}, "dealer"),
        ({"layers": {"q_proj": 11}}, "layers"),
    ],
)
def test_a_session_that_began_otherwise_is_not_let_in(changed: dict[str, Any], field: str) -> None:
    lead = merge()
    lead.sessions.layers = BEGUN["layers"]
    with pytest.raises(UpdateRefused, check=carries(check=field)):
        lead.admit(joined(**changed))


def test_products_stand_where_the_recipe_has_them() -> None:
    bare = joined().model_copy(update={"products": None})
    with pytest.raises(UpdateRefused, check=carries(check="products")):
        merge().admit(bare)
    plain = merge(FEDERATED)
    assert plain.admit(bare) == {}
    assert plain.outside(A, silent()) == {}
    with pytest.raises(UpdateRefused, check=carries(check="products")):
        plain.admit(joined())
    with pytest.raises(PadsRefused, check=carries(check="products")):
        plain.outside(A, learned(ONE, 3))


@pytest.mark.claim("C601")
def test_a_party_whose_products_were_altered_tells_its_lead_and_ends() -> None:
    with federated_world() as world:

        def altered(number: int) -> None:
            work = world.works[B]
            work.failed = ProductAltered("an accelerator lied", check="freivalds")
            raise work.failed

        world.works[B] = Adds(number=2, before=altered)
        for party in PARTIES:
            world.party(party)
        merged = world.federation(rounds(rounds=1, round_seconds=5)).run(b"\0" * 16)
        assert sorted(merged.reports) == [A, _C]
        left = world.events("party.left")
        assert left == [{"party": B, "code": "product-altered"}]
        world.ended[B].join(10)
        assert not world.ended[B].is_alive()
        assert world.refused[B][-1] == "product-altered"

"""No manifest of parties under pads tells of pads used twice, by two parties, or not at all.

The attacker holds the guest's own key and lets a genuine (simulated) guest quote the statement.
Both verifiers read each manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from manifest_world import (
    FEDERATED,
    FINISHED,
    NOW,
    RELEASED,
    START,
    World,
    limits_of,
    make_joint,
    records_of,
)
from run_logs import chained, fields_of
from second_verifier import Question, compare
from world import OWNERS

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import Refused
from sealtrain.manifest import form
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.signing import dsse, statement

pytestmark = pytest.mark.claim("C602")

Facts = dict[str, Any]
Told = list[tuple[str, Facts]]
Change = Callable[[Told], None]

HOW = FEDERATED | {"products": {"pads": "dealer", "checks": 1, "skip": ["lm_head"]}}
BEGUN = fields_of("pads.begun", pads="dealer", checks=1, skip=["lm_head"])
SESSIONS = dict(zip(OWNERS, ("aa" * 16, "bb" * 16, "cc" * 16), strict=True))
STEPS, PRODUCTS = 100, 900
"""Of a round: of a party, and in each of its updates."""


def state(number: int) -> str:
    return f"{number:064x}"


def spent(session: str, updates: int) -> Facts:
    """What a session came to with so many updates."""
    products = updates * PRODUCTS
    return {
        "session": session,
        "products": products,
        "rows": 48 * products,
        "bytes_out": 4096 * products,
        "bytes_in": 2048 * products,
    }


def log(records: dict[str, int | None]) -> Told:
    """Three rounds; the last party begins anew with other pads before the third."""

    def joined(name: str) -> tuple[str, Facts]:
        return "party.joined", {
            "party": name, "records": records[name], "products": deepcopy(BEGUN),
        }  # fmt: skip

    def updates(number: int, **begun_anew: str) -> Told:
        used = {name: spent(SESSIONS[name], number) for name in OWNERS}
        used |= {name: spent(session, 1) for name, session in begun_anew.items()}
        given: Told = [
            ("update.taken", {
                "round": number, "party": name, "digest": state(number), "norm": 0.5,
                "records": records[name], "products": used[name],
            })
            for name in OWNERS
        ]  # fmt: skip
        return [
            ("round.begun", {"round": number, "state": state(number - 1)}),
            *given,
            ("round.merged", {
                "round": number, "rule": "fedavg", "parties": list(OWNERS),
                "state": state(number),
            }),
        ]  # fmt: skip

    return [
        ("federation.begun", {
            "rule": "fedavg", "rounds": 3, "min_parties": 2, "parties": list(OWNERS),
            "state": state(0),
        }),
        *(joined(name) for name in OWNERS),
        *updates(1),
        *updates(2),
        ("party.left", {"party": OWNERS[2], "code": "product-altered"}),
        joined(OWNERS[2]),
        *updates(3, **{OWNERS[2]: "dd" * 16}),
        ("federation.finished", {"rounds": 3, "state": state(3)}),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_joint(tmp_path_factory.mktemp("pads"), HOW)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_joint(tmp_path_factory.mktemp("plain"))


def telling(world: World, change: Change = lambda told: None) -> bytes:
    """The manifest of a run whose log tells so."""
    told = log({name: records_of(world, name) for name in OWNERS})
    change(told)
    timed = [
        ("run.started", fields_of("run.started", collaboration="federated"), START),
        *((event, fields, RELEASED) for event, fields in told),
        ("training.finished", fields_of("training.finished"), FINISHED),
    ]

    def changed(facts: Facts) -> None:
        facts["run_log"] = chained(facts["run"]["run_id"], timed)
        facts["limits"] = limits_of(facts)

    return world.manifest(changed)


def nth(told: Told, event: str, number: int) -> Facts:
    return [fields for name, fields in told if name == event][number]


def put(event: str, number: int, **changed: Any) -> Change:
    """Other facts of pads in one entry."""
    return lambda told: nth(told, event, number)["products"].update(changed)


def without(event: str, number: int) -> Change:
    return lambda told: nth(told, event, number).pop("products")


def put_back(told: Told) -> None:
    """The second update of a party counts what the first one did: its memory was put back."""
    nth(told, "update.taken", 3)["products"] = spent(SESSIONS[OWNERS[0]], 1)


def went_on_twice(told: Told) -> None:
    """Two processes went on with the pads of one: the third update is behind the second."""
    nth(told, "update.taken", 6)["products"] = spent(SESSIONS[OWNERS[0]], 1) | {
        "products": 2 * PRODUCTS + STEPS,
    }


def nothing_of_pads(told: Told) -> None:
    for _event, fields in told:
        fields.pop("products", None)


OF_ANOTHER: dict[str, Change] = {
    "another party's": put("update.taken", 1, session=SESSIONS[OWNERS[0]]),
    "another party's, later": put("update.taken", 7, session=SESSIONS[OWNERS[0]]),
}
TWICE: dict[str, Change] = {
    "counts fall": put_back,
    "rows fall": went_on_twice,
    "bytes fall": put("update.taken", 3, bytes_in=1),
}
UNUSED: dict[str, Change] = {
    "no products": put("update.taken", 0, products=0, rows=0, bytes_out=0, bytes_in=0),
    "fewer than steps": put("update.taken", 0, products=STEPS - 1),
    "fewer rows than products": put("update.taken", 0, rows=PRODUCTS - 1),
    "an update says nothing": without("update.taken", 4),
}
OTHERWISE: dict[str, Change] = {
    "other pads": put("party.joined", 1, pads="own"),
    "more checks": put("party.joined", 1, checks=2),
    "another skip": put("party.joined", 1, skip=[]),
    "no dealer": put("party.joined", 1, dealer=None),
    "other layers": put("party.joined", 1, layers={"q_proj": 11}),
    "other layers, come again": put("party.joined", 3, layers={"q_proj": 13}),
    "a party says nothing": without("party.joined", 2),
    "no party says anything": nothing_of_pads,
}


def test_an_honest_manifest_says_what_was_made_elsewhere(world: World, plain: World) -> None:
    data = telling(world)
    page = render(examine(data, world.trust(), artefacts=world.artefacts, now=NOW))
    # Three sessions of two or three updates, and a fourth of one.
    assert f"{(3 + 3 + 2 + 1) * PRODUCTS:,} products" in page
    assert "of 4 sessions" in page
    verified = verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert agreed(world, {"honest": data}) == {"verified"}
    simple = verify_manifest(
        telling(plain, nothing_of_pads), plain.trust(), artefacts=plain.artefacts, now=NOW
    )
    assert len(verified.limits) == len(simple.limits) + 3
    assert agreed(plain, {"plain": telling(plain, nothing_of_pads)}) == {"verified"}


def test_a_report_of_a_manifest_that_is_refused_is_written(world: World) -> None:
    changes = {
        "nothing": nothing_of_pads,
        "no rounds": lambda told: told.clear(),
        "no party": lambda told: told.__delitem__(slice(1, 1 + len(OWNERS))),
        **OTHERWISE,
        **UNUSED,
    }
    for change in changes.values():
        data = telling(world, change)
        found = examine(data, world.trust(), artefacts=world.artefacts, now=NOW)
        assert "claim-contradicted" in render(found)


def refused(world: World, changes: dict[str, Change]) -> None:
    manifests = {name: telling(world, change) for name, change in changes.items()}
    for data in manifests.values():
        with pytest.raises(Refused) as caught:
            verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
        assert (caught.value.code, caught.value.check) == ("claim-contradicted", "rounds")
    assert agreed(world, manifests) == {"collaboration claim-contradicted"}


@pytest.mark.negative(91)
def test_pads_of_another_party_are_refused(world: World) -> None:
    refused(world, OF_ANOTHER)


@pytest.mark.negative(92)
def test_pads_that_were_used_before_are_refused(world: World) -> None:
    refused(world, TWICE)


@pytest.mark.negative(93)
def test_an_update_without_its_products_is_refused(world: World) -> None:
    refused(world, UNUSED)


@pytest.mark.negative(94)
def test_pads_that_began_otherwise_than_the_recipe_says_are_refused(
    world: World, plain: World
) -> None:
    refused(world, OTHERWISE)
    refused(plain, {"products that no recipe asked for": lambda told: None})


@pytest.mark.negative(95)
@pytest.mark.parametrize("limit", ["base-model-public", "outsourced-shapes", "dealer-apart"])
def test_what_pads_leave_open_cannot_be_concealed(world: World, limit: str) -> None:
    document = json.loads(form.read(telling(world)).signed_statement.payload)
    predicate = document["predicate"]
    predicate["limits"] = [
        each_limit for each_limit in predicate["limits"] if each_limit["id"] != limit
    ]
    payload, public = canonical_json(document), world.guest_key.public
    committed = form.commitment(payload, public, predicate["run_log"]["head"])
    evidence = world.evidence(Binding("manifest", committed))
    hidden = form.write(
        dsse.sign(payload, statement.PAYLOAD_TYPE, world.guest_key),
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        public,
    )
    with pytest.raises(Refused) as caught:
        verify_manifest(hidden, world.trust(), artefacts=world.artefacts, now=NOW)
    assert (caught.value.code, caught.value.check) == ("claim-contradicted", "limits")
    assert agreed(world, {limit: hidden}) == {"limits claim-contradicted"}


def agreed(world: World, manifests: dict[str, bytes]) -> set[str]:
    """What both verifiers say: ``verified``, or the first refused check and its code."""
    questions = [
        Question(label=name, manifest=data, trust=world.trust(), artefacts=None, now=NOW)
        for name, data in manifests.items()
    ]
    found = compare(questions)
    assert not found.disagreements
    assert not found.crashes
    return set(found.verdicts)

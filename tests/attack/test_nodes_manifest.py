"""A manifest of several nodes against someone who holds a genuine lead and lies of the others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from manifest_world import (
    FINISHED,
    LEASE_S,
    NOW,
    RELEASED,
    RUN_ID,
    START,
    World,
    limits_of,
    with_receipts,
)
from meeting_world import nodes_world, receipt_of
from run_logs import chained, fields_of
from world import digest, signer

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.consortium.receipts import Lease, ReleaseReceipt, sign_receipt
from sealtrain.errors import LeaseStale, Refused, SealtrainError, SignatureInvalid
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import VerifiedManifest, examine, verify_manifest
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.errors import RunLogBroken
from sealtrain.signing.identity import broker_id
from sealtrain.signing.parties import node_run_id

pytestmark = pytest.mark.claim("C163")

NODES, RANKS = 3, 2
FIRST, SECOND = digest("first session", 16), digest("second session", 16)
STOPPED, AGAIN = START + 200, START + 300
Change = Callable[[dict[str, Any]], None]
Entry = tuple[str, dict[str, Any], int]


def joined(session: str, at: int) -> Entry:
    nodes = [
        {
            "node": node,
            "run_id": node_run_id(RUN_ID, session, node),
            "evidence": digest(f"evidence {session} {node}"),
            "key": digest(f"key {session} {node}"),
            "from": to_rfc3339(at - 5),
        }
        for node in range(1, NODES)
    ]
    return "nodes.joined", {"session": session, "ranks": RANKS, "nodes": nodes}, at


def honest() -> list[Entry]:
    return [
        ("run.started", fields_of("run.started"), START),
        joined(FIRST, RELEASED + 5),
        ("training.finished", fields_of("training.finished"), FINISHED - 60),
        ("outputs.sealed", fields_of("outputs.sealed"), FINISHED),
    ]


def interrupted() -> list[Entry]:
    begun, first, *end = honest()
    seal = {"counter": 1, "step": 100, "digest": digest("checkpoint")}
    return [
        begun,
        first,
        ("checkpoint.sealed", seal, STOPPED),
        ("run.resumed", fields_of("run.resumed"), AGAIN),
        joined(SECOND, AGAIN + 5),
        *end,
    ]


def divided(*, nodes: int = NODES, ranks: int = RANKS) -> list[Entry]:
    """The interrupted run, where it went on among others."""
    log = interrupted()
    _, fields, at = log[4]
    log[4] = ("nodes.joined", fields | {"ranks": ranks, "nodes": fields["nodes"][: nodes - 1]}, at)
    return log


def told(entries: Sequence[Entry]) -> Change:
    log = chained(RUN_ID, copy.deepcopy(list(entries)))

    def change(facts: dict[str, Any]) -> None:
        facts["run_log"] = log

    return change


def receipts(world: World, **instead: ReleaseReceipt | None) -> Change:
    """The lead's and the nodes' receipts, some exchanged or left out."""
    usual: dict[str, ReleaseReceipt | None] = {
        "lead": world.receipt(),
        "one": receipt_of(world, 1, FIRST),
        "two": receipt_of(world, 2, FIRST),
    }
    return with_receipts(
        world, [receipt for receipt in (usual | instead).values() if receipt is not None]
    )


def of_nodes(folder: Path, brokers: Collection[str] | None = None) -> World:
    made = nodes_world(folder, nodes=NODES, ranks=RANKS, brokers=brokers)
    told(honest())(made.facts)
    receipts(made)(made.facts)
    made.facts["collaboration"] = {"kind": "nodes", "parties": []}
    made.facts["run"]["environment"]["world_size"] = str(NODES * RANKS)
    made.facts["limits"] = limits_of(made.facts)
    return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return of_nodes(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def sole(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose lock names one broker."""
    return of_nodes(tmp_path_factory.mktemp("sole"), [broker_id(signer("broker").public)])


def verified(world: World, *changes: Change) -> VerifiedManifest:
    def change(facts: dict[str, Any]) -> None:
        for change in changes:
            change(facts)

    return verify_manifest(world.manifest(change), world.trust(), artefacts=None, now=NOW)


def refused(world: World, *changes: Change, by: type[SealtrainError]) -> SealtrainError:
    with pytest.raises(Refused) as caught:
        verified(world, *changes)
    assert type(caught.value) is by, caught.value
    return caught.value


def resumed(facts: dict[str, Any]) -> None:
    facts["run"]["resumes"] = [
        {"at": to_rfc3339(AGAIN), "counter": 1, "step": 100, "checkpoint": digest("checkpoint")}
    ]


def all_of(world: World) -> list[ReleaseReceipt]:
    """Of the interrupted run."""
    again = Lease(lease_id=digest("again"), not_after=to_rfc3339(AGAIN + LEASE_S))
    lead = world.receipt(resume=True, released_at=to_rfc3339(AGAIN), lease=again)
    return [
        world.receipt(),
        *(receipt_of(world, node, FIRST) for node in (1, 2)),
        lead,
        *(receipt_of(world, node, SECOND, at=AGAIN) for node in (1, 2)),
    ]


def test_an_honest_run_of_three_nodes_verifies_and_its_limit_is_shown(world: World) -> None:
    found = verified(world)
    assert len(found.predicate.releases) == NODES
    assert "nodes-evidence" in {limit.id for limit in found.predicate.limits}
    examined = examine(world.manifest(), world.trust(), artefacts=None, now=NOW)
    assert "node" in render(examined)


def test_an_interrupted_run_whose_nodes_met_twice_verifies_and_all_are_listed(
    world: World,
) -> None:
    def twice(facts: dict[str, Any]) -> None:
        for answer in (told(interrupted()), resumed, with_receipts(world, all_of(world))):
            answer(facts)

    found = examine(world.manifest(twice), world.trust(), artefacts=None, now=NOW)
    assert found.accepted, found.refusal
    guests = found.to_dict()["guests"]
    assert [(guest["meeting"], guest["node"]) for guest in guests] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    log = [entry[1]["nodes"] for entry in interrupted() if entry[0] == "nodes.joined"]
    assert [{**guest, "meeting": None} for guest in guests] == [
        {"meeting": None, **node} for nodes in log for node in nodes
    ]
    page = render(found)
    assert all(guest["evidence"] in page and guest["key"] in page for guest in guests)


def test_nodes_are_listed_only_where_their_check_passed(world: World) -> None:
    found = examine(world.manifest(SHAPES["joined twice"]), world.trust(), artefacts=None, now=NOW)
    assert found.refusal is not None
    assert found.to_dict()["guests"] is None


@pytest.mark.parametrize("missing", [1, 2, 4, 5])
def test_every_node_of_every_session_shows_receipts_of_its_own(world: World, missing: int) -> None:
    kept = [value for place, value in enumerate(all_of(world)) if place != missing]
    change = with_receipts(world, kept)
    refused(world, told(interrupted()), resumed, change, by=LeaseStale)


def test_a_node_whose_receipts_are_missing_is_missed(world: World) -> None:
    for left_out in ("one", "two"):
        refused(world, receipts(world, **{left_out: None}), by=LeaseStale)


def one_broker(world: World, *changes: Change) -> VerifiedManifest:
    """As a broker that records the manifest sees it: its own receipts, and no leases throughout."""

    def change(facts: dict[str, Any]) -> None:
        for change in changes:
            change(facts)

    trust = world.trust(brokers=world.brokers(world.broker, datasets="theirs"))
    return verify_manifest(world.manifest(change), trust, artefacts=None, now=NOW)


@pytest.mark.claim("C168")
def test_a_broker_misses_a_node_that_never_asked_it(world: World) -> None:
    one_broker(world)
    for left_out in ("lead", "one", "two"):
        with pytest.raises(ClaimContradicted, check=carries(check="times")):
            one_broker(world, receipts(world, **{left_out: None}))
    for missing in range(6):
        kept = [value for place, value in enumerate(all_of(world)) if place != missing]
        change = with_receipts(world, kept)
        if missing in (0, 3):  # the lead's other release is of the same run
            continue
        with pytest.raises(ClaimContradicted, check=carries(check="times")):
            one_broker(world, told(interrupted()), resumed, change)


@pytest.mark.claim("C168")
def test_a_receipt_of_a_stranger_is_no_nodes_key_where_the_lock_has_one_broker(
    world: World, sole: World
) -> None:
    stranger = Ed25519Signer(Ed25519PrivateKey.generate())

    def listed(made: World) -> Change:
        receipt = receipt_of(made, 1, FIRST, broker_id=broker_id(stranger.public))

        def change(facts: dict[str, Any]) -> None:
            receipts(made, one=None)(facts)
            kept = facts["releases"][0]
            facts["releases"].append(kept | {"receipt": sign_receipt(receipt, stranger).to_dict()})

        return change

    one_broker(sole)
    with pytest.raises(ClaimContradicted, check=carries(check="times")):
        one_broker(sole, listed(sole))
    # One broker of three cannot tell: the node may have had the others answer.
    one_broker(world, listed(world))
    # A reader who demands leases throughout is not content with it.
    refused(world, listed(world), by=LeaseStale)


def test_no_node_shows_anothers_receipt(world: World) -> None:
    swapped = receipt_of(
        world, 2, FIRST, lease=Lease(lease_id=digest("x"), not_after=to_rfc3339(NOW))
    )
    refused(world, receipts(world, one=swapped), by=LeaseStale)


@pytest.mark.parametrize(
    "run_id",
    [
        node_run_id("66" * 16, FIRST, 1),
        node_run_id(RUN_ID, SECOND, 1),
        node_run_id(RUN_ID, FIRST, NODES),
        "66" * 16,
    ],
    ids=["another run", "another session", "a node too many", "no node"],
)
def test_receipts_of_another_run_session_or_node_do_not_count(world: World, run_id: str) -> None:
    stranger = receipt_of(world, 1, FIRST, run_id=run_id)
    error = refused(world, receipts(world, one=stranger), by=ClaimContradicted)
    assert (error.check, error.got) == ("releases", run_id)
    error = refused(world, receipts(world, further=stranger), by=ClaimContradicted)
    assert (error.check, error.got) == ("releases", run_id)


def test_the_leads_own_keys_are_no_nodes(world: World) -> None:
    refused(world, receipts(world, one=world.receipt(transcript_digest=digest("again"))),
            by=ClaimContradicted)  # fmt: skip


def test_a_receipt_twice_is_not_two_nodes(world: World) -> None:
    twice = receipt_of(world, 2, FIRST)
    refused(world, receipts(world, one=twice, two=twice), by=ClaimContradicted)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("recipe_hash", "66" * 32),
        ("compose_hash", "66" * 32),
        ("app_id", "66" * 20),
        ("consortium_id", "66" * 32),
    ],
)
def test_a_node_of_another_recipe_or_deployment_is_refused(
    world: World, field: str, value: str
) -> None:
    other = receipt_of(world, 1, FIRST, **{field: value})
    error = refused(world, receipts(world, one=other), by=ClaimContradicted)
    assert (error.check, error.got) == ("releases", value)


def test_a_nodes_lease_is_live_until_training_was_finished(world: World) -> None:
    short = Lease(lease_id=digest("short"), not_after=to_rfc3339(RELEASED + 60))
    refused(world, receipts(world, two=receipt_of(world, 2, FIRST, lease=short)), by=LeaseStale)


def test_a_node_may_be_gone_while_the_lead_seals_the_model(world: World) -> None:
    """Its keys serve nothing any more once training was finished, however long sealing takes."""
    begun, first, *_ = honest()
    early = [
        begun,
        first,
        ("training.finished", fields_of("training.finished"), START + 100),
        ("outputs.sealed", fields_of("outputs.sealed"), FINISHED),
    ]
    until = Lease(lease_id=digest("until"), not_after=to_rfc3339(START + 120))
    over = receipts(world, two=receipt_of(world, 2, FIRST, lease=until))
    verified(world, told(early), over)
    refused(world, over, by=LeaseStale)


def test_a_node_that_had_keys_only_later_took_part_without(world: World) -> None:
    late = receipt_of(world, 2, FIRST, released_at=to_rfc3339(RELEASED + 400))
    assert refused(world, receipts(world, two=late), by=ClaimContradicted).check == "times"


def meeting(change: Callable[[dict[str, Any]], object]) -> Change:
    entries = honest()
    change(entries[1][1])
    return told(entries)


def of_node(**changed: Any) -> Change:
    return meeting(lambda fields: fields["nodes"][0].update(changed))


def test_a_node_cannot_say_that_it_began_late(world: World) -> None:
    """Else the lease that it shows would cover the end alone."""
    change = of_node(**{"from": to_rfc3339(RELEASED + 500)})
    late = receipt_of(world, 1, FIRST, released_at=to_rfc3339(RELEASED + 490))
    assert refused(world, change, receipts(world, one=late), by=ClaimContradicted).check == "nodes"


LIES: dict[str, Change] = {
    "another session": meeting(lambda fields: fields.update(session=SECOND)),
    "other ranks": meeting(lambda fields: fields.update(ranks=1)),
    "a node dropped": meeting(lambda fields: fields["nodes"].pop()),
    "a node doubled": meeting(lambda fields: fields["nodes"].append(fields["nodes"][0])),
    "another order": meeting(lambda fields: fields["nodes"].reverse()),
    "another number": of_node(node=2),
    "another's run id": of_node(run_id=node_run_id(RUN_ID, FIRST, 2)),
    "the run's own id": of_node(run_id=RUN_ID),
    "one evidence": of_node(evidence=digest(f"evidence {FIRST} 2")),
    "one key": of_node(key=digest(f"key {FIRST} 2")),
    "before the run began": of_node(**{"from": to_rfc3339(START - 3600)}),
    "after it ended": of_node(**{"from": to_rfc3339(FINISHED + 3600)}),
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_a_lead_that_lies_of_its_nodes_is_contradicted(world: World, change: Change) -> None:
    refused(world, change, by=ClaimContradicted)


FORMS: dict[str, Change] = {
    "no nodes": meeting(lambda fields: fields["nodes"].clear()),
    "number 0": of_node(node=0),
    "evidence of another form": of_node(evidence="mine"),
    "key of another form": of_node(key=""),
    "a field of its own": of_node(gpus=8),
}


@pytest.mark.parametrize("change", FORMS.values(), ids=FORMS)
def test_fields_that_no_meeting_has_break_the_log(world: World, change: Change) -> None:
    refused(world, change, by=RunLogBroken)


def entries(change: Callable[[list[Entry]], object], made: list[Entry] | None = None) -> Change:
    log = honest() if made is None else made
    change(log)
    return told(log)


SHAPES: dict[str, Change] = {
    "never joined": entries(lambda log: log.pop(1)),
    "joined twice": entries(lambda log: log.insert(2, joined(SECOND, RELEASED + 6))),
    "joined after the end": entries(lambda log: log.append(log.pop(1))),
    "joined before the run": entries(lambda log: log.insert(0, log.pop(1))),
}


@pytest.mark.parametrize("change", SHAPES.values(), ids=SHAPES)
def test_nodes_join_once_and_before_they_train(world: World, change: Change) -> None:
    refused(world, change, by=ClaimContradicted)


def test_a_run_that_went_on_without_its_nodes_is_refused(world: World) -> None:
    change = entries(lambda log: log.pop(4), interrupted())
    kept = with_receipts(world, all_of(world)[:4])
    assert refused(world, change, resumed, kept, by=ClaimContradicted).check == "nodes"


def test_a_session_is_not_used_again(world: World) -> None:
    log = interrupted()
    log[4] = joined(FIRST, AGAIN + 5)
    refused(world, told(log), resumed, with_receipts(world, all_of(world)[:4]),
            by=ClaimContradicted)  # fmt: skip


@pytest.fixture(scope="module")
def resumable(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose recipe lets two nodes, or one rank each, continue the run."""
    made = nodes_world(
        tmp_path_factory.mktemp("resumable"),
        nodes=NODES,
        ranks=RANKS,
        resume_nodes=[2],
        resume_ranks=[1, 4],
    )
    made.facts["collaboration"] = {"kind": "nodes", "parties": []}
    resumed(made.facts)
    made.facts["limits"] = limits_of(made.facts)
    return made


def went_on(world: World, *, nodes: int = NODES, ranks: int = RANKS, size: int) -> list[Change]:
    """The manifest of a run that went on among others; ``size`` is what it says of processes."""

    def sized(facts: dict[str, Any]) -> None:
        facts["run"]["environment"]["world_size"] = str(size)

    shown = all_of(world)
    return [
        told(divided(nodes=nodes, ranks=ranks)),
        with_receipts(world, shown[: len(shown) + nodes - NODES]),
        sized,
    ]


@pytest.mark.claim("C762")
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (3, 1), (2, 1), (2, 4), (3, 2)])
def test_a_run_that_went_on_among_others_verifies_where_the_recipe_names_them(
    resumable: World, nodes: int, ranks: int
) -> None:
    changes = went_on(resumable, nodes=nodes, ranks=ranks, size=nodes * ranks)
    verified(resumable, *changes)
    other = went_on(resumable, nodes=nodes, ranks=ranks, size=nodes * ranks + 1)
    assert refused(resumable, *other, by=ClaimContradicted).check == "world_size"


@pytest.mark.claim("C762")
def test_a_run_of_numbers_that_the_recipe_does_not_name_is_refused(
    world: World, resumable: World
) -> None:
    three = went_on(resumable, ranks=3, size=9)
    assert refused(resumable, *three, by=ClaimContradicted).check == "nodes"
    for made in ({"ranks": 1, "size": 3}, {"nodes": 2, "size": 4}):
        changes = [resumed, *went_on(world, **made)]
        assert refused(world, *changes, by=ClaimContradicted).check == "nodes"


@pytest.mark.claim("C762")
def test_no_run_begins_among_others_than_its_owners_approved(resumable: World) -> None:
    """The recipe names them for a run that was interrupted."""
    for fields in ({"ranks": 1}, {"nodes": 2}):
        log = divided()
        ranks, nodes = fields.get("ranks", RANKS), fields.get("nodes", NODES)
        event, first, at = log[1]
        log[1] = (event, first | {"ranks": ranks, "nodes": first["nodes"][: nodes - 1]}, at)
        shown = [
            manifest for place, manifest in enumerate(all_of(resumable)) if nodes > 2 or place != 2
        ]
        changes = [told(log), with_receipts(resumable, shown)]

        def sized(facts: dict[str, Any]) -> None:
            facts["run"]["environment"]["world_size"] = str(NODES * RANKS)

        assert refused(resumable, *changes, sized, by=ClaimContradicted).check == "nodes"


@pytest.mark.claim("C762")
def test_a_node_that_went_on_shows_receipts_though_fewer_did(resumable: World) -> None:
    """The run of fewer nodes is no way around a node's receipts in the meeting before."""
    shown = all_of(resumable)[:-1]
    for missing in (1, 2, 4):
        kept = [manifest for place, manifest in enumerate(shown) if place != missing]
        changes = went_on(resumable, nodes=2, size=4)
        changes[1] = with_receipts(resumable, kept)
        refused(resumable, *changes, by=LeaseStale)


@pytest.mark.parametrize("claimed", ["1", str(RANKS), str(NODES * RANKS + 1), "", None])
def test_as_many_processes_trained_as_all_nodes_have_ranks(
    world: World, claimed: str | None
) -> None:
    def change(facts: dict[str, Any]) -> None:
        if claimed is None:
            del facts["run"]["environment"]["world_size"]
        else:
            facts["run"]["environment"]["world_size"] = claimed

    assert refused(world, change, by=ClaimContradicted).check == "world_size"


def test_a_run_of_nodes_does_not_pass_for_another_kind_or_for_none(world: World) -> None:
    def none(facts: dict[str, Any]) -> None:
        del facts["collaboration"]
        facts["limits"] = limits_of(facts)

    def other(facts: dict[str, Any]) -> None:
        facts["collaboration"]["kind"] = "federated"
        facts["limits"] = limits_of(facts)

    assert refused(world, none, by=RunLogBroken).check == "run log event"
    assert refused(world, other, by=RunLogBroken).check == "run log event"


def test_the_limit_of_nodes_cannot_be_left_out(world: World) -> None:
    def silent(facts: dict[str, Any]) -> None:
        facts["limits"] = [limit for limit in facts["limits"] if limit["id"] != "nodes-evidence"]

    with pytest.raises(ClaimContradicted, check=carries(check="limits")):
        world.manifest(silent)


@pytest.mark.parametrize("field", ["session", "ranks", "node", "run_id", "evidence", "key", "from"])
def test_nobody_changes_what_the_lead_signed_of_its_nodes(world: World, field: str) -> None:
    """Also the digests that only the lead saw: they are signed, and in the chain of the log."""
    document = json.loads(world.manifest())
    envelope = document["bundle"]["dsseEnvelope"]
    statement = json.loads(from_base64(envelope["payload"]))
    log = statement["predicate"]["run_log"]["entries"]
    fields = next(entry for entry in log if entry["event"] == "nodes.joined")["fields"]
    holder = fields if field in fields else fields["nodes"][0]
    kept = holder[field]
    holder[field] = kept + 1 if isinstance(kept, int) else digest("other")[: len(kept)]
    envelope["payload"] = to_base64(canonical_json(statement))
    with pytest.raises(SignatureInvalid):
        verify_manifest(canonical_json(document), world.trust(), artefacts=None, now=NOW)


def test_a_log_that_was_not_chained_anew_is_refused(world: World) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["run_log"]["entries"][1]["fields"]["nodes"][0]["evidence"] = digest("other")

    refused(world, change, by=RunLogBroken)

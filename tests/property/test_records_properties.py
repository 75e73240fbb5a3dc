"""Properties of envelopes, notes, run logs, trees and tallies."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.consortium.approvals import (
    Decision,
    SignedDecision,
    sign_decision,
    tally,
    verify_decision,
)
from sealtrain.consortium.members import Consortium
from sealtrain.errors import Refused, SignatureInvalid
from sealtrain.ledger.proofs import LedgerProof, verify_proof
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing import dsse, merkle, runlog
from sealtrain.signing.dsse import Ed25519Signer, Envelope
from sealtrain.signing.errors import ProofInvalid, RunLogBroken
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.needs import Needs
from sealtrain.signing.note import SignedNote
from sealtrain.signing.runlog import RunLog
from sealtrain.signing.target import Target
from sealtrain.signing.tree_head import TreeHead, sign_tree_head, verify_tree_head

BOUNDED = settings(max_examples=examples(50), deadline=None)
FEW = settings(max_examples=examples(20), deadline=None)
TYPE = "application/vnd.example+json"
SIGNERS = [
    Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
    for number in range(1, 5)
]
KEYS = [signer.public for signer in SIGNERS]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2.0**53) + 1, 2.0**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(keys, values, max_size=5)


def refuses(data: bytes) -> bool:
    try:
        dsse.verify(Envelope.from_bytes(data), KEYS, payload_type=TYPE)
    except SignatureInvalid:
        return True
    return False


@BOUNDED
@given(payload=st.binary(max_size=300), count=st.integers(1, 4))
def test_an_envelope_gives_back_exactly_what_was_signed(payload: bytes, count: int) -> None:
    envelope = dsse.sign(payload, TYPE, *SIGNERS[:count])
    data = envelope.to_bytes()
    read = Envelope.from_bytes(data)
    assert read.to_bytes() == data
    assert dsse.verify(read, KEYS, payload_type=TYPE, threshold=count) == payload


ONE = dsse.sign(b'{"a":1}', TYPE, SIGNERS[0]).to_bytes()


def test_every_flipped_bit_of_an_envelope_refuses_it() -> None:
    for position in range(len(ONE)):
        for bit in range(8):
            flipped = bytearray(ONE)
            flipped[position] ^= 1 << bit
            assert refuses(bytes(flipped)), (position, bit)


def test_every_truncation_of_an_envelope_refuses_it() -> None:
    assert not refuses(ONE)
    assert all(refuses(ONE[:length]) for length in range(len(ONE)))


@BOUNDED
@given(data=st.data())
def test_bytes_put_in_taken_out_or_replaced_refuse_an_envelope(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(ONE)))
    end = data.draw(st.integers(start, min(len(ONE), start + 8)))
    changed = ONE[:start] + data.draw(st.binary(max_size=8)) + ONE[end:]
    assume(changed != ONE)
    assert refuses(changed)


@BOUNDED
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_never_an_envelope_and_never_a_crash(data: bytes) -> None:
    assert refuses(data)


@FEW
@given(objects)
def test_arbitrary_json_is_never_an_envelope_and_never_a_crash(document: dict[str, Any]) -> None:
    assert refuses(canonical_json(document))


LEAVES = [merkle.leaf_hash(bytes([number])) for number in range(64)]


@BOUNDED
@given(data=st.data())
def test_a_mutated_inclusion_proof_is_refused(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 64))
    index = data.draw(st.integers(0, size - 1))
    root = merkle.root_of(LEAVES[:size])
    path = merkle.inclusion_proof(LEAVES[:size], index)
    assert merkle.verify_inclusion(LEAVES[index], index, size, path, root) == root
    mutated = mutate(data, path)
    try:
        merkle.verify_inclusion(LEAVES[index], index, size, mutated, root)
    except ProofInvalid:
        return
    raise AssertionError("a mutated proof verified")


@BOUNDED
@given(data=st.data())
def test_a_mutated_consistency_proof_is_refused(data: st.DataObject) -> None:
    second = data.draw(st.integers(2, 64))
    first = data.draw(st.integers(1, second - 1))
    roots = [merkle.root_of(LEAVES[:size]) for size in (first, second)]
    path = merkle.consistency_proof(LEAVES[:second], first)
    assert merkle.verify_consistency(first, second, path, *roots) == roots[1]
    mutated = mutate(data, path)
    try:
        merkle.verify_consistency(first, second, mutated, *roots)
    except ProofInvalid:
        return
    raise AssertionError("a mutated proof verified")


def mutate(data: st.DataObject, path: list[bytes]) -> list[bytes]:
    at = data.draw(st.integers(0, len(path) - 1))
    kind = data.draw(st.sampled_from(["flip", "drop", "repeat", "swap", "replace"]))
    mutated = list(path)
    if kind == "flip":
        bit = data.draw(st.integers(0, 255))
        mutated[at] = bytes(
            byte ^ (1 << bit % 8 if place == bit // 8 else 0) for place, byte in enumerate(path[at])
        )
    elif kind == "drop":
        del mutated[at]
    elif kind == "repeat":
        mutated.insert(at, path[at])
    elif kind == "swap":
        other = data.draw(st.integers(0, len(path) - 1))
        mutated[at], mutated[other] = mutated[other], mutated[at]
    else:
        mutated[at] = data.draw(st.binary(min_size=0, max_size=40))
    assume(mutated != path)
    return mutated


@BOUNDED
@given(data=st.data())
def test_consistency_is_transitive_with_inclusion(data: st.DataObject) -> None:
    """An entry proven in the earlier tree is provable, as the same entry, in the later one."""
    second = data.draw(st.integers(1, 64))
    first = data.draw(st.integers(1, second))
    index = data.draw(st.integers(0, first - 1))
    for size in (first, second):
        path = merkle.inclusion_proof(LEAVES[:size], index)
        merkle.verify_inclusion(LEAVES[index], index, size, path, merkle.root_of(LEAVES[:size]))


NOTE = sign_tree_head(TreeHead(origin="log.example/1", size=5, root="ab" * 32), SIGNERS[0])


@BOUNDED
@given(data=st.data())
def test_a_changed_checkpoint_never_says_something_else(data: st.DataObject) -> None:
    """A change either refuses or only touches what is not signed; the three lines stay."""
    raw = bytearray(NOTE.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    text = bytes(raw).decode("utf-8", errors="replace")
    try:
        read = verify_tree_head(text, KEYS[0], origin="log.example/1")
    except SignatureInvalid:
        return
    assert read == TreeHead(origin="log.example/1", size=5, root="ab" * 32)


@BOUNDED
@given(st.text(max_size=120))
def test_arbitrary_text_is_never_a_note_and_never_a_crash(text: str) -> None:
    try:
        note = SignedNote.from_text(text)
    except SignatureInvalid:
        return
    assert note.to_text() == text


@BOUNDED
@given(entry=objects, index=st.integers(), size=st.integers(), path=st.lists(st.text(max_size=64)))
def test_an_arbitrary_proof_is_refused_and_never_a_crash(
    entry: dict[str, Any], index: int, size: int, path: list[str]
) -> None:
    document = {"entry": entry, "index": index, "size": size, "path": path, "checkpoint": NOTE}
    try:
        verify_proof(LedgerProof.from_dict(document), KEYS[0], origin="log.example/1")
    except Refused:
        return
    raise AssertionError("an arbitrary proof verified")


released = st.fixed_dictionaries(
    {
        "lease_id": st.binary(min_size=32, max_size=32).map(bytes.hex),
        "not_after": st.integers(0, 1 << 32).map(to_rfc3339),
    }
)


@FEW
@given(fields=st.lists(released, min_size=1, max_size=6), data=st.data())
def test_a_run_log_with_any_entry_changed_is_refused(
    fields: list[dict[str, Any]], data: st.DataObject
) -> None:
    log = RunLog("0a" * 16)
    for field in fields:
        log.append("keys.released", field, 1_772_366_400)
    entries = parse_json(canonical_json(log.entries))
    assert runlog.verify("0a" * 16, entries, head=log.head) == log.head
    at = data.draw(st.integers(0, len(entries) - 1))
    other = data.draw(st.one_of(objects, released))
    assume(canonical_json(other) != canonical_json(entries[at]["fields"]))
    entries[at] = {**entries[at], "fields": other}
    try:
        runlog.verify("0a" * 16, entries, head=log.head)
    except RunLogBroken:
        return
    raise AssertionError("a changed run log verified")


NOW = 1_772_366_400
TARGETS = [
    Target(app_id=f"{n}" * 40, compose_hash=f"{n}" * 64, recipe_hash=f"{n}" * 64) for n in (1, 2)
]
OWNERS = [
    PublicIdentity.of(
        f"owner-{number}",
        signing_key=signer.public,
        sealing_key=HpkePrivateKey(Secret(signer.public)).public.raw,
    )
    for number, signer in enumerate(SIGNERS)
]
NEEDS = Needs(actions=("approve", "export_model"), owners=("owner-0",))
VETO = Consortium.found(
    name="veto", owners=OWNERS, approve=1, revoke=3, export_model=2, raise_logging=3
)
FOUR = Consortium.found(name="four", owners=OWNERS, approve=3, revoke=2, own_data_consent=False)


def signed(
    owner: int,
    target: int,
    word: str,
    ends: int,
    needs: Needs = NEEDS,
    of: Consortium = FOUR,
) -> SignedDecision:
    fields: dict[str, Any] = {
        "consortium_id": of.consortium_id,
        "brokers": ["b1" * 32],
        "target": TARGETS[target],
        "signed_at": NOW - 10,
    }
    decision = (
        Decision.approve(**fields, needs=needs, not_after=NOW + ends)
        if word == "approve"
        else Decision.revoke(**fields)
    )
    return verify_decision(sign_decision(decision, SIGNERS[owner]), of)


decisions = st.lists(
    st.builds(
        signed,
        st.integers(0, 3),
        st.integers(0, 1),
        st.sampled_from(["approve", "approve", "approve", "revoke"]),
        st.integers(-5, 20),
    ),
    max_size=12,
)


@BOUNDED
@given(given_decisions=decisions, later=st.integers(0, 30))
def test_a_tally_counts_as_a_plain_reading_of_the_rules_does(
    given_decisions: list[SignedDecision], later: int
) -> None:
    now = NOW + later
    approving = set()
    for name in [owner.name for owner in OWNERS]:
        mine = [
            decision.decision
            for decision in given_decisions
            if decision.owner.name == name and decision.decision.target == TARGETS[0]
        ]
        revoked = any(decision.decision == "revoke" for decision in mine)
        last = next(
            (decision for decision in reversed(mine) if decision.decision == "approve"), None
        )
        if not revoked and last is not None and last.ends is not None and now <= last.ends:
            approving.add(name)
    stopped = {
        decision.owner.name
        for decision in given_decisions
        if decision.decision.decision == "revoke" and decision.decision.target == TARGETS[0]
    }
    counted = tally(given_decisions, FOUR, TARGETS[0], now, needs=NEEDS)
    assert set(counted.approved_by) == approving
    assert set(counted.revoked_by) == stopped
    assert counted.sealed == (len(approving) < 3 or len(stopped) >= 2)


@FEW
@given(given_decisions=decisions, owner=st.integers(0, 3))
def test_a_revocation_never_unseals(given_decisions: list[SignedDecision], owner: int) -> None:
    before = tally(given_decisions, FOUR, TARGETS[0], NOW, needs=NEEDS)
    stop = signed(owner, 0, "revoke", 0)
    for at in range(len(given_decisions) + 1):
        after = tally(
            [*given_decisions[:at], stop, *given_decisions[at:]], FOUR, TARGETS[0], NOW, needs=NEEDS
        )
        assert after.progress <= before.progress
        assert after.sealed or not before.sealed


@FEW
@given(given_decisions=decisions, data=st.data())
def test_replaying_any_decision_changes_nothing(
    given_decisions: list[SignedDecision], data: st.DataObject
) -> None:
    assume(given_decisions)
    again = data.draw(st.sampled_from(given_decisions))
    before = tally(given_decisions, FOUR, TARGETS[0], NOW, needs=NEEDS)
    assert tally([*given_decisions, again], FOUR, TARGETS[0], NOW, needs=NEEDS) == before


@BOUNDED
@given(given_decisions=decisions)
def test_valid_until_is_the_last_unsealed_second(given_decisions: list[SignedDecision]) -> None:
    counted = tally(given_decisions, FOUR, TARGETS[0], NOW, needs=NEEDS)
    assert (counted.valid_until is None) == counted.sealed
    if counted.valid_until is not None:
        assert not tally(given_decisions, FOUR, TARGETS[0], counted.valid_until, needs=NEEDS).sealed
        assert tally(given_decisions, FOUR, TARGETS[0], counted.valid_until + 1, needs=NEEDS).sealed


needed = st.builds(
    lambda more, owners: Needs(
        actions=tuple(sorted({"approve", *more})),
        owners=tuple(f"owner-{number}" for number in sorted(owners)),
    ),
    st.sets(st.sampled_from(["export_model", "raise_logging"])),
    st.sets(st.integers(0, 3), max_size=2),
)
STATED = [NEEDS, Needs(actions=("approve",), owners=("owner-0", "owner-2"))]
vetoing = st.lists(
    st.builds(
        lambda owner, word, ends, needs: signed(owner, 0, word, ends, needs, VETO),
        st.integers(0, 3),
        st.sampled_from(["approve", "approve", "approve", "approve", "revoke"]),
        st.integers(0, 20),
        st.sampled_from(STATED) | needed,
    ),
    max_size=10,
)


@BOUNDED
@given(given_decisions=vetoing, needs=st.sampled_from(STATED) | needed)
def test_consent_on_own_data_is_what_a_plain_reading_says(
    given_decisions: list[SignedDecision], needs: Needs
) -> None:
    revoked = {
        decision.owner.name
        for decision in given_decisions
        if decision.decision.decision == "revoke"
    }
    stating = [decision for decision in given_decisions if decision.decision.needs == needs]
    ends = {decision.owner.name: decision.decision.ends or 0 for decision in stating}
    approving = {name for name, end in ends.items() if name not in revoked and end >= NOW}
    thresholds = VETO.thresholds.to_dict()
    open_ = (
        len(approving) >= max(thresholds[action] for action in needs.actions)
        and approving.issuperset(needs.owners)
        and not revoked.intersection(needs.owners)
        and len(revoked) < VETO.thresholds.revoke
    )
    counted = tally(given_decisions, VETO, TARGETS[0], NOW, needs=needs)
    assert set(counted.approved_by) == approving
    assert counted.sealed == (not open_)
    if counted.valid_until is not None:
        until = counted.valid_until
        assert not tally(given_decisions, VETO, TARGETS[0], until, needs=needs).sealed
        assert tally(given_decisions, VETO, TARGETS[0], until + 1, needs=needs).sealed

"""A consortium changes only by its own owners, and nobody is carried along unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from release_world import ReleaseWorld, audited, document_of, release_world, renewed
from world import DAY, NOW, OWNERS, identity

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.broker.store.succession import begin_ledger
from sealtrain.consortium.errors import ApprovalsMissing, ConsortiumMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.succession import (
    SuccessionFile,
    changes_between,
    propose,
    verify_succession,
    with_signature,
)
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import ConfigError, SealtrainError, SignatureInvalid
from sealtrain.keys.identity import Identity
from sealtrain.ledger.ledger import Ledger
from sealtrain.release.messages import ledger_origin
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.statement import PAYLOAD_TYPE, Subject, build

pytestmark = pytest.mark.claim("C62")

A, B, C = OWNERS
RULES = {"amend_members": 2, "amend_thresholds": 3}


def consortium(**changed: Any) -> Consortium:
    fields = {"approve": 2, "own_data_consent": False} | RULES | changed
    owners = [identity(name).public for name in fields.pop("owners", OWNERS)]
    return Consortium.found(name=fields.pop("name", "labs"), owners=owners, **fields)


def rotated(before: Consortium, owner: str) -> Consortium:
    """The same consortium with other keys of one owner."""
    new = Identity(owner, Secret(bytes([9]) * 32)).public
    owners = [new if each_owner.name == owner else each_owner for each_owner in before.owners]
    document = before.to_dict() | {"owners": [owner.to_dict() for owner in owners]}
    return Consortium.from_dict(document)


def signed(before: Consortium, after: Consortium, *owners: str, **changed: Any) -> SuccessionFile:
    fields = {"ledgers": [], "not_after": NOW + DAY} | changed
    file = propose(before, after, identity(owners[0]).signer, **fields)
    for owner in owners[1:]:
        file = with_signature(file, identity(owner).signer)
    return file


def test_other_keys_take_as_many_as_members_do() -> None:
    before = consortium()
    after = rotated(before, C)
    with pytest.raises(ApprovalsMissing) as caught:
        signed(before, after, A).verify()
    assert "2 of 3 owners" in str(caught.value.expected)
    found = signed(before, after, A, B).verify()
    assert (found.signed_by, found.required) == ((A, B), 2)
    assert found.successor.consortium_id != before.consortium_id


@pytest.mark.parametrize(
    "changed",
    [
        {"approve": 1},
        {"revoke": 2},
        {"export_model": 1},
        {"amend_members": 1},
        {"amend_thresholds": 1},
        {"own_data_consent": True},
        {"name": "other"},
    ],
    ids=str,
)
def test_other_rules_take_as_many_as_thresholds_do(changed: dict[str, Any]) -> None:
    before, after = consortium(), consortium(**changed)
    assert {change.amendment for change in changes_between(before, after)} == {"amend_thresholds"}
    with pytest.raises(ApprovalsMissing):
        signed(before, after, A, B).verify()
    assert signed(before, after, A, B, C).verify().complete


def test_both_at_once_take_the_higher_of_both() -> None:
    before = consortium()
    after = rotated(consortium(revoke=2), C)
    with pytest.raises(ApprovalsMissing):
        signed(before, after, A, B).verify()


def test_the_new_owners_signatures_count_for_nothing() -> None:
    """Whoever would come in cannot vote on it, under an old name or a new one."""
    before = consortium()
    after = rotated(before, C)
    new = Identity(C, Secret(bytes([9]) * 32))
    with pytest.raises(SignatureInvalid):
        with_signature(signed(before, after, A), new.signer)
    with pytest.raises(SignatureInvalid):
        with_signature(signed(before, after, A), identity("stranger").signer)


def test_one_owner_does_not_count_twice() -> None:
    with pytest.raises(SignatureInvalid):
        signed(consortium(), rotated(consortium(), C), A, A)


def test_a_successor_that_changes_nothing_is_none() -> None:
    with pytest.raises(StatementInvalid):
        signed(consortium(), consortium(), A, B, C)


def test_a_succession_is_worth_nothing_in_another_consortium() -> None:
    before, other = consortium(), consortium(name="twins")
    file = signed(before, rotated(before, C), A, B, C)
    with pytest.raises(ConsortiumMismatch):
        verify_succession(file.envelope, other)
    # The same owners: only the id in the statement keeps the two apart.
    shown = SuccessionFile(predecessor=other, envelope=file.envelope)
    with pytest.raises(ConsortiumMismatch):
        SuccessionFile.from_bytes(shown.to_bytes()).verify()


def test_a_predecessor_with_lower_thresholds_cannot_be_put_under_it() -> None:
    before = consortium()
    file = signed(before, rotated(before, C), A)
    weaker = Consortium.from_dict(
        before.to_dict() | {"thresholds": before.thresholds.to_dict() | {"amend_members": 1}}
    )
    with pytest.raises(ConsortiumMismatch):
        SuccessionFile(predecessor=weaker, envelope=file.envelope).verify()


Alter = Callable[[dict[str, Any], list[Subject]], object]


@pytest.mark.parametrize(
    "alter",
    [
        lambda said, _s: said["successor"].update(name="other"),
        lambda _said, subjects: subjects.append(Subject(name="more", sha256="00" * 32)),
        lambda said, _s: said.update(extra=1),
        lambda said, _s: said.update(version=2),
        lambda said, _s: said.update(not_after="never"),
        lambda said, _s: said["successor"]["thresholds"].update(approve=9),
    ],
    ids=["another document", "a subject more", "a field", "a version", "a time", "thresholds"],
)
def test_a_signed_statement_of_another_form_is_none(alter: Alter) -> None:
    before = consortium()
    after = rotated(before, C)
    said: dict[str, Any] = {
        "version": 1,
        "predecessor": before.consortium_id,
        "successor": after.to_dict(),
        "ledgers": [],
        "nonce": "ab" * 16,
        "not_after": "2030-01-01T00:00:00Z",
    }
    subjects = [Subject(name="consortium.json", sha256=after.consortium_id)]
    kind = "https://sealtrain.dev/attestations/succession/v1"
    signers = [identity(owner).signer for owner in OWNERS]
    honest = dsse.sign(build(subjects, kind, said), PAYLOAD_TYPE, *signers)
    assert verify_succession(honest, before).complete
    alter(said, subjects)
    forged = dsse.sign(build(subjects, kind, said), PAYLOAD_TYPE, *signers)
    with pytest.raises(SealtrainError):
        verify_succession(forged, before)


def test_an_altered_byte_of_the_file_is_noticed() -> None:
    before = consortium()
    data = signed(before, rotated(before, C), A, B).to_bytes()
    for place in range(7, len(data), 997):
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(SealtrainError):
            SuccessionFile.from_bytes(bytes(altered)).verify()


# A broker that takes one.


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path, rules=RULES) as made:
        yield made


def succeed(world: ReleaseWorld, *owners: str, **changed: Any) -> Any:
    file = signed(world.consortium, rotated(world.consortium, C), *owners, **changed)
    return world.broker.registry.hand_in("succession", document_of(file.envelope))


def test_a_broker_whose_consortium_was_succeeded_lets_nothing_run(world: ReleaseWorld) -> None:
    grant = renewed(world, world.obtain())
    taken = succeed(world, A, B)
    assert succeed_again(world, taken).index == taken.index
    for act in (
        world.obtain,
        lambda: renewed(world, grant),
        lambda: world.approve(C),
        lambda: world.register(world.seal(A)),
    ):
        with pytest.raises(ConsortiumMismatch, check=carries(check="succession")):
            act()
    assert world.refusals()[-1]["code"] == "consortium-mismatch"
    world.assert_no_key_left()
    assert world.revoke(A).index  # stopping stays possible
    gone = Withdrawal.of(
        [world.sealed[B].dataset_id],
        consortium_id=world.consortium.consortium_id,
        owner=identity(B).public,
        signed_at=NOW,
    )
    world.broker.registry.hand_in(
        Withdrawal.entry_kind, document_of(sign_owned(gone, identity(B).signer))
    )
    assert audited(world).holds


def succeed_again(world: ReleaseWorld, taken: Any) -> Any:
    entry = next(entry for entry in world.ledger.entries() if entry["kind"] == "succession")
    assert entry["body"]["digest"] == taken.digest
    envelope = dsse.Envelope.from_dict(entry["body"]["envelope"])
    return world.broker.registry.hand_in("succession", document_of(envelope))


def test_too_few_signatures_an_old_or_a_second_succession_end_nothing(
    world: ReleaseWorld,
) -> None:
    with pytest.raises(ApprovalsMissing):
        succeed(world, A)
    with pytest.raises(StatementInvalid) as late:
        succeed(world, A, B, not_after=world.clock() - 1)
    assert late.value.got == to_rfc3339(world.clock())
    assert world.obtain().lease_id
    succeed(world, A, B)
    with pytest.raises(ConsortiumMismatch):
        succeed(world, A, B)
    assert world.kinds().count("succession") == 1


@pytest.mark.parametrize("kind", ["release", "renewal", "approval", "dataset"])
def test_a_broker_that_goes_on_is_found_by_an_audit(world: ReleaseWorld, kind: str) -> None:
    renewed(world, world.obtain())
    body = next(entry["body"] for entry in world.ledger.entries() if entry["kind"] == kind)
    succeed(world, A, B)
    assert audited(world).holds
    world.ledger.append(kind, body | {"receipt_digest": "ab" * 32, "lease_id": "cd" * 32})
    problems = [finding.problem for finding in audited(world).findings]
    assert any("had replaced this consortium" in problem for problem in problems), problems


# A broker that begins with one.


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    after = rotated(consortium(), C)
    with Ledger.open(
        tmp_path / "ledger.sqlite",
        origin=ledger_origin(after.consortium_id),
        signer=identity("broker").signer,
        clock=lambda: NOW,
    ) as made:
        yield made


def written(folder: Path, file: SuccessionFile) -> Path:
    path = folder / "succession.json"
    path.write_bytes(file.to_bytes())
    return path


def test_a_successors_ledger_begins_with_the_succession(tmp_path: Path, ledger: Ledger) -> None:
    before = consortium()
    after = rotated(before, C)
    path = written(tmp_path, signed(before, after, A, B))
    begin_ledger(ledger, after, path, now=NOW)
    begin_ledger(ledger, after, path, now=NOW + 365 * DAY)  # a restart, whenever
    (entry,) = ledger.entries()
    assert entry["kind"] == "succession"
    assert canonical_json(entry["body"]["predecessor"]) == before.to_bytes()  # type: ignore[index]


def test_a_broker_begins_with_no_other_succession(tmp_path: Path, ledger: Ledger) -> None:
    before = consortium()
    after = rotated(before, C)
    with pytest.raises(ApprovalsMissing):
        begin_ledger(ledger, after, written(tmp_path, signed(before, after, A)), now=NOW)
    good = signed(before, after, A, B)
    with pytest.raises(ConsortiumMismatch):
        begin_ledger(ledger, before, written(tmp_path, good), now=NOW)
    with pytest.raises(StatementInvalid) as late:
        begin_ledger(ledger, after, written(tmp_path, good), now=NOW + 2 * DAY)
    assert late.value.got == to_rfc3339(NOW + 2 * DAY)
    assert ledger.size == 0
    ledger.append("refusal", {"action": "release", "code": "x", "check": "y"})
    with pytest.raises(ConfigError, check=carries(check="--succeeds")):
        begin_ledger(ledger, after, written(tmp_path, good), now=NOW)

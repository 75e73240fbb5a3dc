"""Brokers and other owners try to have an owner approve what that owner did not mean to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from carrying import carries
from typer.testing import CliRunner
from world import identity, lock_changed, signer

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.cli import app
from sealtrain.cli.review import change_lines
from sealtrain.client.broker_api import BrokerClient
from sealtrain.consortium.approvals import ApprovalTally
from sealtrain.consortium.datasets import read_dataset_envelope, reissue_dataset
from sealtrain.consortium.decisions import Decision, sign_decision
from sealtrain.consortium.errors import (
    ApprovalUnknown,
    ConsortiumInvalid,
    ConsortiumMismatch,
    DatasetMismatch,
)
from sealtrain.consortium.members import Consortium
from sealtrain.errors import BrokerNotApproved, SignatureInvalid, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.owner import approving
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.owner.owners_datasets import merge_answers
from sealtrain.owner.sealing import Publication, Sealed, register, seal
from sealtrain.recipe.diff import RecipeChange
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.errors import AnswerInvalid
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import BrokerMismatch

pytestmark = [pytest.mark.long, pytest.mark.claim("C129")]

A, B = "hospital-a", "hospital-b"
ROWS = '{"prompt": "case", "completion": "benign"}\n' * 4


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("approving")) as made:
        (made.folder / "rows.jsonl").write_text(ROWS)
        yield made


@pytest.fixture(scope="module")
def broker(site: BrokerSite) -> Iterator[BrokerClient]:
    with site.serving("state") as client:
        site.broker_file(client)
        yield client


@pytest.fixture
def desk(site: BrokerSite, broker: BrokerClient, request: pytest.FixtureRequest) -> Desk:
    return Desk(site, broker, request.node.name)


class Desk:
    """A recipe of its own for each test, and owners who decide on it."""

    def __init__(self, site: BrokerSite, broker: BrokerClient, name: str) -> None:
        self.site, self.broker = site, broker
        self.folder = site.folder / name.replace("[", "-").replace("]", "").replace(" ", "-")
        self.folder.mkdir()
        self.locked = self.lock("mine")

    def lock(self, description: str, brokers: tuple[str, ...] | None = None) -> LockedRecipe:
        def change(recipe: dict[str, Any]) -> None:
            recipe["description"] = f"{self.folder.name} {description}"

        named = brokers or (self.site.pin.broker_id,)
        locked = lock_changed(self.site.consortium.consortium_id, named, change)
        (self.folder / f"{description}.json").write_bytes(locked.compose_bytes)
        return locked

    @property
    def deployment(self) -> Path:
        return self.folder / "mine.json"

    def owner(self, name: str = A) -> OwnerFiles:
        return OwnerFiles(
            identity=self.site.folder / f"{name}.identity.json",
            brokers=(self.site.folder / "broker.yaml",),
        )

    def sealed(self, name: str = A, *, at: str = "mine", told: bool = True) -> Sealed:
        return seal(
            self.owner(name),
            self.site.folder / "rows.jsonl",
            self.folder / f"{name}-{at}-{len(list(self.folder.iterdir()))}.sealed",
            name="biopsies",
            deployment=LockedRecipe.load(self.folder / f"{at}.json"),
            publication=Publication(register=told),
        )

    def prepare(self, name: str = A, **said: Any) -> approving.Intent:
        return approving.prepare(self.owner(name), self.locked, self.site.consortium, **said)

    def approve(self, name: str = A, **said: Any) -> ApprovalTally:
        answers = approving.approve(self.owner(name), self.locked, self.site.consortium, **said)
        (tally,) = answers.done.values()
        return tally

    def revoke(self, name: str = A) -> ApprovalTally:
        answers = approving.revoke(self.owner(name), self.locked, self.site.consortium)
        (tally,) = answers.done.values()
        return tally

    @property
    def decided(self) -> list[Any]:
        return self.broker.list_decisions(self.locked.target, self.site.consortium)


@pytest.mark.claim("C152")
def test_a_broker_file_that_changes_while_the_owner_reads_gets_no_approval(desk: Desk) -> None:
    intent = desk.prepare(unpinned=True)
    file = desk.owner().brokers[0]
    asked = file.read_text()
    file.write_text(asked.replace("127.0.0.1", "localhost"))
    try:
        with pytest.raises(BrokerMismatch, check=carries(check="--broker")):
            approving.give(desk.owner(), intent)
    finally:
        file.write_text(asked)
    assert not desk.decided


@pytest.mark.claim("C152")
def test_a_deployment_that_changes_while_the_owner_reads_is_not_approved(desk: Desk) -> None:
    intent = desk.prepare(unpinned=True)
    other = desk.lock("other")
    desk.deployment.write_bytes(other.compose_bytes)
    approving.give(desk.owner(), intent)
    assert [decision.decision.target for decision in desk.decided] == [desk.locked.target]


@pytest.mark.claim("C152")
@pytest.mark.parametrize("command", ["approve", "revoke"])
def test_nobody_is_asked_about_a_recipe_that_is_not_shown(desk: Desk, command: str) -> None:
    unpinned = ["--unpinned"] if command == "approve" else []
    words = [
        command, "--deployment", str(desk.deployment), "--identity", str(desk.owner().identity),
        "--broker", str(desk.owner().brokers[0]), "--json", *unpinned,
        "--consortium", str(desk.site.folder / "consortium.json"),
    ]  # fmt: skip
    (desk.site.folder / "consortium.json").write_bytes(desk.site.consortium.to_bytes())
    asked = CliRunner().invoke(app, words, input="no\n")
    assert isinstance(asked.exception, UsageError)
    assert desk.locked.lock.recipe_hash in asked.stderr
    assert not desk.decided


@pytest.mark.claim("C152")
def test_differences_are_shown_only_to_what_the_owner_approved(desk: Desk) -> None:
    """An engineer could name a document that has the new recipe's worst parts already."""
    desk.lock("other")
    before = LockedRecipe.load(desk.folder / "other.json")
    assert not desk.prepare(unpinned=True, before=before).approved_before
    approving.give(desk.owner(B), approving.prepare(
        desk.owner(B), before, desk.site.consortium, unpinned=True
    ))  # fmt: skip
    assert not desk.prepare(unpinned=True, before=before).approved_before
    words = [
        "approve", "--deployment", str(desk.deployment), "--unpinned",
        "--identity", str(desk.owner(B).identity), "--broker", str(desk.owner().brokers[0]),
        "--consortium", str(desk.site.folder / "consortium.json"),
        "--approved-before", str(desk.folder / "other.json"),
    ]  # fmt: skip
    (desk.site.folder / "consortium.json").write_bytes(desk.site.consortium.to_bytes())
    shown = CliRunner().invoke(app, words, input="no\n").stderr
    assert ("recipe.description" in shown, "  privacy  " in shown) == (True, False)
    words[words.index("--identity") + 1] = str(desk.owner(A).identity)
    whole = CliRunner().invoke(app, words, input="no\n").stderr
    assert ("recipe.description" in whole, "  privacy  " in whole) == (False, True)


@pytest.mark.claim("C152")
def test_what_a_table_cuts_of_a_change_stands_below_it(desk: Desk) -> None:
    honest = [f"clinic-number-{number}" for number in range(9)]
    hidden = RecipeChange(
        path="recipe.release_policy.model.recipients", kind="changed", before=honest,
        after=[*honest, "eve"], area="release policy", severity="critical",
    )  # fmt: skip
    assert any("eve" in line for line in change_lines([hidden]))


# -- datasets -------------------------------------------------------------------------------------


def test_the_dataset_of_another_owner_is_not_pinned(desk: Desk) -> None:
    theirs, own = desk.sealed(B), desk.sealed()
    with pytest.raises(SignatureInvalid):
        desk.approve(datasets=[theirs.folder])
    assert not desk.decided
    # Nor by default, although both are registered under one name.
    assert [dataset.dataset_id for dataset in desk.prepare().pinned] == [own.description.dataset_id]


def test_a_dataset_for_another_recipe_is_not_pinned(desk: Desk) -> None:
    desk.lock("other")
    other = desk.sealed(at="other")
    with pytest.raises(DatasetMismatch, check=carries(check="dataset binding")):
        desk.approve(datasets=[other.folder])
    with pytest.raises(DatasetUnknown):
        desk.approve()
    assert not desk.decided


def test_a_dataset_that_is_not_registered_is_not_pinned(desk: Desk) -> None:
    unknown = desk.sealed(told=False)
    for said in ({"datasets": [unknown.folder]}, {}):
        with pytest.raises(DatasetUnknown, check=carries(check="--data", owner=A)):
            desk.approve(**said)
    assert not desk.decided
    register(desk.owner(), unknown.folder, desk.locked)
    assert desk.approve(datasets=[unknown.folder]).approved_by == (A,)
    with pytest.raises(UsageError, check=carries(check="--unpinned")):
        desk.approve(datasets=[unknown.folder], unpinned=True)


def test_a_folder_that_is_not_as_it_was_registered_is_not_pinned(desk: Desk) -> None:
    """Someone put another sealing of the owner's in the folder's place."""
    desk.sealed()
    swapped = desk.sealed(told=False)
    with pytest.raises(DatasetUnknown, check=carries(got=swapped.description.dataset_id)):
        desk.approve(datasets=[swapped.folder])
    assert not desk.decided


def lying(monkeypatch: pytest.MonkeyPatch, method: str, answer: Any) -> None:
    """A broker that answers something else: ``answer`` is given the truth."""
    truth = getattr(BrokerClient, method)

    def lie(self: BrokerClient, *given: Any, **named: Any) -> Any:
        return answer(truth(self, *given, **named))

    monkeypatch.setattr(BrokerClient, method, lie)


def entry_of(envelope: Envelope, dataset_id: str) -> dict[str, Any]:
    owner_id = identity(A).public.owner_id
    body = {"owner_id": owner_id, "dataset_id": dataset_id, "envelope": envelope.to_dict()}
    return {"kind": "dataset", "at": to_rfc3339(system_clock()), "body": body}


def forged(desk: Desk, by: str) -> dict[str, Any]:
    """An entry about a dataset of the first owner that another key signed."""
    sealed = desk.sealed(told=False)
    mine = read_dataset_envelope(sealed.folder)
    target = desk.locked.target
    keys = signer("nobody's") if by == "a stranger" else identity(B).signer
    signed = reissue_dataset(
        mine,
        keys,
        app_id=target.app_id,
        compose_hash=target.compose_hash,
        sealed_at=to_rfc3339(system_clock()),
    )
    return entry_of(signed, sealed.description.dataset_id)


@pytest.mark.claim("C152")
def test_another_owner_who_signs_two_roots_at_once_hinders_no_approval(desk: Desk) -> None:
    desk.sealed(B)
    (one,) = desk.prepare(A, unpinned=True).registered
    other = one.model_copy(update={"root": "0" * 64})
    assert merge_answers([[one], [other]], A) == (other,)
    with pytest.raises(DatasetMismatch, check=carries(check="dataset root")):
        merge_answers([[one], [other]], B)


@pytest.mark.parametrize("by", ["a stranger", "another owner"])
def test_a_broker_cannot_invent_a_dataset_of_the_owners(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    entry = forged(desk, by)
    lying(monkeypatch, "list_registered", lambda ids: (*ids, entry["body"]["dataset_id"]))
    lying(monkeypatch, "ledger_entries", lambda entries: [*entries[:-1], entry])
    with pytest.raises(DatasetUnknown, check=carries(got="none")):
        desk.approve()
    assert not desk.decided


def test_a_broker_cannot_pass_a_dataset_for_another_recipe_off(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.lock("other")
    other = desk.sealed(at="other")
    lying(monkeypatch, "list_registered", lambda ids: (*ids, other.description.dataset_id))
    with pytest.raises(DatasetUnknown, check=carries(got="none")):
        desk.approve()
    assert not desk.decided


@pytest.mark.parametrize("hides", ["the id", "the entry", "an entry more"])
def test_a_broker_that_keeps_a_dataset_back_gets_no_approval(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, hides: str
) -> None:
    sealed = desk.sealed()
    hidden = sealed.description.dataset_id
    if hides == "the id":
        lying(
            monkeypatch,
            "list_registered",
            lambda ids: tuple(value for value in ids if value != hidden),
        )
    elif hides == "the entry":
        lying(
            monkeypatch,
            "ledger_entries",
            lambda entries: [
                {**entry, "kind": "release"} if hidden in str(entry) else entry for entry in entries
            ],
        )
    else:
        lying(monkeypatch, "ledger_entries", lambda entries: entries[1:])
    with pytest.raises(AnswerInvalid if hides == "an entry more" else DatasetUnknown):
        desk.approve()
    assert not desk.decided


@pytest.mark.parametrize(
    "body", [None, [], {}, {"dataset_id": 7}, {"envelope": "x"}], ids=["none", *"abcd"]
)
def test_a_malformed_entry_is_refused_or_skipped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    desk.sealed()
    odd = [{"kind": kind, "at": "", "body": body} for kind in ("dataset", "withdrawal")]
    lying(monkeypatch, "ledger_entries", lambda entries: (entries + odd)[2:])
    with pytest.raises((AnswerInvalid, DatasetUnknown)):
        desk.approve()
    assert not desk.decided


# -- whose recipe, whose keys ---------------------------------------------------------------------


def test_neither_another_consortium_nor_other_keys_approve(desk: Desk, tmp_path: Path) -> None:
    desk.sealed()
    elsewhere = Consortium.from_dict(desk.site.consortium.to_dict() | {"name": "elsewhere"})
    with pytest.raises(ConsortiumMismatch):
        approving.prepare(desk.owner(), desk.locked, elsewhere)
    for name, error in ((A, ApprovalUnknown), ("stranger", ConsortiumInvalid)):
        path = tmp_path / f"{name}.json"
        Identity.generate(name).save(path)
        who = OwnerFiles(identity=path, brokers=desk.owner().brokers)
        with pytest.raises(error):
            approving.prepare(who, desk.locked, desk.site.consortium)
    astray = desk.lock("astray", ("ab" * 32,))
    with pytest.raises((BrokerNotApproved, DatasetMismatch)):
        approving.prepare(desk.owner(), astray, desk.site.consortium)
    assert not desk.decided


# -- revocations ----------------------------------------------------------------------------------


def test_a_lifted_revocation_stays_lifted_and_a_new_one_does_not(desk: Desk) -> None:
    desk.sealed()
    assert desk.approve().approved_by == (A,)
    assert desk.revoke().revoked_by == (A,)
    (first,) = [decision for decision in desk.decided if decision.decision.decision == "revoke"]
    with pytest.raises(UsageError, check=carries(check="--lift-revocation")):
        desk.approve()
    assert desk.approve(lift_revocation=True).approved_by == (A,)
    # Approved again, with and without the word; and the old revocation comes once more.
    assert desk.approve().approved_by == (A,)
    assert desk.approve(lift_revocation=True).approved_by == (A,)
    with desk.site.owner(desk.broker, A) as mine:
        mine.hand_in("approval", first.envelope)
    assert desk.approve().approved_by == (A,)
    assert desk.revoke().revoked_by == (A,)
    with pytest.raises(UsageError, check=carries(check="--lift-revocation")):
        desk.approve()


def test_there_is_nothing_to_lift_where_nothing_was_revoked(desk: Desk) -> None:
    desk.sealed()
    with pytest.raises(UsageError, check=carries(check="--lift-revocation")):
        desk.approve(lift_revocation=True)


def test_no_other_owner_lifts_a_revocation(desk: Desk) -> None:
    desk.sealed(), desk.sealed(B)
    assert desk.revoke().revoked_by == (A,)
    (mine,) = desk.decided
    now = system_clock()
    theirs = Decision.approve(
        consortium_id=desk.site.consortium.consortium_id,
        brokers=desk.locked.lock.brokers,
        target=desk.locked.target,
        needs=desk.site.needs,
        lifts=[mine.digest],
        signed_at=now,
        not_after=now + 3600,
    )
    with desk.site.owner(desk.broker, B) as their:
        their.hand_in("approval", sign_decision(theirs, identity(B).signer))
    with pytest.raises(UsageError, check=carries(check="--lift-revocation")):
        desk.approve()
    assert A in desk.approve(B).revoked_by


def test_what_a_broker_hides_of_revocations_lifts_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.sealed()
    desk.revoke()
    desk.approve(lift_revocation=True)
    desk.revoke()
    revoked = [decision for decision in desk.decided if decision.decision.decision == "revoke"]
    with monkeypatch.context() as lie:
        # The second revocation is hidden: the approval does not name it, and lifts nothing.
        lying(
            lie,
            "list_decisions",
            lambda decided: [
                decision for decision in decided if decision.digest != revoked[1].digest
            ],
        )
        desk.approve()
    tally = desk.broker.approvals_status(
        desk.locked.target,
        desk.site.consortium,
        system_clock(),
        needs=desk.site.needs,
    )
    assert tally.revoked_by == (A,)
    desk.approve(lift_revocation=True)
    with monkeypatch.context() as lie:
        # The lifting approvals are hidden: the owner is asked for the word again.
        lying(
            lie,
            "list_decisions",
            lambda decided: [
                decision for decision in decided if decision.decision.decision == "revoke"
            ],
        )
        with pytest.raises(UsageError, check=carries(check="--lift-revocation")):
            desk.approve()

"""Does an entry of a ledger hold, given the entries before it? See ``spec/ledger.md`` §9.

``EntryRules.problems`` takes the entries in order and yields the problems of each. It
believes no field that a signature in the entry does not cover: owners' documents are verified anew,
and the broker's acts are judged by the owners' documents before them. An approval or a retention
that has ended by the time of one entry has ended for every later entry, whatever time that one
states: otherwise the broker's host would revive it by setting the clock back.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import (
    ErrorCode,
    Hex32,
    Hex40,
    Hex64,
    OwnerName,
    StrictModel,
    Timestamp,
    load_model,
)
from sealtrain.consortium.approvals import ApprovalTally, SignedDecision, tally, verify_decision
from sealtrain.consortium.datasets import DatasetManifest, dataset_entry, replaces, verify_dataset
from sealtrain.consortium.decisions import kms_target
from sealtrain.consortium.documents import DOCUMENTS
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import entry_of, verify_owned
from sealtrain.consortium.receipts import Anchor, OwnedId, RunDataset
from sealtrain.consortium.series_block import NewestMember
from sealtrain.consortium.standing_approval import (
    Begun,
    Spent,
    StandingUse,
    Use,
    admits,
    entries_of,
    is_spent,
    use_of,
)
from sealtrain.consortium.succession import verify_succession
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import LedgerInconsistent, SealtrainError
from sealtrain.ledger.control_rules import KINDS, ControlRules
from sealtrain.ledger.members import Members
from sealtrain.ledger.uses import MAX_OUTPUTS
from sealtrain.signing.continues import Continues, number_of
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target

DECISION_SECONDS = 60
"""Longest time between a decision, which counts at the time of the request, and its entry."""
_NEED_A_CONSORTIUM = ("approval", "dataset", "release", "renewal", "boot")
_REFUSED_ACTIONS = frozenset(
    {
        "approval", "boot-app", "boot-kms", "dataset", "manifest", "release", "renewal",
        "succession",
    }
)  # fmt: skip
# Rounding error of sums of decimal fractions is smaller.
_ROUNDING = 1e-9


class _Released(StrictModel):
    owner_id: Hex64
    dataset_id: Hex32
    root: Hex64


class _Reserved(StrictModel):
    owner: OwnerName
    name: OwnerName
    epsilon: float = Field(ge=0, allow_inf_nan=False)
    delta: float = Field(ge=0, le=1, allow_inf_nan=False)
    budget: float | None = Field(ge=0, allow_inf_nan=False)


class _Granted(StrictModel):
    run_id: Hex32
    submission_id: Hex32 | None
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    datasets: tuple[_Released, ...]
    elsewhere: tuple[_Released, ...]
    lease_id: Hex64
    not_after: Timestamp
    evidence_digest: Hex64
    receipt_digest: Hex64
    checkpoint: Anchor | None
    simulated: bool
    needs: Needs
    standing: tuple[StandingUse, ...] = Field(default=(), max_length=64)
    series: tuple[NewestMember, ...] = Field(default=(), max_length=256)
    privacy: tuple[_Reserved, ...] = ()
    reserved_at: int | None = Field(default=None, ge=0)
    continues: Continues | None = None

    @property
    def data(self) -> frozenset[RunDataset]:
        """All data of the run."""
        return frozenset(
            RunDataset(dataset.owner_id, dataset.dataset_id, dataset.root)
            for dataset in (*self.datasets, *self.elsewhere)
        )


class _Output(StrictModel):
    name: str = Field(max_length=1024)
    sha256: Hex64


class _Recorded(StrictModel):
    run_id: Hex32
    manifest_digest: Hex64
    outputs: tuple[_Output, ...] | None = Field(max_length=MAX_OUTPUTS)
    parties: tuple[Hex32, ...] = Field(default=(), max_length=256)
    continues: Continues | None = None


class _Failed(StrictModel):
    run_id: Hex32
    lease_id: Hex64
    code: ErrorCode


class _RefusedEntry(StrictModel):
    action: str
    code: ErrorCode


class _Booted(StrictModel):
    """A dstack guest that was let boot (spec/boot-authority.md §4)."""

    action: Literal["boot-app", "boot-kms"]
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    instance_id: str
    device_id: Hex64
    os_image_hash: str
    mr_aggregated: Hex64
    tcb_status: str
    needs: Needs
    approved_by: tuple[OwnerName, ...]


class EntryRules:
    """The state after the entries so far. Feed it every entry, in order."""

    def __init__(self, consortium: Consortium) -> None:
        self._consortium = consortium
        self._decisions: list[SignedDecision] = []
        self._followed_by: dict[str, Continues | None] = {}
        self._standing: dict[str, tuple[SignedDecision, int]] = {}
        self._begun: defaultdict[Target, list[Begun]] = defaultdict(list)
        self._members = Members()
        self._ends: list[tuple[int, str]] = []  # approvals and retentions that have not ended
        self._over: set[str] = set()
        self._tallies: dict[tuple[Target, Needs], tuple[int, int, ApprovalTally]] = {}
        self._datasets: dict[tuple[OwnedId, str, str], tuple[str, DatasetManifest]] = {}
        self._owners_of: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self._newest: dict[tuple[str, str], str] = {}
        self._about: defaultdict[str, dict[OwnedId, str]] = defaultdict(dict)
        self._entries = 0
        self._ended = False
        self._runs: dict[str, tuple[Target, str]] = {}
        self._until: dict[str, int] = {}
        self._places: dict[str, tuple[Target | None, int]] = {}
        self._anchors: dict[str, Anchor] = {}
        self._data: dict[str, frozenset[RunDataset]] = {}
        self._control = ControlRules(consortium)
        self._reserved_at: dict[str, int] = {}
        self._spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._once: set[tuple[str, str]] = set()
        self.named: list[tuple[int, SignedDecision]] = []
        """Decisions by the place of their entry. Which brokers are this ledger's follows from all
        its rotations, so an audit compares the ids that decisions name at its end."""
        self.unknown: Counter[str] = Counter()
        """Number of entries by kind, for kinds without a rule."""

    def problems(self, kind: str, at: int, body: dict[str, Any]) -> Iterator[str]:
        """Yield the problems of the next entry; a valid entry has none.

        Args:
            kind: Of the entry.
            at: Its time, seconds since the epoch.
            body: Of the entry.
        """
        rule = {
            "approval": self._decision,
            "revocation": self._decision,
            "dataset": self._dataset,
            **dict.fromkeys(DOCUMENTS, self._owner_document),
            "rotation": self._rotation,
            "succession": self._succession,
            "release": self._check_grant,
            "renewal": self._check_grant,
            "manifest": self._manifest,
            "failure": self._failure,
            **dict.fromkeys(KINDS, self._control.problems),
            "boot": self._check_boot,
            "refusal": self._refusal,
        }.get(kind)
        self._entries += 1
        self._control.index = self._entries - 1
        while self._ends and self._ends[0][0] + DECISION_SECONDS < at:
            self._over.add(heapq.heappop(self._ends)[1])
        if rule is None:
            self.unknown[kind] += 1
            return
        try:
            if self._ended and kind in _NEED_A_CONSORTIUM:
                yield "the owners had replaced this consortium by another"
            yield from rule(kind, at, body)
        except SealtrainError as error:
            told = "; ".join(
                f"{name} {value}"
                for name in ("got", "expected")
                if (value := getattr(error, name)) is not None
            )
            yield error.message + (f" ({told})" if told else "")

    def _decision(self, kind: str, at: int, body: dict[str, Any]) -> Iterator[str]:
        envelope = Envelope.from_dict(body.get("envelope"))
        signed = verify_decision(envelope, self._consortium, now=at)
        self._decisions.append(signed)
        self.named.append((self._entries - 1, signed))
        if signed.decision.standing is not None:
            self._standing.setdefault(signed.digest, (signed, self._entries - 1))
        if signed.decision.ends is not None:
            heapq.heappush(self._ends, (signed.decision.ends, signed.digest))
        yield from self._check_repeat("decision", signed.digest)
        if kind != signed.entry_kind:
            yield f"it is called {kind} and is signed as {signed.decision.decision}"
        yield from _differences(body, signed.entry)

    def _dataset(self, _kind: str, _at: int, body: dict[str, Any]) -> Iterator[str]:
        envelope = Envelope.from_dict(body.get("envelope"))
        manifest = verify_dataset(envelope, self._consortium)
        owned = OwnedId(manifest.owner_id, manifest.dataset_id)
        key = (owned, manifest.app_id, manifest.compose_hash)
        before = self._datasets.get(key)
        yield from self._check_repeat("dataset manifest", envelope.digest)
        self._owners_of[manifest.dataset_id].add((manifest.owner, manifest.owner_id))
        yield from self._check_taken_back([owned], "is registered")
        if before is not None and not replaces(manifest, before[1], before[0]):
            yield f"it does not continue the manifest {before[0]} before it"
        yield from self._members.problems(manifest)
        self._datasets[key] = (envelope.digest, manifest)
        if manifest.last_second is not None:
            heapq.heappush(self._ends, (manifest.last_second, envelope.digest))
        yield from _differences(body, dataset_entry(manifest, envelope))

    def _rotation(self, _kind: str, _at: int, _body: dict[str, Any]) -> Iterable[str]:
        return ()  # of the ledger itself and no owner: the audit follows its keys

    def _owner_document(self, kind: str, _at: int, body: dict[str, Any]) -> Iterator[str]:
        envelope = Envelope.from_dict(body.get("envelope"))
        signed = verify_owned(DOCUMENTS[kind], envelope, self._consortium)
        yield from self._check_repeat(kind, signed.digest)
        yield from _differences(body, entry_of(signed))
        signed.document.follow(self)
        owner = signed.owner.name
        self._newest[kind, owner] = signed.digest
        owner_id = signed.owner.owner_id
        self._about[kind].update(
            (OwnedId(owner_id, subject), owner) for subject in signed.document.subjects()
        )

    def newest(self, kind: str, owner: str) -> str | None:
        """As ``RecordedBefore.newest``."""
        return self._newest.get((kind, owner))

    def owners_of(self, dataset_id: str) -> set[tuple[str, str]]:
        """As ``RecordedBefore.owners_of``."""
        return self._owners_of.get(dataset_id, set())

    def _succession(self, _kind: str, at: int, body: dict[str, Any]) -> Iterator[str]:
        envelope = Envelope.from_dict(body.get("envelope"))
        predecessor = Consortium.from_dict(body.get("predecessor"))
        found = verify_succession(envelope, predecessor)
        yield from self._check_repeat("succession", envelope.digest)
        if at > found.not_after:
            yield "it had ended before it came into force"
        mine = self._consortium.consortium_id
        if found.successor.consortium_id == mine:
            if self._entries != 1:
                yield "a ledger follows another one with its first entry only"
        elif predecessor.consortium_id != mine:
            yield "it is about other consortia"
        elif self._ended:
            yield "the consortium has a successor already"
        else:
            self._ended = True
        yield from _differences(body, found.entry)

    def _check_taken_back(self, data: Iterable[OwnedId], what: str) -> Iterator[str]:
        withdrawn = self._about[Withdrawal.entry_kind]
        for owned in sorted(withdrawn.keys() & set(data)):
            owner = withdrawn[owned]
            yield f"dataset {owned.dataset_id} {what} although {owner} had withdrawn it"

    def _check_grant(self, kind: str, at: int, body: dict[str, Any]) -> Iterator[str]:
        grant = load_model(_Granted, body, LedgerInconsistent, kind)
        target = _target(grant)
        run = self._runs.get(grant.run_id)
        begins = kind == "release" and run is None
        reserves = [(reserve.owner, reserve.name, reserve.epsilon) for reserve in grant.privacy]
        uses = {
            digest: (signed, use_of(signed, place, self._begun[target]))
            for digest, (signed, place) in self._standing.items()
            if begins and signed.decision.target == target
        }
        spent = {
            digest: why
            for digest, (signed, use) in uses.items()
            if (why := is_spent(signed, use, reserves)) is not None
        }
        counted = self._tally(target, grant.needs, at, spent)
        yield from _check_approved("keys were granted", counted)
        until = counted.valid_until
        if not counted.sealed and until is not None and from_rfc3339(grant.not_after) > until + 1:
            yield "its lease ends after the approvals it rests on"
        yield from self._check_repeat("receipt", grant.receipt_digest)
        if run is not None and run[0] != target:
            yield f"run {grant.run_id} began with another recipe"
        yield from self._check_anchor(grant)
        if kind == "renewal":
            if run is None or run[1] != grant.lease_id:
                yield f"run {grant.run_id} does not hold the lease that is renewed"
            if ("lease given back", grant.lease_id) in self._once:
                yield f"run {grant.run_id} had given its lease back"
            if at - DECISION_SECONDS >= self._until.get(grant.lease_id, at):
                yield f"run {grant.run_id} got a lease again that had ended"
            self._until[grant.lease_id] = from_rfc3339(grant.not_after)
            said = grant.privacy or grant.standing or grant.series
            named = (grant.reserved_at, grant.continues, grant.submission_id)
            if grant.data or said or named != (None, None, None):
                yield "a renewal releases and reserves nothing"
            yield from self._check_taken_back(self._data_of(grant.run_id), "stays in use")
            yield from self._check_retention(grant)
            return
        yield from self._check_repeat("lease", grant.lease_id)
        yield from self._model_before(grant, begins=begins)
        if begins:
            yield from self._begins(grant, counted, {key: use for key, (_, use) in uses.items()})
        elif grant.standing or grant.series:
            yield "a later release of a run counts nothing under a standing approval"
        self._runs[grant.run_id] = (target, grant.lease_id)
        self._until[grant.lease_id] = from_rfc3339(grant.not_after)
        self._control.note_release(
            grant.run_id, target, self._entries - 1, submission_id=grant.submission_id
        )
        if self._data.setdefault(grant.run_id, grant.data) != grant.data:
            yield f"run {grant.run_id} began with other data, and noise is made from its data"
        yield from self._check_taken_back({dataset.owned for dataset in grant.data}, "is used")
        yield from self._check_retention(grant)
        for dataset in grant.datasets:
            yield from self._check_release(dataset, grant, counted)
        yield from self._check_reservation(grant)

    def _begins(
        self, grant: _Granted, counted: ApprovalTally, uses: Mapping[str, Use]
    ) -> Iterator[str]:
        """Yield the problems of what the entry of a first release says of the run's begin."""
        target = _target(grant)
        reserves = tuple(
            (reserve.owner, reserve.name, reserve.epsilon) for reserve in grant.privacy
        )
        self._begun[target].append(Begun(index=self._entries - 1, target=target, reserved=reserves))
        expected = entries_of(counted.approvals, uses, reserves)
        if [_round_use(use) for use in grant.standing] != [_round_use(use) for use in expected]:
            yield "it counts its run under standing approvals in another way than the ledger"
        yield from self._members.misread(target, grant.data, grant.series, counted)

    def _model_before(self, grant: _Granted, *, begins: bool) -> Iterator[str]:
        """Yield a problem if the model's key is not that of the newest run of the chain."""
        continues = grant.continues
        if self._followed_by.setdefault(grant.run_id, continues) != continues:
            yield f"run {grant.run_id} began with the model of another run"
        if continues is None:
            return
        before = self._places.get(continues.manifest_digest)
        if before != (_target(grant), continues.number - 1):
            yield f"run {grant.run_id} was given a model that no recorded run of its recipe made"
        if begins and ("manifest continued", continues.manifest_digest) in self._once:
            yield f"run {grant.run_id} was given another model than the newest of its chain"

    def _check_retention(self, grant: _Granted) -> Iterator[str]:
        """Yield a problem for each dataset of a run whose retention has ended, or ends earlier."""
        for owned in sorted(self._data_of(grant.run_id)):
            known = self._datasets.get((owned, grant.app_id, grant.compose_hash))
            if known is None or known[1].last_second is None:
                continue
            if known[0] in self._over:
                yield f"keys were granted although the retention of {owned.dataset_id} had ended"
            elif from_rfc3339(grant.not_after) > known[1].last_second + 1:
                yield f"its lease ends after the retention of {owned.dataset_id}"

    def _check_anchor(self, grant: _Granted) -> Iterator[str]:
        """Yield a problem if the newest checkpoint of a run goes back or changes."""
        before, now = self._anchors.get(grant.run_id), grant.checkpoint
        if before is not None and now != before and (now is None or now.counter <= before.counter):
            yield f"run {grant.run_id} was rolled back behind its checkpoint {before.counter}"
        if now is not None:
            self._anchors[grant.run_id] = now

    def _data_of(self, run_id: str) -> set[OwnedId]:
        """The datasets that a run began with."""
        return {dataset.owned for dataset in self._data.get(run_id, ())}

    def _check_release(
        self, dataset: _Released, grant: _Granted, counted: ApprovalTally
    ) -> Iterator[str]:
        owned = OwnedId(dataset.owner_id, dataset.dataset_id)
        known = self._datasets.get((owned, grant.app_id, grant.compose_hash))
        if known is None or known[1].root != dataset.root:
            yield f"dataset {dataset.dataset_id} was not registered with this root for this recipe"
            return
        chain = self._members.chain(_target(grant), known[1].owner, known[1].name)
        for approval in counted.approvals:
            owner = approval.owner.name
            if owner != known[1].owner:
                continue
            pinned = approval.decision.pins().get(dataset.dataset_id)
            if not admits(approval.decision, known[1], chain):
                yield f"the approval of {owner} does not pin dataset {dataset.dataset_id}"
            if pinned is not None and pinned != dataset.root:
                yield f"the approval of {owner} pins another root of {dataset.dataset_id}"

    def _check_reservation(self, grant: _Granted) -> Iterator[str]:
        if grant.reserved_at != self._reserved_at.get(grant.run_id):
            yield f"it names another reservation of privacy than run {grant.run_id} has"
        if grant.privacy:
            self._reserved_at[grant.run_id] = self._entries - 1
        for reserve in grant.privacy:
            self._spent[reserve.owner, reserve.name] += reserve.epsilon
            total = self._spent[reserve.owner, reserve.name]
            if reserve.budget is not None and total > reserve.budget + _ROUNDING:
                yield (
                    f"epsilon {total:g} of {reserve.owner}/{reserve.name} "
                    f"passes the budget {reserve.budget:g}"
                )

    def _manifest(self, _kind: str, _at: int, body: dict[str, Any]) -> Iterator[str]:
        recorded = load_model(_Recorded, body, LedgerInconsistent, "manifest")
        for run_id in dict.fromkeys((recorded.run_id, *recorded.parties)):
            if run_id not in self._runs:
                yield f"no keys were released to run {run_id}"
        yield from self._check_repeat("manifest", recorded.manifest_digest)
        run = self._runs.get(recorded.run_id)
        place = (None if run is None else run[0], number_of(recorded.continues))
        if recorded.continues is not None:
            yield from self._check_continuation(recorded.continues, place)
        self._places[recorded.manifest_digest] = place

    def _check_continuation(
        self, continues: Continues, place: tuple[Target | None, int]
    ) -> Iterator[str]:
        before = self._places.get(continues.manifest_digest)
        if before is not None and before != (place[0], continues.number - 1):
            yield f"run {continues.number} of a chain follows a manifest of another place in it"
        yield from self._check_repeat("manifest continued", continues.manifest_digest)

    def _failure(self, kind: str, _at: int, body: dict[str, Any]) -> Iterator[str]:
        failed = load_model(_Failed, body, LedgerInconsistent, kind)
        run = self._runs.get(failed.run_id)
        if run is None or run[1] != failed.lease_id:
            yield f"run {failed.run_id} does not hold the lease that it gives back"
        yield from self._check_repeat("lease given back", failed.lease_id)

    def _check_boot(self, kind: str, at: int, body: dict[str, Any]) -> Iterator[str]:
        boot = load_model(_Booted, body, LedgerInconsistent, kind)
        target = _target(boot)
        kms = kms_target(app_id=boot.app_id, compose_hash=boot.compose_hash)
        if (boot.action == "boot-kms") != (target == kms):
            yield "a guest was let boot in another role than it was approved for"
        yield from _check_approved("a guest was let boot", self._tally(target, boot.needs, at))

    def _refusal(self, _kind: str, _at: int, body: dict[str, Any]) -> Iterator[str]:
        refused = load_model(
            _RefusedEntry,
            {name: body.get(name) for name in ("action", "code")},
            LedgerInconsistent,
            "refusal",
        )
        if refused.action not in _REFUSED_ACTIONS | DOCUMENTS.keys():
            yield "it refuses an action that a broker does not have"

    def _tally(
        self,
        target: Target,
        needs: Needs,
        at: int,
        spent: Mapping[str, Spent] = MappingProxyType({}),
    ) -> ApprovalTally:
        """Where approval stood, at most ``DECISION_SECONDS`` before ``at``; counted once.

        The entry's needs are the broker's word, and only approvals that state the same count.
        """

        def tally_at(time: int) -> ApprovalTally:
            return tally(
                self._decisions,
                self._consortium,
                target,
                time,
                needs=needs,
                over=self._over,
                spent=spent,
            )

        seen = len(self._decisions), len(self._over)
        known = self._tallies.get((target, needs))
        if known is not None and not spent:
            *before, counted = known
            until = counted.valid_until
            if tuple(before) == seen and until and counted.now <= at <= until:
                return counted
        counted = tally_at(at)
        if counted.sealed and not counted.revoked:
            earlier = tally_at(at - DECISION_SECONDS)
            if not earlier.sealed:
                return earlier
        if not spent:
            self._tallies[target, needs] = (*seen, counted)
        return counted

    def _check_repeat(self, what: str, digest: str) -> Iterator[str]:
        if (what, digest) in self._once:
            yield f"the {what} {digest} was recorded before"
        self._once.add((what, digest))


def _target(entry: _Granted | _Booted) -> Target:
    return Target(
        app_id=entry.app_id, compose_hash=entry.compose_hash, recipe_hash=entry.recipe_hash
    )


def _round_use(use: StandingUse) -> tuple[str, str, int, float | None]:
    epsilon = None if use.epsilon is None else round(use.epsilon, 9)
    return use.owner, use.approval, use.run, epsilon


def _check_approved(what: str, counted: ApprovalTally) -> Iterator[str]:
    if counted.revoked:
        yield f"{what} although {', '.join(counted.revoked_by)} had revoked"
    elif counted.sealed and counted.spent:
        yield f"{what} although the approval of {', '.join(counted.spent)} was spent"
    elif counted.sealed:
        yield (
            f"{what} with {counted.progress} of {counted.threshold} approvals "
            f"(missing: {', '.join(counted.awaited or counted.missing)})"
        )


def _differences(body: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    wrong = sorted(
        name for name in {*body, *expected} if body.get(name, ...) != expected.get(name, ...)
    )
    if wrong:
        yield f"{', '.join(wrong)}: not what was signed"

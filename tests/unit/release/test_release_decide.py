"""The decision alone: facts in, permit or refusal out, and the order of the checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bare_evidence import EVIDENCE
from world import digest, founded, identity

from sealtrain.attest.errors import AppIdMismatch, ComposeHashMismatch, PlatformMismatch
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.approvals import (
    ApprovalTally,
    DatasetPin,
    Decision,
    SignedDecision,
    sign_decision,
    tally,
    verify_decision,
)
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import (
    ApprovalRevoked,
    ApprovalsMissing,
    ConsortiumMismatch,
    DatasetMismatch,
)
from sealtrain.consortium.receipts import Anchor, RunDataset
from sealtrain.errors import (
    BrokerNotApproved,
    LeaseStale,
    RecipeChanged,
    RunMismatch,
    SealtrainError,
    TierRefused,
)
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.release.checks import CHECKS
from sealtrain.release.decide import admit, decide, decide_renewal
from sealtrain.release.errors import (
    ChallengeExpired,
    ChallengeReplayed,
    ChallengeUnknown,
    DatasetWithdrawn,
    LeaseUnknown,
)
from sealtrain.release.facts import (
    ChallengeState,
    DecisionLimits,
    Known,
    LeaseState,
    Measured,
    Permit,
    RunState,
)
from sealtrain.release.messages import ReleaseRequest, RenewalRequest
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.datause import DataUse
from sealtrain.signing.errors import BrokerMismatch, PurposeMismatch, RetentionEnded
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target

NOW = 1_790_000_000
NEEDS = Needs(actions=("approve", "export_model"), owners=("hospital-a",))
CONSORTIUM = founded("three", own_data_consent=False)
TARGET = Target(
    app_id=digest("app", 20), compose_hash=digest("compose"), recipe_hash=digest("recipe")
)
DATASET, ROOT, RUN, LEASE = digest("dataset", 16), digest("root"), digest("run", 16), digest("l")
OWNER_ID = identity("hospital-a").public.owner_id
DATA = RunDataset(OWNER_ID, DATASET, ROOT)
CONVERSATION: dict[str, Any] = {
    "version": 2,
    "broker_id": digest("broker"),
    "challenge": digest("challenge"),
    "run_id": RUN,
    "consortium_id": CONSORTIUM.consortium_id,
    **TARGET.to_dict(),
    "evidence": EVIDENCE,
}
RELEASE = ReleaseRequest.from_dict(
    CONVERSATION
    | {
        "version": 3,
        "submission_id": None,
        "hpke_public_key": "A" * 1624,
        "datasets": [
            {
                "owner_id": OWNER_ID,
                "dataset_id": DATASET,
                "root": ROOT,
                "stanza": {"kind": "recipe", "recipient": digest("recipient"), "body": "AAAA"},
            }
        ],
        "elsewhere": [
            {
                "owner_id": identity("hospital-b").public.owner_id,
                "dataset_id": digest("far", 16),
                "root": digest("far root"),
            }
        ],
        "resume": False,
    }
)
RENEWAL = RenewalRequest.from_dict(CONVERSATION | {"lease_id": LEASE, "checkpoint": None})
MANIFEST = DatasetManifest(
    version=1,
    dataset_id=DATASET,
    name="biopsies",
    owner="hospital-a",
    owner_id=identity("hospital-a").public.owner_id,
    root=ROOT,
    shards=1,
    records=None,
    tokens=None,
    schema_digest=digest("schema"),
    app_id=TARGET.app_id,
    compose_hash=TARGET.compose_hash,
    sealed_at="2026-01-01T00:00:00Z",
    previous=None,
)


def approval(owner: str, *, ends: int = NOW + 9999, target: Target = TARGET, **pins: str) -> Any:
    decision = Decision.approve(
        consortium_id=CONSORTIUM.consortium_id,
        brokers=["b1" * 32],
        target=target,
        needs=NEEDS,
        datasets=[DatasetPin(dataset_id=name, root=root) for name, root in pins.items()],
        signed_at=NOW - 9999,
        not_after=ends,
    )
    return verify_decision(sign_decision(decision, identity(owner).signer), CONSORTIUM)


def revocation(owner: str) -> SignedDecision:
    decision = Decision.revoke(
        consortium_id=CONSORTIUM.consortium_id,
        brokers=["b1" * 32],
        target=TARGET,
        signed_at=NOW - 1,
    )
    return verify_decision(sign_decision(decision, identity(owner).signer), CONSORTIUM)


def counted(*decisions: SignedDecision, target: Target = TARGET) -> ApprovalTally:
    return tally(decisions, CONSORTIUM, target, NOW, needs=NEEDS)


APPROVED = counted(approval("hospital-a"), approval("hospital-b"))
CHALLENGE = ChallengeState(purpose="release", expires_at=NOW + 120, used=False)
MEASURED = Measured(
    **TARGET.to_dict(),
    consortium_id=CONSORTIUM.consortium_id,
    brokers=frozenset({digest("broker"), digest("another broker")}),
    datasets=frozenset({("hospital-a", "biopsies")}),
    instance_id="i-1",
    platform="simulator",
    platforms=frozenset({"simulator"}),
    tier="processor-and-paravisor",
    lowest_tier="processor-and-paravisor",
    needs=NEEDS,
)
LIVE = LeaseState(run_id=RUN, not_after=NOW + 1, superseded=False, instance_id="i-1")
LIMITS = DecisionLimits(
    broker_ids=(digest("broker"), digest("former")),
    consortium_id=CONSORTIUM.consortium_id,
    lease_seconds=3600,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Honest facts of a release and a renewal; a test replaces one."""

    release: ReleaseRequest = RELEASE
    renewal: RenewalRequest = RENEWAL
    challenge: ChallengeState | None = CHALLENGE
    measured: Measured = MEASURED
    tally: ApprovalTally = APPROVED
    run: RunState | None = None
    lease: LeaseState | None = LIVE
    registered: dict[str, DatasetManifest] = field(default_factory=lambda: {DATASET: MANIFEST})
    withdrawn: dict[str, str] = field(default_factory=dict)
    now: int = NOW
    limits: DecisionLimits = LIMITS

    def known(self, challenge: ChallengeState | None, run: RunState | None) -> Known:
        return Known(challenge=challenge, tally=self.tally, run=run, withdrawn=self.withdrawn)

    def decide(self) -> Permit:
        return decide(
            self.release,
            self.measured,
            self.known(self.challenge, self.run),
            registered=self.registered,
            now=self.now,
            limits=self.limits,
        )

    def renew(self) -> Permit:
        challenge = self.challenge and replace(self.challenge, purpose="renewal")
        return decide_renewal(
            self.renewal,
            self.measured,
            self.known(challenge, self.run or KNOWN),
            lease=self.lease,
            registered=self.registered,
            now=self.now,
            limits=self.limits,
        )


KNOWN = RunState(
    **TARGET.to_dict(),
    data=RELEASE.data,
    checkpoint=Anchor(counter=5, digest=digest("five")),
)
HONEST = Case()


def with_measured(**changed: Any) -> Case:
    return replace(HONEST, measured=replace(MEASURED, **changed))


def with_release(**changed: Any) -> Case:
    return replace(HONEST, release=RELEASE.model_copy(update=changed))


def changed_data(**changed: str) -> frozenset[RunDataset]:
    """What the release asks for, with one thing changed of the dataset that it is given."""
    return RELEASE.data - {DATA} | {DATA._replace(**changed)}


def with_manifest(**changed: Any) -> Case:
    return replace(HONEST, registered={DATASET: MANIFEST.model_copy(update=changed)})


def with_challenge(**changed: Any) -> Case:
    return replace(HONEST, challenge=replace(CHALLENGE, **changed))


def resumed(**before: Any) -> Case:
    """A resume of a run that began otherwise."""
    return replace(with_release(resume=True), run=replace(KNOWN, **before))


ENDED = DataUse(retention_until=to_rfc3339(NOW - 1))
BINDING = DataUse(purposes=("early detection",), purposes_bind=True)
OTHER = Target(app_id=TARGET.app_id, compose_hash=TARGET.compose_hash, recipe_hash="ab" * 32)

# In the order of the spec; each case breaks one check only.
RELEASE_REFUSALS: list[tuple[str, Case, type[SealtrainError]]] = [
    ("1 broker", with_release(broker_id=digest("another broker")), BrokerMismatch),
    ("1 former id", with_release(broker_id=digest("former")), BrokerMismatch),
    ("1 consortium", with_release(consortium_id="ab" * 32), ConsortiumMismatch),
    ("2 unknown", replace(HONEST, challenge=None), ChallengeUnknown),
    ("2 other purpose", with_challenge(purpose="renewal"), ChallengeUnknown),
    ("3 used", with_challenge(used=True), ChallengeReplayed),
    ("4 expired", with_challenge(expires_at=NOW), ChallengeExpired),
    ("7 compose", with_measured(compose_hash="ab" * 32), ComposeHashMismatch),
    ("7 app", with_measured(app_id="ab" * 20), AppIdMismatch),
    ("8 lock", with_measured(recipe_hash="ab" * 32), RecipeChanged),
    ("9 lock of others", with_measured(consortium_id="ab" * 32), ConsortiumMismatch),
    (
        "9 lock of other brokers",
        with_measured(brokers=frozenset({digest("another broker")})),
        BrokerNotApproved,
    ),
    ("9 platform", with_measured(platforms=frozenset({"dstack"})), PlatformMismatch),
    ("9 one tier below", with_measured(tier="cloud-tpm"), TierRefused),
    ("9 weakest tier", with_measured(tier="cloud"), TierRefused),
    ("10 nobody", replace(HONEST, tally=counted()), ApprovalsMissing),
    ("10 one", replace(HONEST, tally=counted(approval("hospital-a"))), ApprovalsMissing),
    (
        "10 revoked",
        replace(
            HONEST,
            tally=counted(approval("hospital-a"), approval("hospital-b"), revocation("hospital-c")),
        ),
        ApprovalRevoked,
    ),
    (
        "10 another",
        replace(HONEST, tally=counted(approval("hospital-a", target=OTHER))),
        RecipeChanged,
    ),
    ("11 not known", with_release(resume=True), RunMismatch),
    ("11 known", replace(HONEST, run=KNOWN), RunMismatch),
    (
        "11 other recipe",
        replace(with_release(resume=True), run=replace(KNOWN, recipe_hash="ab" * 32)),
        RunMismatch,
    ),
    ("11 another root", resumed(data=changed_data(root="ab" * 32)), RunMismatch),
    ("11 another owner", resumed(data=changed_data(owner_id="ab" * 32)), RunMismatch),
    ("11 less data before", resumed(data=frozenset({DATA})), RunMismatch),
    (
        "11 more data before",
        resumed(data=RELEASE.data | {DATA._replace(dataset_id=digest("third", 16))}),
        RunMismatch,
    ),
    ("11 no data known", resumed(data=frozenset()), RunMismatch),
    ("12 withdrawn", replace(HONEST, withdrawn={DATASET: "hospital-a"}), DatasetWithdrawn),
    ("12 nobody's", replace(HONEST, registered={}), DatasetUnknown),
    ("12 other deployment", with_manifest(compose_hash="ab" * 32), DatasetUnknown),
    ("12 not named", with_manifest(name="payroll"), DatasetUnknown),
    ("12 another owner's id", with_manifest(owner_id="ab" * 32), DatasetUnknown),
    ("12 other owner's name", with_manifest(owner="hospital-b"), DatasetUnknown),
    ("12 purpose", with_manifest(data_use=BINDING), PurposeMismatch),
    ("12 retention", with_manifest(data_use=ENDED), RetentionEnded),
    ("13 root", with_manifest(root="ab" * 32), DatasetMismatch),
    (
        "13 pinned otherwise",
        replace(
            HONEST,
            tally=counted(approval("hospital-a", **{DATASET: "ab" * 32}), approval("hospital-b")),
        ),
        DatasetMismatch,
    ),
    (
        "13 owner pins another",
        replace(
            HONEST,
            tally=counted(approval("hospital-a", **{"ab" * 16: ROOT}), approval("hospital-b")),
        ),
        DatasetMismatch,
    ),
]


def test_honest_facts_are_permitted() -> None:
    permit = HONEST.decide()
    assert [(dataset.dataset_id, dataset.root) for dataset in permit.datasets] == [(DATASET, ROOT)]
    assert permit.datasets[0].owner_id == MANIFEST.owner_id
    assert permit.approved_by == ("hospital-a", "hospital-b")
    assert permit.not_after == NOW + 3600
    assert permit.checkpoint is None


@pytest.mark.claim("C431")
@pytest.mark.parametrize(
    ("case", "error"),
    [pytest.param(case, error, id=name) for name, case, error in RELEASE_REFUSALS],
)
def test_one_broken_fact_refuses(case: Case, error: type[SealtrainError]) -> None:
    with pytest.raises(error) as caught:
        case.decide()
    assert type(caught.value) is error
    assert caught.value.check
    assert caught.value.hint or caught.value.got


PARTS = ("release", "measured", "challenge", "tally", "run", "withdrawn", "registered")


def changes_of(case: Case) -> dict[tuple[str, str | None], Any]:
    """What a case changes of the honest one, by part and, where it has fields, by field."""
    found: dict[tuple[str, str | None], Any] = {}
    for part in PARTS:
        before, after = getattr(HONEST, part), getattr(case, part)
        if part == "registered":
            before, after = before.get(DATASET), after.get(DATASET)
        if before == after:
            continue
        names = getattr(type(after), "model_fields", None) or getattr(
            type(after), "__dataclass_fields__", None
        )
        if part in ("tally", "run") or type(before) is not type(after) or names is None:
            found[part, None] = after
        else:
            for name in names:
                if getattr(before, name) != getattr(after, name):
                    found[part, name] = getattr(after, name)
    return found


def with_both(first: Case, second: Case) -> Case | None:
    """A case with the changes of two; ``None`` where both change the same."""
    one, other = changes_of(first), changes_of(second)
    whole = {part for part, name in one if name is None} & {part for part, _ in other}
    whole |= {part for part, name in other if name is None} & {part for part, _ in one}
    if whole or one.keys() & other.keys():
        return None
    changed: dict[str, Any] = {}
    for (part, name), value in {**one, **other}.items():
        if name is None:
            changed[part] = {} if part == "registered" and value is None else value
            continue
        base = changed.get(part, getattr(HONEST, part))
        base = base.get(DATASET) if part == "registered" else base
        copy = (
            base.model_copy(update={name: value})
            if hasattr(base, "model_copy")
            else replace(base, **{name: value})
        )
        changed[part] = {DATASET: copy} if part == "registered" else copy
    return replace(HONEST, **changed)


def test_the_first_broken_check_is_the_one_that_is_told() -> None:
    """Of every two facts that can be broken together, the one of the earlier check is told."""
    tried = 0
    for place, (name, first, error) in enumerate(RELEASE_REFUSALS):
        for later, second, other in RELEASE_REFUSALS[place + 1 :]:
            numbers = int(name.split()[0]), int(later.split()[0])
            if numbers[0] == numbers[1] and (numbers[0] not in (12, 13) or error is other):
                continue
            both = with_both(first, second)
            if both is None:
                continue
            tried += 1
            with pytest.raises(SealtrainError) as caught:
                both.decide()
            assert caught.value.code == error.code, (name, later)
    assert tried > 300


def spec_rows() -> dict[int, list[str]]:
    """Codes of each check of a release, as the specification lists them."""
    page = (Path(__file__).resolve().parents[3] / "spec/key-release.md").read_text("utf-8")
    table = page.split("### 4.2 Checks")[1].split("Between checks 7 and 8")[0]
    rows = re.findall(r"^\| +(\d+) \| .* \| ([^|]+) \|$", table, re.MULTILINE)
    return {int(number): re.findall(r"`([a-z-]+)`", codes) for number, codes in rows}


@pytest.mark.claim("C593")
def test_the_checks_are_those_of_the_specification_in_its_order() -> None:
    rows = spec_rows()
    assert list(rows) == list(range(1, 16))
    numbers = [check.number for check in CHECKS]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(7, 15))
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    told: dict[int, list[str]] = {}
    for name, _, error in RELEASE_REFUSALS:
        number = int(name.split()[0])
        assert error.code in rows[number], name
        if error.code not in told.setdefault(number, []):
            told[number].append(error.code)
    for number in (12, 13):  # the order inside a row too, as far as the cases above have it
        assert told[number] == [code for code in rows[number] if code in told[number]]


def test_a_tally_of_another_target_is_a_bug_not_a_permit() -> None:
    both = (approval("hospital-a", target=OTHER), approval("hospital-b", target=OTHER))
    with pytest.raises(ValueError):
        replace(HONEST, tally=counted(*both, target=OTHER)).decide()


def test_an_approval_that_pins_this_root_permits() -> None:
    pinned = counted(approval("hospital-a", **{DATASET: ROOT}), approval("hospital-b"))
    assert replace(HONEST, tally=pinned).decide().datasets


def test_pins_of_an_approval_that_does_not_count_do_not_matter() -> None:
    past = approval("hospital-c", ends=NOW - 1, **{DATASET: "ab" * 32})
    assert replace(
        HONEST, tally=counted(approval("hospital-a"), approval("hospital-b"), past)
    ).decide()


def test_a_lock_may_name_the_broker_by_an_id_it_had_before() -> None:
    named = with_measured(brokers=frozenset({digest("former")}))
    assert named.decide().datasets
    assert named.renew().not_after


def test_no_owner_pins_the_data_of_another() -> None:
    """An approval's pins are of its own owner's datasets, whatever ids it repeats."""
    repeated = approval("hospital-b", **{DATASET: "ab" * 32})
    assert replace(HONEST, tally=counted(approval("hospital-a"), repeated)).decide().datasets


def test_data_whose_key_moved_to_another_broker_is_the_same_data() -> None:
    far = RELEASE.elsewhere[0]
    before = frozenset({DATA, RunDataset(far.owner_id, far.dataset_id, far.root)})
    assert resumed(data=before).decide().datasets


def test_a_resume_gets_the_anchor_of_its_run() -> None:
    case = replace(with_release(resume=True), run=KNOWN)
    assert case.decide().checkpoint == KNOWN.checkpoint


@pytest.mark.parametrize(("ends", "lease"), [(NOW, NOW + 1), (NOW + 99, NOW + 100)])
def test_a_lease_ends_with_the_approvals(ends: int, lease: int) -> None:
    short = counted(approval("hospital-a"), approval("hospital-b", ends=ends))
    assert replace(HONEST, tally=short).decide().not_after == lease


RENEWAL_REFUSALS: list[tuple[str, Callable[[], Case], type[SealtrainError]]] = [
    ("11 none", lambda: replace(HONEST, lease=None), LeaseUnknown),
    ("11 other run", lambda: with_lease(run_id="ab" * 16), LeaseUnknown),
    (
        "11 other recipe",
        lambda: replace(HONEST, run=replace(KNOWN, recipe_hash="ab" * 32)),
        LeaseUnknown,
    ),
    ("12 over", lambda: with_lease(not_after=NOW), LeaseStale),
    ("12 superseded", lambda: with_lease(superseded=True), LeaseStale),
    ("13 instance", lambda: with_lease(instance_id="i-2"), LeaseUnknown),
    ("14 lower", lambda: with_checkpoint(4, digest("five")), CheckpointRefused),
    ("14 other digest", lambda: with_checkpoint(5, digest("other")), CheckpointRefused),
    (
        "15 withdrawn",
        lambda: replace(HONEST, withdrawn={DATASET: "hospital-a"}),
        DatasetWithdrawn,
    ),
    ("15 retention", lambda: with_manifest(data_use=ENDED), RetentionEnded),
]


def with_lease(**changed: Any) -> Case:
    return replace(HONEST, lease=replace(LIVE, **changed))


def with_checkpoint(counter: int, sealed: str) -> Case:
    anchor = Anchor(counter=counter, digest=sealed)
    return replace(HONEST, renewal=RENEWAL.model_copy(update={"checkpoint": anchor}))


@pytest.mark.claim("C175")
@pytest.mark.parametrize(("left", "lease"), [(0, 1), (59, 60), (3600, 3600), (9999, 3600)])
def test_no_lease_ends_after_the_retention(left: int, lease: int) -> None:
    kept = with_manifest(data_use=DataUse(retention_until=to_rfc3339(NOW + left)))
    assert kept.decide().not_after == kept.renew().not_after == NOW + lease


def test_a_manifest_for_another_deployment_says_nothing_about_this_one() -> None:
    """Of data that other brokers lend, this one may know a manifest for another recipe."""
    far = MANIFEST.model_copy(
        update={"dataset_id": digest("far", 16), "compose_hash": "ab" * 32, "data_use": ENDED}
    )
    known = replace(HONEST, registered={DATASET: MANIFEST, far.dataset_id: far})
    assert known.decide().not_after == known.renew().not_after == NOW + 3600
    ours = far.model_copy(update={"compose_hash": TARGET.compose_hash})
    held = replace(HONEST, registered={DATASET: MANIFEST, far.dataset_id: ours})
    for decision in (held.decide, held.renew):
        with pytest.raises(RetentionEnded):
            decision()


@pytest.mark.claim("C176")
@pytest.mark.parametrize(
    ("purpose", "bind", "released"),
    [
        ("early detection", True, True),
        ("Early detection", True, False),
        ("early detection ", True, False),
        (None, True, False),
        ("advertising", True, False),
        ("advertising", False, True),
        (None, False, True),
    ],
)
def test_a_purpose_is_compared_where_it_binds(
    purpose: str | None, bind: bool, released: bool
) -> None:
    use = DataUse(purposes=("care", "early detection"), purposes_bind=bind)
    case = replace(with_manifest(data_use=use), measured=replace(MEASURED, purpose=purpose))
    if released:
        assert case.decide().datasets
        return
    with pytest.raises(PurposeMismatch) as caught:
        case.decide()
    assert (caught.value.owner, caught.value.dataset) == ("hospital-a", "biopsies")


@pytest.mark.parametrize(
    ("case", "error"),
    [pytest.param(case, error, id=name) for name, case, error in RENEWAL_REFUSALS],
)
def test_one_broken_fact_refuses_a_renewal(
    case: Callable[[], Case], error: type[SealtrainError]
) -> None:
    with pytest.raises(error) as caught:
        case().renew()
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("case", "error"),
    [
        pytest.param(case, error, id=name)
        for name, case, error in RELEASE_REFUSALS
        if name.split()[0] in ("3", "4", "7", "8", "9", "10")
    ],
)
def test_a_renewal_needs_what_a_release_needs(case: Case, error: type[SealtrainError]) -> None:
    with pytest.raises(error):
        case.renew()


def test_a_renewal_moves_the_anchor_forward() -> None:
    assert HONEST.renew().checkpoint == KNOWN.checkpoint
    assert with_checkpoint(5, digest("five")).renew().checkpoint == KNOWN.checkpoint
    moved = with_checkpoint(6, digest("six")).renew().checkpoint
    assert moved == Anchor(counter=6, digest=digest("six"))


def test_admission_is_part_of_the_decision() -> None:
    case = with_challenge(used=True)
    with pytest.raises(ChallengeReplayed):
        admit(case.release, case.challenge, now=NOW, limits=case.limits)

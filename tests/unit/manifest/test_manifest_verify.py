"""An honest manifest is accepted, every check reports itself, and each contradiction is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifest_world import FINISHED, LEASE_S, NOW, RELEASED, START, World
from run_logs import fields_of
from world import OWNERS, digest, signer

from sealtrain.attest.errors import SimulatedEvidence
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.errors import (
    ApprovalExpired,
    ApprovalRevoked,
    ApprovalsMissing,
    ApprovalUnknown,
    DatasetMismatch,
)
from sealtrain.consortium.receipts import Anchor, Lease
from sealtrain.errors import EgressRefused, LeaseStale, RecipeChanged, Refused, SignatureInvalid
from sealtrain.manifest.errors import ClaimContradicted, SubjectMismatch, TrustMismatch
from sealtrain.manifest.verify import CHECKS, Check, examine, verify_manifest
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.signing.errors import ProofInvalid, RunLogBroken
from sealtrain.signing.runlog import RunLog
from sealtrain.signing.target import Target

pytestmark = pytest.mark.claim("C26")

Change = Callable[[World, dict[str, Any]], None]


def failed(world: World, data: bytes, **trust: Any) -> Check:
    report = examine(data, world.trust(**trust), artefacts=world.artefacts, now=NOW)
    return next(check for check in report.checks if check.outcome == "failed")


def test_an_honest_manifest_is_accepted_and_every_check_passed(world: World, honest: bytes) -> None:
    seen: list[Check] = []
    verified = verify_manifest(
        honest, world.trust(), artefacts=world.artefacts, now=NOW, on_check=seen.append
    )
    assert [check.name for check in verified.checks] == [name for name, _, _ in CHECKS]
    assert {check.outcome for check in verified.checks} == {"passed"}
    assert tuple(seen) == verified.checks
    assert verified.simulated
    assert verified.predicate.run.metrics["accuracy"] == 0.9204
    assert verified.lock.recipe.name == "breast-cancer-diagnosis"


def test_the_page_numbers_the_checks_as_the_code_runs_them(repository: Path) -> None:
    page = (repository / "spec/run-manifest.md").read_text("utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    numbered = [row[2].strip(" `") for row in rows if row[1].strip().isdigit()]
    assert numbered == [name for name, _, _ in CHECKS]


def test_not_looking_at_the_files_is_said_and_accepted(world: World, honest: bytes) -> None:
    verified = verify_manifest(honest, world.trust(), artefacts=None, now=NOW)
    assert verified.checks[-1].outcome == "not-done"
    assert any("not looked at" in limit for limit in verified.limits)


def test_what_the_trust_file_leaves_open_is_among_the_limits(world: World, honest: bytes) -> None:
    trust = world.trust(compose_hash="any", app_id="any")
    verified = verify_manifest(honest, trust, artefacts=None, now=NOW)
    assert any("any deployment document" in limit for limit in verified.limits)
    assert any("any app id" in limit for limit in verified.limits)
    assert any("any guest image" in limit for limit in verified.limits)


def test_a_softened_limit_is_shown_in_the_readers_own_words(world: World) -> None:
    def soften(facts: dict[str, Any]) -> None:
        facts["limits"][0]["text"] = "Nothing to see here."

    report = examine(world.manifest(soften), world.trust(), artefacts=None, now=NOW)
    assert report.accepted
    assert not any("Nothing to see" in limit for limit in report.limits)


def test_independent_checks_are_done_after_one_failed(world: World, honest: bytes) -> None:
    report = examine(
        honest, world.trust(consortium_id="00" * 32), artefacts=world.artefacts, now=NOW
    )
    outcomes = {check.name: check.outcome for check in report.checks}
    assert outcomes.pop("trust") == "failed"
    assert set(outcomes.values()) == {"passed"}
    assert isinstance(report.refusal, TrustMismatch)
    assert report.to_dict()["error"]["code"] == "trust-mismatch"


def test_checks_that_build_on_a_failed_one_say_so(world: World, honest: bytes) -> None:
    brokers = {
        "signing_keys": ["MCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],
        "threshold": 1,
        "datasets": "all",
    }
    trust = world.trust(brokers=brokers)
    report = examine(honest, trust, artefacts=world.artefacts, now=NOW)
    outcomes = {check.name: check for check in report.checks}
    assert outcomes["releases"].outcome == "failed"
    assert outcomes["ledger"].outcome == "not-done"
    assert "'releases'" in outcomes["ledger"].detail
    assert outcomes["recipe"].outcome == "passed"


# --- Lies told by whoever holds a genuine guest ------------------------------------------------


def _set(*path: Any, to: Any) -> Change:
    def change(world: World, facts: dict[str, Any]) -> None:
        value = to(world) if callable(to) else to
        place = facts
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def _an_owner_less(world: World) -> Any:
    consortium = world.consortium.to_dict()
    thresholds = {name: min(count, 2) for name, count in consortium["thresholds"].items()}
    return consortium | {"owners": consortium["owners"][:2], "thresholds": thresholds}


def _releases(*changes: dict[str, Any]) -> Change:
    def change(world: World, facts: dict[str, Any]) -> None:
        facts["releases"] = world.record(*(world.receipt(**change) for change in changes))

    return change


def _lease(end: int, name: str = "lease") -> Lease:
    return Lease(lease_id=digest(name), not_after=to_rfc3339(end))


def _log(at: int) -> Callable[[World], dict[str, Any]]:
    def build(_world: World) -> dict[str, Any]:
        log = RunLog("5a" * 16)
        log.append("run.started", fields_of("run.started"), at)
        return {"head": log.head, "entries": log.entries}

    return build


def _backwards(world: World, facts: dict[str, Any]) -> None:
    facts["run"]["started_at"] = to_rfc3339(FINISHED + 1)
    facts["run_log"] = _log(FINISHED)(world)


OTHER = Target(app_id="ab" * 20, compose_hash="cd" * 32, recipe_hash="ef" * 32)
LIES: dict[str, tuple[str, type[Refused], Change]] = {
    "an event before the run": (
        "run-log",
        ClaimContradicted,
        _set("run_log", to=_log(START - 7200)),
    ),
    "another lock beside the measured one": (
        "recipe",
        ClaimContradicted,
        _set("recipe", "lock", "recipe", "trainer", "max_steps", to=301),
    ),
    "another recipe hash": (
        "recipe",
        ClaimContradicted,
        _set("recipe", "recipe_hash", to="00" * 32),
    ),
    "something that is no lock": ("recipe", ClaimContradicted, _set("recipe", "lock", to={"a": 1})),
    "another app id": ("appraisal", Refused, _set("deployment", "app_id", to="00" * 20)),
    "another compose hash": (
        "appraisal",
        Refused,
        _set("deployment", "compose_hash", to="00" * 32),
    ),
    "a lower threshold": (
        "recipe",
        ClaimContradicted,
        _set("consortium", "thresholds", "approve", to=1),
    ),
    "an owner less": (
        "recipe",
        ClaimContradicted,
        _set("consortium", to=_an_owner_less),
    ),
    "a dataset left out": (
        "datasets",
        DatasetUnknown,
        _set("datasets", to=lambda w: [dataset.to_dict() for dataset in w.datasets.values()][:3]),
    ),
    "a dataset twice": (
        "datasets",
        DatasetMismatch,
        _set("datasets", to=lambda w: [dataset.to_dict() for dataset in w.datasets.values()] * 2),
    ),
    "a dataset of another deployment": (
        "datasets",
        DatasetMismatch,
        _set("datasets", 0, to=lambda w: _foreign_dataset(w)),
    ),
    "a dataset signed by another owner": (
        "datasets",
        DatasetMismatch,
        _set("datasets", 0, to=lambda w: _stolen_dataset(w)),
    ),
    "a dataset with another root": (
        "releases",
        DatasetMismatch,
        _set(
            "datasets",
            0,
            to=lambda w: w.dataset("hospital-a", "biopsies", root="99" * 32).to_dict(),
        ),
    ),
    "no release": ("releases", ClaimContradicted, _set("releases", to=[])),
    "a receipt by another broker": (
        "releases",
        SignatureInvalid,
        _set("releases", to=lambda w: w.record(w.receipt(), key=signer("other broker"))),
    ),
    "a receipt of another run": ("releases", ClaimContradicted, _releases({"run_id": "00" * 16})),
    "a receipt of another recipe": (
        "releases",
        ClaimContradicted,
        _releases({"recipe_hash": "00" * 32}),
    ),
    "a receipt without datasets": ("releases", DatasetMismatch, _releases({"datasets": ()})),
    "a receipt whose lease ends before it begins": (
        "releases",
        Refused,
        _releases({"lease": _lease(RELEASED)}),
    ),
    "an owner of the data who did not approve": (
        "approvals",
        ApprovalsMissing,
        _set("approvals", to=lambda w: [w.approvals[name].to_dict() for name in OWNERS[:2]]),
    ),
    "a receipt of a hardware guest": (
        "simulation",
        ClaimContradicted,
        _releases({"simulated": False}),
    ),
    "one approval short": (
        "approvals",
        ApprovalsMissing,
        _set("approvals", to=lambda w: [w.approvals["hospital-a"].to_dict()]),
    ),
    "one approval twice": (
        "approvals",
        ApprovalsMissing,
        _set("approvals", to=lambda w: [w.approvals["hospital-a"].to_dict()] * 2),
    ),
    "an approval that had expired": (
        "approvals",
        ApprovalExpired,
        _set(
            "approvals",
            1,
            to=lambda w: w.approval("hospital-b", not_after=RELEASED - 1).to_dict(),
        ),
    ),
    "an approval signed after the release": (
        "approvals",
        ApprovalsMissing,
        _set("approvals", 1, to=lambda w: w.approval("hospital-b", signed_at=FINISHED).to_dict()),
    ),
    "an approval by nobody here": (
        "approvals",
        ApprovalUnknown,
        _set("approvals", 1, to=lambda w: w.approval("hospital-x").to_dict()),
    ),
    "approvals of another recipe": (
        "approvals",
        RecipeChanged,
        _set(
            "approvals",
            to=lambda w: [w.approval(name, target=OTHER).to_dict() for name in OWNERS],
        ),
    ),
    "a revocation before the release": (
        "approvals",
        ApprovalRevoked,
        _set(
            "approvals",
            to=lambda w: [
                *(approval.to_dict() for approval in w.approvals.values()),
                w.revocation("hospital-c", signed_at=START).to_dict(),
            ],
        ),
    ),
    "an approval that pins another root": (
        "approvals",
        DatasetMismatch,
        _set("approvals", 0, to=lambda w: _other_pin(w)),
    ),
    "a proof of another entry": (
        "ledger",
        ProofInvalid,
        _set("releases", 0, "proof", to=lambda w: w.record(w.receipt(resume=True))[0]["proof"]),
    ),
    "a proof under another root": (
        "ledger",
        ProofInvalid,
        _set("releases", 0, "proof", "path", 0, to="00" * 32),
    ),
    "a proof by another log": (
        "ledger",
        SignatureInvalid,
        _set(
            "releases",
            0,
            "proof",
            to=lambda w: w.record(w.receipt(), key=signer("other log"))[0]["proof"],
        ),
    ),
    "an end before the start": ("times", ClaimContradicted, _backwards),
    "a resume that asked for no keys": (
        "times",
        ClaimContradicted,
        _set(
            "run",
            "resumes",
            to=[{"at": to_rfc3339(START + 50), "counter": 1, "step": 50, "checkpoint": "aa" * 32}],
        ),
    ),
    "a release after the end": (
        "times",
        ClaimContradicted,
        _releases(
            {
                "released_at": to_rfc3339(FINISHED + 1000),
                "lease": _lease(FINISHED + 2000),
            }
        ),
    ),
    "a run beyond its lease": ("times", LeaseStale, _releases({"lease": _lease(RELEASED + 60)})),
    "a run beyond its last renewal": (
        "times",
        LeaseStale,
        _releases(
            {},
            {
                "kind": "renewal",
                "datasets": (),
                "released_at": to_rfc3339(RELEASED + 61),
                "lease": _lease(RELEASED + 90),
            },
        ),
    ),
    "a renewal of another lease": (
        "times",
        ClaimContradicted,
        _releases(
            {},
            {
                "kind": "renewal",
                "datasets": (),
                "released_at": to_rfc3339(RELEASED + 61),
                "lease": _lease(RELEASED + LEASE_S, "another"),
            },
        ),
    ),
    "a renewal first": (
        "times",
        ClaimContradicted,
        _releases({"kind": "renewal", "datasets": ()}, {"released_at": to_rfc3339(RELEASED + 1)}),
    ),
    "a metric the recipe does not release": (
        "policy",
        EgressRefused,
        _set("run", "metrics", "grad_norm", to=1.5),
    ),
    "such a metric in the history": (
        "policy",
        EgressRefused,
        _set("run", "history", 3, "values", "secret", to=1.5),
    ),
    "a metric too fine": ("policy", EgressRefused, _set("run", "metrics", "loss", to=0.123456)),
    "another recipient": (
        "policy",
        ClaimContradicted,
        _set("outputs", "recipients", to=["hospital-a", "hospital-b", "mallory"]),
    ),
    "a recipient less": (
        "policy",
        ClaimContradicted,
        _set("outputs", "recipients", to=["hospital-a"]),
    ),
    "a file that is not there": (
        "artefacts",
        SubjectMismatch,
        _set("outputs", "files", 0, "size", to=1),
    ),
}


def _foreign_dataset(world: World) -> dict[str, Any]:
    from sealtrain.sealing.stanza import RecipeBinding

    binding = RecipeBinding(app_id="ab" * 20, compose_hash="cd" * 32, owner_id="00" * 32)
    return world.dataset("hospital-a", "biopsies", binding=binding).to_dict()


def _stolen_dataset(world: World) -> dict[str, Any]:
    return world.dataset("hospital-b", "biopsies", owner_name="hospital-a").to_dict()


def _other_pin(world: World) -> dict[str, Any]:
    from sealtrain.consortium.approvals import DatasetPin

    pin = world.pins["hospital-b/biopsies"]
    other = DatasetPin(dataset_id=pin.dataset_id, root="77" * 32)
    return world.approval("hospital-a", datasets=[other]).to_dict()


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lie_under_a_genuine_quote_is_refused_by_the_check_that_is_for_it(
    world: World, lie: str
) -> None:
    name, error, change = LIES[lie]
    check = failed(world, world.manifest(lambda facts: change(world, facts)))
    assert check.name == name
    assert isinstance(check.error, error)
    assert check.error.exit_code == 3


def test_a_revocation_after_the_release_does_not_undo_the_run(world: World) -> None:
    def later(facts: dict[str, Any]) -> None:
        facts["approvals"].append(world.revocation("hospital-c", signed_at=FINISHED).to_dict())

    report = examine(world.manifest(later), world.trust(), artefacts=None, now=NOW)
    assert report.accepted


def test_a_resumed_and_renewed_run_is_accepted(world: World) -> None:
    anchor = Anchor(counter=2, digest="aa" * 32)

    def resumed(facts: dict[str, Any]) -> None:
        facts["releases"] = world.record(
            world.receipt(lease=_lease(RELEASED + 60)),
            world.receipt(
                kind="renewal",
                datasets=(),
                released_at=to_rfc3339(RELEASED + 50),
                lease=_lease(RELEASED + 120),
            ),
            world.receipt(
                resume=True,
                released_at=to_rfc3339(RELEASED + 300),
                lease=_lease(RELEASED + LEASE_S, "second"),
                checkpoint=anchor,
            ),
        )
        facts["run"]["resumes"] = [
            {
                "at": to_rfc3339(RELEASED + 301),
                "counter": 2,
                "step": 100,
                "checkpoint": "aa" * 32,
            }
        ]

    verified = verify_manifest(
        world.manifest(resumed), world.trust(), artefacts=world.artefacts, now=NOW
    )
    assert len(verified.predicate.releases) == 3


def test_a_broken_run_log_cannot_even_be_built(world: World) -> None:
    def drop(facts: dict[str, Any]) -> None:
        del facts["run_log"]["entries"][1]

    with pytest.raises(RunLogBroken):
        world.manifest(drop)


@pytest.mark.claim("C15")
@pytest.mark.claim("C27")
@pytest.mark.parametrize("name", ["simulated", "hardware"])
def test_a_simulated_run_needs_two_words_of_trust(world: World, honest: bytes, name: str) -> None:
    trust = {
        "simulated": world.trust(simulated="refuse"),
        "hardware": world.trust(
            appraisal=world.trust_document()["appraisal"] | {"platform": "dstack", "root": "intel"}
        ),
    }[name]
    with pytest.raises(SimulatedEvidence):
        verify_manifest(honest, trust, artefacts=world.artefacts, now=NOW)


def test_a_run_that_ends_in_the_future_is_refused(world: World, honest: bytes) -> None:
    report = examine(honest, world.trust(), artefacts=world.artefacts, now=START)
    assert [check.name for check in report.checks if check.outcome == "failed"] == ["times"]


def test_missing_and_changed_files_are_told_apart(world: World, honest: bytes, empty: Path) -> None:
    report = examine(honest, world.trust(), artefacts=empty, now=NOW)
    assert isinstance(report.refusal, SubjectMismatch)
    assert report.refusal.got is None
    shutil.copytree(world.artefacts, empty, dirs_exist_ok=True)
    data = bytearray((empty / world.subjects[0].name).read_bytes())
    data[-1] ^= 1
    (empty / world.subjects[0].name).write_bytes(data)
    report = examine(honest, world.trust(), artefacts=empty, now=NOW)
    assert isinstance(report.refusal, SubjectMismatch)
    assert report.refusal.expected == world.subjects[0].sha256

"""A guest says with which code its run failed, and nobody else says it for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from owner_acts import ACTS, Asking, post, run_begun
from release_world import audited, served_world

from sealtrain.base.canonical import canonical_json
from sealtrain.base.secret import Secret
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import ERROR_CODES, DataInvalid, LeaseStale
from sealtrain.ledger.entry_rules import EntryRules
from sealtrain.release.errors import LeaseUnknown
from sealtrain.release.lease_code import show_lease
from sealtrain.release.messages import FailureReport

pytestmark = [pytest.mark.long, pytest.mark.claim("C138")]

ROOT = Path(__file__).resolve().parents[2]
WORDS = "patient-4711-took-part-and-the-test-was-positive"
"""Of a record, in the form that codes have."""


def document_of(made: Asking) -> dict[str, Any]:
    """What a guest hands in when its run failed."""
    assert made.grant is not None
    named = {"run_id": made.grant.run_id, "lease_id": made.grant.lease_id}
    return {"version": 1, **named, "code": "rank-lost"}


def report(made: Asking, code: str = "record-invalid", **changed: Any) -> None:
    assert made.grant is not None
    given: dict[str, Any] = {
        "run_id": made.grant.run_id,
        "lease_id": made.grant.lease_id,
        "lease_key": made.grant.lease_key,
    }
    with BrokerClient(made.url) as client:
        client.report_failure(code=code, **given | changed)


def test_a_failure_is_recorded_by_its_code_and_ends_the_lease(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        made.renew()
        report(made)
        entry = list(world.ledger.entries())[-1]
        assert made.grant is not None
        assert (entry["kind"], entry["body"]) == (
            "failure",
            {
                "run_id": made.grant.run_id,
                "lease_id": made.grant.lease_id,
                "code": "record-invalid",
            },
        )
        with pytest.raises(LeaseStale):
            made.renew()
        made.grant = made.obtain(run_id=made.grant.run_id, resume=True)
        made.renew()
        assert audited(world).holds


def test_what_was_recorded_on_the_way_ends_no_later_lease(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        assert made.grant is not None
        body = canonical_json(document_of(made))
        shown = show_lease(made.grant.lease_id, made.grant.lease_key, body)
        assert post(f"{url}/v1/failures", body, shown)[0] == 200
        made.grant = made.obtain(run_id=made.grant.run_id, resume=True)
        size = world.ledger.size
        for _ in range(5):
            assert post(f"{url}/v1/failures", body, shown) == (403, "lease-stale")
        assert world.ledger.size == size
        made.renew()


def test_nobody_else_ends_a_lease(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made, other = run_begun(world, url), run_begun(world, url)
        assert made.grant is not None
        assert other.grant is not None
        size = world.ledger.size
        with pytest.raises(LeaseUnknown):
            report(made, lease_key=Secret(bytes(range(32))))
        with pytest.raises(LeaseUnknown):
            report(made, run_id=other.grant.run_id)
        with pytest.raises(LeaseUnknown):
            report(made, lease_key=other.grant.lease_key)
        body = canonical_json(document_of(made))
        own = show_lease(other.grant.lease_id, other.grant.lease_key, body)
        assert post(f"{url}/v1/failures", body, own) == (403, "signature-invalid")
        assert post(f"{url}/v1/failures", body, {}) == (403, "lease-unknown")
        assert world.ledger.size == size
        made.renew()


@pytest.mark.parametrize(
    "change",
    [
        {"code": "a row: 17"},
        {"code": ""},
        {"code": "x" * 65},
        {"code": WORDS},
        {"code": "Rank-Lost"},
        {"code": "rank-lost "},
        {"code": "exit-1"},
        {"version": 2},
        {"more": 1},
    ],
    ids=str,
)
def test_a_report_says_a_code_and_nothing_more(change: dict[str, Any], tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        assert made.grant is not None
        body = json.dumps(document_of(made) | change).encode()
        shown = show_lease(made.grant.lease_id, made.grant.lease_key, body)
        size = world.ledger.size
        assert post(f"{url}/v1/failures", body, shown)[0] == 400
        assert world.ledger.size == size
        made.renew()


def test_a_guest_sends_no_word_that_is_no_code(tmp_path: Path) -> None:
    """A script has the guest report a word of its records, in the form that codes have."""
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        size = world.ledger.size
        with pytest.raises(DataInvalid):
            report(made, code=WORDS)
        assert world.ledger.size == size
        made.renew()


def test_each_code_of_the_list_is_one_and_no_other_word(tmp_path: Path) -> None:
    listed = json.loads((ROOT / "spec/schema/error-codes.json").read_text("utf-8"))
    assert listed == sorted(ERROR_CODES)
    for code in listed:
        assert FailureReport(version=1, run_id="ab" * 16, lease_id="cd" * 32, code=code)
        for other in (code + "x", code + "-", code.upper(), f" {code}", f"{code}\n"):
            assert other not in ERROR_CODES


@pytest.mark.parametrize("kind", ["failure", "refusal"])
def test_an_audit_finds_words_that_are_no_code(kind: str, tmp_path: Path) -> None:
    """The broker's operator changed the broker so that it records what a script chose."""
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        assert made.grant is not None
        named = {"run_id": made.grant.run_id, "lease_id": made.grant.lease_id}
        refused = {"action": "release", "check": None}
        bodies = {"failure": named, "refusal": refused}
        assert audited(world).holds
        world.ledger.append(kind, bodies[kind] | {"code": WORDS})
        assert [finding.check for finding in audited(world).findings] == [kind]


@pytest.mark.parametrize("action", [WORDS, "", None, 7, ["release"]], ids=str)
def test_an_audit_finds_words_that_are_no_action(action: Any, tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, _url):
        world.ledger.append("refusal", {"action": action, "code": "rank-lost", "check": None})
        assert [finding.check for finding in audited(world).findings] == ["refusal"]


def test_an_audit_finds_a_lease_that_was_used_after_it_was_given_back(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        made.renew()
        ACTS["failure"](made)
        entries = list(world.ledger.entries())
    renewal = next(entry for entry in entries if entry["kind"] == "renewal")
    failure = {
        "run_id": renewal["body"]["run_id"],
        "lease_id": renewal["body"]["lease_id"],
        "code": "rank-lost",
    }
    rules = EntryRules(world.consortium)
    for entry in entries[: entries.index(renewal)]:
        assert list(rules.problems(entry["kind"], world.clock(), entry["body"])) == []
    assert list(rules.problems("failure", world.clock(), failure)) == []
    assert len(list(rules.problems("renewal", world.clock(), renewal["body"]))) == 1
    assert len(list(rules.problems("failure", world.clock(), failure))) == 1
    strange = failure | {"run_id": "ab" * 16}
    assert len(list(rules.problems("failure", world.clock(), strange))) >= 1

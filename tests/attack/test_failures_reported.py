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
from sealtrain.client.api import BrokerClient
from sealtrain.errors import LeaseStale, LeaseUnknown
from sealtrain.ledger.entry_rules import EntryRules
from sealtrain.release.lease_code import show_lease

pytestmark = pytest.mark.claim("C138")


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
    [{"code": "a row: 17"}, {"code": ""}, {"code": "x" * 65}, {"version": 2}, {"more": 1}],
    ids=str,
)
def test_a_report_says_a_code_and_nothing_more(change: dict[str, Any], tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        assert made.grant is not None
        body = json.dumps(document_of(made) | change).encode()
        shown = show_lease(made.grant.lease_id, made.grant.lease_key, body)
        assert post(f"{url}/v1/failures", body, shown)[0] == 400
        made.renew()


def test_an_audit_finds_a_lease_that_was_used_after_it_was_given_back(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        made.renew()
        ACTS["failure"](made)
        entries = list(world.ledger.entries())
    renewal = next(one for one in entries if one["kind"] == "renewal")
    failure = {
        "run_id": renewal["body"]["run_id"],
        "lease_id": renewal["body"]["lease_id"],
        "code": "rank-lost",
    }
    rules = EntryRules(world.consortium)
    for one in entries[: entries.index(renewal)]:
        assert list(rules.problems(one["kind"], world.clock(), one["body"])) == []
    assert list(rules.problems("failure", world.clock(), failure)) == []
    assert len(list(rules.problems("renewal", world.clock(), renewal["body"]))) == 1
    assert len(list(rules.problems("failure", world.clock(), failure))) == 1
    strange = failure | {"run_id": "ab" * 16}
    assert len(list(rules.problems("failure", world.clock(), strange))) >= 1

"""What a broker's ledger shows of one run: releases, leases, events. Bounded, and never believed.

Entries come from ``GET /v1/ledger/search``, which proves nothing; a page says so. ``sealtrain log
audit`` verifies a whole ledger, and ``sealtrain run wait`` proves a completed run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.release.errors import AnswerInvalid

if TYPE_CHECKING:
    from sealtrain.client.broker_api import BrokerClient

_MOST_PAGES: Final = 20
_WORDS: Final = ("by", "event", "code", "action", "check", "checkpoint", "manifest_digest", "owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRelease:
    """A release of keys, or the renewal of its lease.

    Attributes:
        index: Of the entry.
        at: When, by the broker.
        kind: ``release`` or ``renewal``.
        datasets: Ids of the datasets whose keys went.
        lease: Digest that names the lease.
        until: End of the lease.
        evidence: Digest of the guest's evidence.
        checkpoint: Counter of the checkpoint that was anchored with it.
        simulated: The guest was simulated.
        privacy: Owner, dataset, epsilon reserved and its budget.
    """

    index: int
    at: str
    kind: str
    datasets: tuple[str, ...]
    lease: str
    until: str
    evidence: str
    checkpoint: str
    simulated: bool
    privacy: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Another entry that names the run."""

    index: int
    at: str
    kind: str
    who: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntries:
    """Everything that was found of a run, newest first.

    Attributes:
        grants: Releases and renewals.
        events: All other entries.
        compose_hash: Of the deployment that keys were released to.
        more: The ledger has further entries that a page does not read.
    """

    grants: tuple[ShownRelease, ...]
    events: tuple[Said, ...]
    compose_hash: str | None
    more: bool


def entries_of(
    client: BrokerClient, *, run_id: str | None = None, submission_id: str | None = None
) -> RunEntries:
    """Read the entries that name a run and a submission.

    Raises:
        AnswerInvalid: An entry is no entry.
        BrokerUnreachable: The broker does not answer in time.
    """
    found: dict[int, Mapping[str, Any]] = {}
    more = False
    asking: list[dict[str, Any]] = [{"run_id": run_id}, {"submission_id": submission_id}]
    for asked in asking:
        if None in asked.values():
            continue
        place: int | None = 0
        for _ in range(_MOST_PAGES):
            page = client.ledger_search(start=place or 0, **asked)
            found |= {entry.index: entry.entry for entry in page.entries}
            if page.end is None or page.end <= (place or 0):
                place = None
                break
            place = page.end
        more = more or place is not None
    ordered = sorted(found.items(), reverse=True)
    grants = tuple(
        _grant(*entry) for entry in ordered if entry[1].get("kind") in ("release", "renewal")
    )
    return RunEntries(
        grants=grants,
        events=tuple(
            _describe_entry(*entry)
            for entry in ordered
            if entry[1].get("kind") not in ("release", "renewal")
        ),
        compose_hash=next(
            (
                _text(_body(entry)["compose_hash"])
                for _, entry in ordered
                if "compose_hash" in _body(entry)
            ),
            None,
        ),
        more=more,
    )


def _grant(index: int, entry: Mapping[str, Any]) -> ShownRelease:
    body = _body(entry)
    anchor = body.get("checkpoint")
    return ShownRelease(
        index=index,
        at=_text(entry.get("at")),
        kind=_text(entry.get("kind")),
        datasets=tuple(
            _text(dataset.get("dataset_id"))
            for dataset in (*_list(body.get("datasets")), *_list(body.get("elsewhere")))
        ),
        lease=_text(body.get("lease_id")),
        until=_text(body.get("not_after")),
        evidence=_text(body.get("evidence_digest")),
        checkpoint=_text(anchor.get("counter")) if isinstance(anchor, dict) else "",
        simulated=body.get("simulated") is not False,
        privacy=tuple(
            (
                _text(reserve.get("owner")),
                _text(reserve.get("name")),
                _text(reserve.get("epsilon")),
                _text(reserve.get("budget")),
            )
            for reserve in _list(body.get("privacy"))
        ),
    )


def _describe_entry(index: int, entry: Mapping[str, Any]) -> Said:
    body, kind = _body(entry), _text(entry.get("kind"))
    who = {"run-event": "runner", "submission": "submitter", "run-stop": "submitter"}
    return Said(
        index=index,
        at=_text(entry.get("at")),
        kind=kind,
        who=who.get(kind, "broker"),
        words=", ".join(
            f"{name} {_text(body[name])}" for name in _WORDS if body.get(name) is not None
        ),
    )


def _body(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    body = entry.get("body")
    if not isinstance(body, dict):
        raise AnswerInvalid("an entry of the ledger is malformed", check="ledger")
    return body


def _list(value: object) -> Iterable[Mapping[str, Any]]:
    return (
        [item for item in value if isinstance(item, dict)][:1024] if isinstance(value, list) else []
    )


def _text(value: object) -> str:
    """A value of an entry, cut to what a row has room for."""
    return "" if value is None else str(value)[:200]

"""Compare a chain of manifests with a ledger: nothing of it is left out, every due time ended.

A chain by itself cannot show that its newest runs are missing, nor why there was no run on a day.
The ledger can (spec/schedule.md §5.1). Entries come in their order, from an audit: this module
verifies no tree head and no signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.errors import RunChainBroken, SealtrainError
from sealtrain.manifest.chain import Chain
from sealtrain.recipe.duetimes import SKIPPED, find_due_of_data, iterate_due_times, read_due_name
from sealtrain.recipe.schedule import Schedule
from sealtrain.signing.dsse import Envelope

_FINAL: Final = frozenset({"completed", "failed", "stopped", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """How a due time of the schedule ended.

    Attributes:
        at: Due time, RFC 3339.
        state: ``completed``, ``failed``, ``stopped``, ``skipped``; ``expired`` where no runner took
            it in time; ``open`` while it has not ended.
        code: Why, of ``failed`` and ``skipped``.
        number: Of the run in the chain; ``None`` where it has no manifest there.
    """

    at: str
    state: str
    code: str | None
    number: int | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"due": self.at, "state": self.state, "code": self.code, "number": self.number}


@dataclass(slots=True)
class _Asked:
    due: int
    not_after: str
    index: int
    compose_hash: str
    skips: bool
    state: str = "open"
    code: str | None = None
    run_id: str | None = None
    ended: int | None = None

    def covers(self, index: int) -> bool:
        """Data before it was no longer new at an entry, because a run was asked for."""
        skipped = self.state == "skipped" and self.ended is not None and self.ended < index
        return not (self.skips or skipped)


@dataclass(slots=True)
class Recorded:
    """What a ledger holds of one recipe's runs; give it every entry in order."""

    recipe_hash: str
    manifests: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Digest → run id, and digest of the manifest that it continues."""
    registered: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Hash of a deployment document → index and time of each entry that registers data for it."""
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _latest: str = ""

    def state_of(self, asked: _Asked) -> str:
        """State of a due time, as ``Due`` has it."""
        if asked.state == "open" and asked.not_after < self._latest:
            return "expired"
        return "open" if asked.state == "claimed" else asked.state

    def entry(self, index: int, entry: Mapping[str, Any]) -> None:
        """Take the next entry; kinds that say nothing of chains are passed over."""
        kind, body = entry.get("kind"), entry.get("body")
        if not isinstance(body, dict):
            return
        self._latest = max(self._latest, str(entry.get("at")))
        if kind == "manifest":
            continues = body.get("continues") or {}
            before = continues.get("manifest_digest") if isinstance(continues, dict) else None
            self.manifests[str(body.get("manifest_digest"))] = (str(body.get("run_id")), before)
        elif kind == "submission" and body.get("recipe_hash") == self.recipe_hash:
            due = read_due_name(str(body.get("name")), self.recipe_hash)
            if due is not None:
                not_after, skips = _read_submission(body)
                compose_hash = str(body.get("compose_hash"))
                made = _Asked(due, not_after, index, compose_hash, skips)
                self._asked.setdefault(str(body.get("submission_id")), made)
        elif kind == "dataset":
            known = self.registered.setdefault(str(body.get("compose_hash")), [])
            known.append((index, from_rfc3339(str(entry.get("at")))))
        elif kind == "run-event":
            asked = self._asked.get(str(body.get("submission_id")))
            if asked is not None and asked.state not in _FINAL:
                event = str(body.get("event"))
                asked.state = event if event in _FINAL else "claimed"
                asked.code = body.get("code")
                asked.run_id = body.get("run_id") or asked.run_id
                asked.ended = index

    @property
    def asked(self) -> Sequence[_Asked]:
        """What was submitted for due times, oldest due time first."""
        return sorted(self._asked.values(), key=lambda asked: asked.due)


def require_whole(
    chain: Chain, recorded: Recorded, schedule: Schedule | None = None
) -> tuple[Due, ...]:
    """Verify that a ledger knows of no more runs of a chain, and how each due time ended.

    1. every manifest of the chain is recorded, of the same run;
    2. no recorded manifest continues one of them but the next one of the chain;
    3. every due time before the last one that was submitted was submitted, too; of new data: each
       one that was submitted is the one that the ledger's data made;
    4. a due time that completed has its manifest in the chain.

    Args:
        chain: Verified.
        recorded: The ledger's entries.
        schedule: Of the recipe's lock; without one, check 3 is left out.

    Returns:
        Every due time that was submitted, oldest first.

    Raises:
        RunChainBroken: One of these does not hold.
        ExtraMissing: As ``iterate_due_times``.
    """
    number = {link.run_id: link.number for link in chain.links}
    for link in chain.links:
        known = recorded.manifests.get(link.digest)
        if known is None or known[0] != link.run_id:
            raise _broken("not recorded", f"run {link.number}", "an entry of kind manifest")
    mine = {link.digest: link.number for link in chain.links}
    for digest, (_, before) in recorded.manifests.items():
        if before in mine and mine.get(digest) != mine[before] + 1:
            raise _broken("left out", digest, f"no manifest that follows run {mine[before]}")
    asked = recorded.asked
    if schedule is not None and schedule.when == "new-data":
        _require_due_by_data(recorded, schedule)
    elif schedule is not None and asked:
        _require_no_silence([request.due for request in asked], schedule)
    for request in asked:
        if request.state == "completed" and request.run_id not in number:
            raise _broken("left out", request.run_id, f"the manifest of {to_rfc3339(request.due)}")
    return tuple(
        Due(
            at=to_rfc3339(request.due),
            state=recorded.state_of(request),
            code=request.code,
            number=None if request.run_id is None else number.get(request.run_id),
        )
        for request in asked
    )


def _read_submission(body: Mapping[str, Any]) -> tuple[str, bool]:
    """Last second at which a submission could be claimed, and whether its ticket skips.

    Far off, and no, where that cannot be read.
    """
    try:
        payload = Envelope.from_dict(body["envelope"]).payload
        document: Any = parse_json(payload)
        data = (document.get("ticket") or {}).get("data") or [""]
        return str(document["not_after"]), str(data[0]).startswith(SKIPPED)
    except (SealtrainError, AttributeError, LookupError, TypeError):
        return "9999", False


def _require_no_silence(submitted: Iterable[int], schedule: Schedule) -> None:
    seen = set(submitted)
    last = min(max(seen), from_rfc3339(schedule.ends_at))
    for due in iterate_due_times(schedule, until=last):
        if due not in seen:
            raise _broken("due time", to_rfc3339(due), "a submission for every due time")


def _require_due_by_data(recorded: Recorded, schedule: Schedule) -> None:
    """Go through the submissions as they were recorded, as a scheduler did."""
    before: int | None = None
    earlier: list[_Asked] = []
    for request in sorted(recorded.asked, key=lambda asked: asked.index):
        covered = max((done.index for done in earlier if done.covers(request.index)), default=-1)
        fresh = [
            at
            for index, at in recorded.registered.get(request.compose_hash, ())
            if covered < index < request.index
        ]
        expected = find_due_of_data(schedule, registered=min(fresh, default=None), before=before)
        if request.due != expected:
            raise _broken(
                "due time",
                to_rfc3339(request.due),
                "none: no data was new" if expected is None else to_rfc3339(expected),
            )
        before = request.due
        earlier.append(request)


def _broken(check: str, got: object, expected: object) -> RunChainBroken:
    return RunChainBroken(
        "the ledger knows more or other runs than the chain",
        check=check,
        got=got,
        expected=expected,
        hint="ask the broker's operator for the manifests that the ledger's entries name",
    )

"""What remains of a travelling run: a signed hash chain that others check (spec §5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.collab.travelling.control import zeros_proof
from sealtrain.collab.travelling.program import TOKEN_BYTES
from sealtrain.collab.travelling.schedule import Plan
from sealtrain.errors import DataInvalid, RunLogBroken, TranscriptInvalid
from sealtrain.records import dsse
from sealtrain.records.runlog import RunLog
from sealtrain.records.runlog import verify as verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TRANSCRIPT_PAYLOAD_TYPE", "Travelled", "sign_transcript", "verify_transcript"]

TRANSCRIPT_PAYLOAD_TYPE = "application/vnd.sealtrain.travel-transcript+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Travelled:
    """What a verified transcript says.

    Attributes:
        run_id: 32 hex digits.
        trips: How many were trained on.
        refused: Holders whose trips were refused, by trip.
        tokens: Trained on, by holder.
        losses: Mean loss of each trained trip.
        code, model: Measurements at the end.
    """

    run_id: str
    trips: int
    refused: dict[int, str]
    tokens: dict[str, int]
    losses: tuple[float, ...]
    code: str
    model: str


def sign_transcript(log: RunLog, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """The envelope of a run's log."""
    document = {"version": 1, "run_id": log.run_id, "entries": log.entries, "head": log.head}
    return dsse.sign(canonical_json(document), TRANSCRIPT_PAYLOAD_TYPE, signer)


def verify_transcript(envelope: dsse.Envelope, orchestrator: bytes) -> Travelled:
    """Check a transcript as the spec says.

    Args:
        envelope: As the orchestrator signed it.
        orchestrator: Its Ed25519 public key, 32 bytes.

    Raises:
        SignatureInvalid: Not signed by it.
        TranscriptInvalid: The first of the other checks that fails.
    """
    payload = dsse.verify(envelope, [orchestrator], payload_type=TRANSCRIPT_PAYLOAD_TYPE)
    try:
        document = parse_canonical(payload)
    except DataInvalid as error:
        raise TranscriptInvalid(f"transcript: {error.message}", check="transcript") from error
    match document:
        case {"version": 1, "run_id": str(run_id), "entries": list(entries), "head": str(head)}:
            if len(document) != 4:
                raise TranscriptInvalid("transcript has an unknown field", check="transcript")
        case _:
            raise TranscriptInvalid("transcript lacks a field", check="transcript")
    try:
        verify_chain(run_id, entries, head=head)
    except RunLogBroken as error:
        raise TranscriptInvalid(error.message, check=error.check or "transcript") from error
    return _Reader(run_id).read(entries)


@dataclass
class _Trip:
    """A trip as far as it was read."""

    holder: str
    size: int
    state: str = "lent"


@dataclass
class _Reader:
    """Walks the entries once, in order."""

    run_id: str
    plan: Plan | None = None
    code: str = ""
    model: str = ""
    trips: dict[int, _Trip] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    tokens: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    over: bool = False

    def read(self, entries: list[dict[str, Any]]) -> Travelled:
        steps: dict[str, Callable[[dict[str, Any]], None]] = {
            "travel.setup": self._setup,
            "trip.lent": self._lent,
            "trip.written": self._written,
            "trip.refused": self._refused,
            "trip.trained": self._trained,
            "trip.scrubbed": self._scrubbed,
            "travel.taken-over": self._taken_over,
            "travel.finished": self._finished,
        }
        for entry in entries:
            event = entry["event"]
            if event not in steps:
                raise self._broken(f"an event of no travelling run: {event}")
            if self.over or (event != "travel.setup") != (self.plan is not None):
                raise self._broken(f"{event} stands where it may not")
            try:
                steps[event](entry["fields"])
            except (KeyError, TypeError, ValueError, DataInvalid) as error:
                raise self._broken(f"{event} does not have its fields") from error
        if not self.over:
            raise self._broken("the run did not finish")
        return Travelled(
            run_id=self.run_id,
            trips=len(self.losses),
            refused={
                number: trip.holder
                for number, trip in self.trips.items()
                if trip.state == "refused, scrubbed"
            },
            tokens=self.tokens,
            losses=tuple(self.losses),
            code=self.code,
            model=self.model,
        )

    def _setup(self, fields: dict[str, Any]) -> None:
        self.plan = Plan.from_dict(fields["plan"])
        self.code, self.model = str(fields["code"]), str(fields["model"])

    def _lent(self, fields: dict[str, Any]) -> None:
        number, holder = fields["trip"], fields["holder"]
        if number != len(self.trips):
            raise self._broken(f"trip {number} does not follow trip {len(self.trips) - 1}")
        if fields["id"] in self.ids:
            raise self._broken("a capability was lent twice")
        self.ids.add(fields["id"])
        if self.plan is None or all(one.name != holder for one in self.plan.holders):
            raise self._broken(f"trip {number} went to a holder of no plan")
        if not 0 <= fields["start"] < fields["end"] <= self.plan.buffer_bytes:
            raise self._broken(f"trip {number} lent a range outside the buffer")
        self.trips[number] = _Trip(holder=holder, size=fields["end"] - fields["start"])

    def _written(self, fields: dict[str, Any]) -> None:
        trip = self._in(fields, "lent", "written")
        if not 0 < fields["size"] <= trip.size or not _is_digest(fields["sha256"]):
            raise self._broken("more was written than was lent")

    def _refused(self, fields: dict[str, Any]) -> None:
        state = self.trips[fields["trip"]].state
        self._in(fields, "written" if state == "written" else "lent", "refused")

    def _trained(self, fields: dict[str, Any]) -> None:
        trip = self._in(fields, "written", "trained")
        before, after = fields["before"], fields["after"]
        if (before["code"], before["model"]) != (self.code, self.model):
            raise self._broken("code or model state changed between two trips")
        if after["code"] != self.code or not _is_digest(after["model"]):
            raise self._broken("code changed while it trained")
        self.model = after["model"]
        if not 0 < fields["tokens"] * TOKEN_BYTES <= trip.size:
            raise self._broken("it trained on more than was written")
        total = self.tokens.get(trip.holder, 0) + fields["tokens"]
        if self.plan is None or total * TOKEN_BYTES > self.plan.holder(trip.holder).limit:
            raise self._broken(f"{trip.holder} gave more than its limit")
        self.tokens[trip.holder] = total
        self.losses.append(float(fields["loss"]))

    def _scrubbed(self, fields: dict[str, Any]) -> None:
        number = fields["trip"]
        state = self.trips[number].state
        if state not in ("trained", "refused"):
            raise self._broken(f"trip {number} was scrubbed out of turn")
        trip = self._in(fields, state, "scrubbed" if state == "trained" else "refused, scrubbed")
        if fields["proof"] != zeros_proof(fields["nonce"], trip.size):
            raise self._broken(f"the chunk of trip {number} was not wiped")

    def _taken_over(self, fields: dict[str, Any]) -> None:
        if (fields["code"], fields["model"]) != (self.code, self.model):
            raise self._broken("another orchestrator went on from another state")
        for trip in self.trips.values():
            # The new session wiped the whole buffer: what was open is gone.
            if trip.state in ("lent", "written"):
                trip.state = "refused, scrubbed"

    def _finished(self, fields: dict[str, Any]) -> None:
        if fields["model"] != self.model:
            raise self._broken("the model is not the one that was trained")
        if any(not trip.state.endswith("scrubbed") for trip in self.trips.values()):
            raise self._broken("a chunk was left in the buffer")
        self.over = True

    def _in(self, fields: dict[str, Any], state: str, becomes: str) -> _Trip:
        trip = self.trips[fields["trip"]]
        if trip.state != state:
            raise self._broken(f"trip {fields['trip']} is {trip.state}, not {state}")
        trip.state = becomes
        return trip

    def _broken(self, problem: str) -> TranscriptInvalid:
        return TranscriptInvalid(
            problem,
            check="transcript",
            hint="it was not written by the orchestrator's measured code, or is not whole",
        )


def _is_digest(value: JsonValue) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")

"""Check that the run log of a travelling accelerator is consistent (spec/travelling.md §5).

Pure rules over the entries: other checks cover the hash chain and its signature. Read in
order, the first breach is ``TranscriptInvalid``:

1. one setup, of the program, buffer and holders that the recipe means, before any trip;
2. trips are counted 0, 1, 2 …; each is lent, then written or refused, a written one is trained on
   or refused, and scrubbed last, with the proof that all of it was overwritten;
3. ranges lie in the buffer, no capability is lent twice, no trip is trained on beyond what came;
4. code stays the same, and every measurement and scrub has a nonce of its own;
5. no holder gave more than it has, than its limit, or at a time when it took no part;
6. one end, with nothing in the buffer, and the model that was trained;
7. what bounds the program was given shows: how far each chunk moved it, what privacy was spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.encoding import from_hex
from sealtrain.base.scrub import proof_of
from sealtrain.errors import ERROR_CODES, DataInvalid
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.errors import ClaimContradicted, TranscriptInvalid
from sealtrain.recipe.collaborations.travelling import program_of, width_of
from sealtrain.signing.logevents import fault

_PREFIXES: Final = ("travel.", "trip.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TravellingTerms:
    """Terms that the recipe sets for a travelling run.

    Attributes:
        program: Settings of the accelerator's program but for its device.
        buffer_bytes: Of its dataset buffer.
        limits: Most tokens of each holder, ``None`` for all it has; the holders are its keys.
        max_steps: Most optimizer steps, ``None`` for any number.
        windows: From when until when each holder took part, seconds since the epoch; ``None``
            where nobody says.
    """

    program: Mapping[str, JsonValue]
    buffer_bytes: int
    limits: Mapping[str, int | None]
    max_steps: int | None = None
    windows: Mapping[str, tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Travelled:
    """Results of a run's trips.

    Attributes:
        trips: How many were trained on.
        refused: Holders whose trips were refused, by trip.
        tokens: Trained on, by holder.
        steps: Optimizer steps.
        takeovers: How often another orchestrator went on.
        code, model: Measurements at the end.
    """

    trips: int
    refused: dict[int, str]
    tokens: dict[str, int]
    steps: int
    takeovers: int
    code: str
    model: str


def terms_of(recipe: Any, windows: Mapping[str, tuple[int, int]] | None = None) -> TravellingTerms:
    """The terms of a ``Recipe`` whose collaboration is travelling.

    Args:
        recipe: Of the run.
        windows: As in ``TravellingTerms``.
    """
    how = recipe.collaboration
    return TravellingTerms(
        program=program_of(recipe),
        buffer_bytes=how.buffer_bytes,
        limits={name: how.limit_of(name) for name in recipe.owners},
        max_steps=recipe.trainer.max_steps,
        windows=windows,
    )


def trips_hold(case: Case) -> str:
    """(18) Trips keep the rules of the module, and the run counts what they came to."""
    collaboration = case.predicate.collaboration
    parties = () if collaboration is None else collaboration.parties
    windows = {
        party.name: (from_rfc3339(party.begun), from_rfc3339(party.until)) for party in parties
    }
    came = check_trips(case.need_log(), terms_of(case.need_lock().recipe, windows))
    run = case.predicate.run
    facts = {"steps": (run.steps, came.steps), "tokens": (run.tokens, sum(came.tokens.values()))}
    for what, (got, expected) in facts.items():
        if got != expected:
            raise ClaimContradicted(
                f"the run counts other {what} than its trips",
                check="collaboration",
                got=got,
                expected=expected,
            )
    refused = f", {len(came.refused)} refused" if came.refused else ""
    taken = f", taken over {came.takeovers} times" if came.takeovers else ""
    return f"{came.trips} trips to {len(parties)} holders{refused}{taken}; all chunks wiped"


def check_trips(entries: Iterable[Mapping[str, Any]], terms: TravellingTerms) -> Travelled:
    """Check the entries of a run log that tell of trips; others are not looked at.

    Args:
        entries: All of the log, oldest first.
        terms: What they must keep.

    Raises:
        TranscriptInvalid: The first of the module's rules that is broken.
    """
    reader = _LogReader(terms)
    for entry in entries:
        if str(entry["event"]).startswith(_PREFIXES):
            reader.read(entry)
    return reader.result()


@dataclass
class _Trip:
    """A trip as far as it was read."""

    holder: str
    size: int
    state: str = "lent"


@dataclass
class _LogReader:
    """Walks the entries once, in order."""

    terms: TravellingTerms
    holders: dict[str, int] | None = None
    code: str = ""
    model: str = ""
    trips: dict[int, _Trip] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    nonces: set[str] = field(default_factory=set)
    tokens: dict[str, int] = field(default_factory=dict)
    trained: int = 0
    takeovers: int = 0
    over: bool = False

    def read(self, entry: Mapping[str, Any]) -> None:
        event = entry["event"]
        steps: dict[str, Callable[[dict[str, Any]], None]] = {
            "travel.setup": self._setup,
            "trip.lent": self._take_lent,
            "trip.written": self._take_written,
            "trip.refused": self._take_refused,
            "trip.trained": self._take_trained,
            "trip.scrubbed": self._take_scrubbed,
            "travel.taken-over": self._take_takeover,
            "travel.finished": self._take_finish,
        }
        if event not in steps:
            raise self._broken(f"an event of no travelling run: {event}")
        if fault(event, entry["fields"]) is not None:
            raise self._broken(f"{event} does not have its fields")
        if self.over or (event != "travel.setup") != (self.holders is not None):
            raise self._broken(f"{event} is out of place")
        try:
            steps[event](entry["fields"])
            if event == "trip.written":
                self._in_time(entry["fields"]["trip"], from_rfc3339(entry["at"]))
        except (KeyError, TypeError, ValueError, AttributeError, DataInvalid) as error:
            raise self._broken(f"{event} does not have its fields") from error

    def result(self) -> Travelled:
        if not self.over:
            raise self._broken("the run did not finish")
        return Travelled(
            trips=self.trained,
            refused={
                number: trip.holder
                for number, trip in self.trips.items()
                if trip.state == "refused, scrubbed"
            },
            tokens=self.tokens,
            steps=sum(self.tokens.values()) // self._step_tokens,
            takeovers=self.takeovers,
            code=self.code,
            model=self.model,
        )

    @property
    def _step_tokens(self) -> int:
        program: Mapping[str, Any] = self.terms.program
        return int(program["batch_size"] * program["seq_len"])

    def _setup(self, fields: dict[str, Any]) -> None:
        program = {name: value for name, value in fields["program"].items() if name != "device"}
        if program != self.terms.program or fields["program"]["device"] not in ("cpu", "cuda"):
            raise self._broken("the accelerator was given another program than the recipe means")
        if fields["buffer"] != self.terms.buffer_bytes:
            raise self._broken("the accelerator had another buffer than the recipe names")
        holders = fields["holders"]
        if holders.keys() != self.terms.limits.keys():
            raise self._broken("the holders are not the owners that the recipe names")
        if any(not _is_count(tokens) for tokens in holders.values()):
            raise self._broken("a holder joined with no tokens")
        self.holders = dict(holders)
        self._fresh(fields["nonce"])
        self.code, self.model = _digest(fields["code"]), _digest(fields["model"])

    def _take_lent(self, fields: dict[str, Any]) -> None:
        number, holder = fields["trip"], fields["holder"]
        if number != len(self.trips):
            raise self._broken(f"trip {number} does not follow trip {len(self.trips) - 1}")
        if fields["id"] in self.ids:
            raise self._broken("a capability was lent twice")
        self.ids.add(fields["id"])
        if self.holders is None or holder not in self.holders:
            raise self._broken(f"trip {number} went to no holder that takes part")
        if not 0 <= fields["start"] < fields["end"] <= self.terms.buffer_bytes:
            raise self._broken(f"trip {number} lent a range outside the buffer")
        self.trips[number] = _Trip(holder=holder, size=fields["end"] - fields["start"])

    def _take_written(self, fields: dict[str, Any]) -> None:
        trip = self._in(fields, "lent", "written")
        _digest(fields["mark"])
        if fields["size"] != trip.size:
            raise self._broken("something else was written than was lent")

    def _in_time(self, number: int, moment: int) -> None:
        if self.terms.windows is None:
            return
        holder = self.trips[number].holder
        begins, ends = self.terms.windows[holder]
        if not begins - CLOCK_TOLERANCE_S <= moment <= ends + CLOCK_TOLERANCE_S:
            raise self._broken(
                f"{holder} gave a chunk without taking part",
                got=to_rfc3339(moment),
                expected=f"{to_rfc3339(begins)} to {to_rfc3339(ends)}",
            )

    def _take_refused(self, fields: dict[str, Any]) -> None:
        state = self.trips[fields["trip"]].state
        self._in(fields, "written" if state == "written" else "lent", "refused")
        if fields["code"] not in ERROR_CODES:
            raise self._broken("a trip was refused with a code that no error has")

    def _take_trained(self, fields: dict[str, Any]) -> None:
        trip = self._in(fields, "written", "trained")
        after = fields["after"]
        self._fresh(fields["nonce"])
        if after["code"] != self.code:
            raise self._broken("code changed while it trained")
        self.model = _digest(after["model"])
        self._check_bound(fields, "moved", "max_update_norm")
        tokens = fields["tokens"]
        size = tokens * width_of(self.terms.program)
        if not 0 < size <= trip.size or tokens % self._step_tokens:
            raise self._broken("it trained on more than was written, or on parts of a step")
        total = self.tokens.get(trip.holder, 0) + tokens
        has = 0 if self.holders is None else self.holders[trip.holder]
        limit = self.terms.limits[trip.holder]
        if total > (has if limit is None else min(has, limit)):
            raise self._broken(f"{trip.holder} gave more than its limit")
        self.tokens[trip.holder] = total
        most = self.terms.max_steps
        if most is not None and sum(self.tokens.values()) > most * self._step_tokens:
            raise self._broken("it trained for more steps than the recipe says")
        self.trained += 1

    def _take_scrubbed(self, fields: dict[str, Any]) -> None:
        number = fields["trip"]
        state = self.trips[number].state
        if state not in ("trained", "refused"):
            raise self._broken(f"trip {number} was scrubbed out of turn")
        trip = self._in(fields, state, "scrubbed" if state == "trained" else "refused, scrubbed")
        self._fresh(fields["nonce"])
        self._fresh(fields["seed"])
        if fields["proof"] != proof_of(fields["seed"], fields["nonce"], trip.size):
            raise self._broken(f"the chunk of trip {number} was not wiped")

    def _take_takeover(self, fields: dict[str, Any]) -> None:
        if (fields["code"], fields["model"]) != (self.code, self.model):
            raise self._broken("another orchestrator went on from another state")
        self.takeovers += 1
        for trip in self.trips.values():
            # The new session wiped the whole buffer: what was open is gone.
            if trip.state in ("lent", "written", "refused"):
                trip.state = "refused, scrubbed"
            elif trip.state == "trained":
                trip.state = "scrubbed"

    def _take_finish(self, fields: dict[str, Any]) -> None:
        if fields["model"] != self.model:
            raise self._broken("the model is not the one that was trained")
        if any(not trip.state.endswith("scrubbed") for trip in self.trips.values()):
            raise self._broken("a chunk was left in the buffer")
        self._check_bound(fields, "privacy", "privacy")
        self.over = True

    def _fresh(self, nonce: JsonValue) -> None:
        """Every nonce and seed of a run is another, so no answer of an earlier moment fits."""
        if _digest(nonce) in self.nonces:
            raise self._broken("a nonce or seed was used twice")
        self.nonces.add(str(nonce))

    def _check_bound(self, fields: dict[str, Any], told: str, bound: str) -> None:
        if (told in fields) != (bound in self.terms.program):
            raise self._broken(f"the log and the recipe do not agree on {bound}")

    def _in(self, fields: dict[str, Any], state: str, becomes: str) -> _Trip:
        trip = self.trips[fields["trip"]]
        if trip.state != state:
            raise self._broken(f"trip {fields['trip']} is {trip.state}, not {state}")
        trip.state = becomes
        return trip

    @staticmethod
    def _broken(problem: str, got: object = None, expected: object = None) -> TranscriptInvalid:
        return TranscriptInvalid(
            problem,
            check="trips",
            got=got,
            expected=expected,
            hint="it was not written by the orchestrator's measured code, or is not whole",
        )


def _digest(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise DataInvalid("a digest is text")
    from_hex(value, length=32)
    return value


def _is_count(value: JsonValue) -> bool:
    return type(value) is int and value > 0

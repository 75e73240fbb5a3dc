"""The run log: a hash chain over a run's events. See ``spec/run-log.md``.

``head_0 = SHA-256("sealtrain/run-log/v1:" ‖ run_id)`` and
``head_n = SHA-256(head_{n-1} ‖ canonical JSON of entry n)``. An entry is
``{"seq": n, "at": time, "event": name, "fields": {…}}``. The head goes into a quote: no entry can
be changed, dropped, swapped or moved into another run's log afterwards. A log verifies when

1. every entry has exactly these four fields, in their types,
2. ``seq`` counts 1, 2, 3 …,
3. event and fields are those of a row of ``logevents.EVENTS``, and
4. the head is the expected one, where one is given.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Self

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.process_state import OneProcess
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.signing.errors import RunLogBroken
from sealtrain.signing.logevents import EVENTS, fault, is_of

MAX_ENTRIES = 1_000_000
MAX_ENTRY_BYTES = 64 << 10
_RUN_ID = re.compile(r"[0-9a-f]{32}")


class RunLog:
    """An append-only log of one run; safe to append to from several threads."""

    def __init__(self, run_id: str) -> None:
        """Start an empty log.

        Args:
            run_id: 32 hex digits.
        """
        self.run_id = run_id
        self._head = _first_head(run_id)
        self._entries: list[dict[str, JsonValue]] = []
        self._lock = threading.Lock()
        self._process = OneProcess("a run's log")

    @classmethod
    def restore(cls, run_id: str, entries: Iterable[JsonValue], *, head: str | None = None) -> Self:
        """Continue a log from entries that were kept elsewhere.

        Args:
            run_id: The run the entries must belong to.
            entries: All entries so far.
            head: Their expected head, where it is known from a trusted place.

        Raises:
            RunLogBroken: As ``verify``, or the head differs.
        """
        kept = list(entries)
        log = cls(run_id)
        log._head = bytes.fromhex(verify(run_id, kept, head=head))
        log._entries = [_copy(entry) for entry in kept]
        return log

    def append(self, event: str, fields: dict[str, JsonValue], at: int) -> str:
        """Add one event and return the new head.

        Args:
            event: One of ``logevents.EVENTS``, such as ``"keys.released"``.
            fields: Those that the event has there; never a key, a row or a sample.
            at: The guest's time, seconds since the epoch.

        Raises:
            DataInvalid: The event or its fields are not of the table, or cannot be written.
            LimitExceeded: The entry or the log is too long.
            ForkRefused: Another process keeps the log.
        """
        self._process.require()
        if event not in EVENTS:
            raise DataInvalid("a run log has no such event", check="run log event")
        with self._lock:
            if len(self._entries) >= MAX_ENTRIES:
                raise LimitExceeded("run log is full", expected=f"at most {MAX_ENTRIES} entries")
            entry = {
                "seq": len(self._entries) + 1,
                "at": to_rfc3339(at),
                "event": event,
                "fields": fields,
            }
            data = _entry_bytes(entry)
            # A float beyond 2**53 is written like an integer that readers refuse: refuse it now.
            kept = parse_canonical(data)
            if fault(event, kept["fields"]) is not None:
                raise DataInvalid(
                    f"the run log's event {event} has other fields", check="run log fields"
                )
            self._head = hashlib.sha256(self._head + data).digest()
            self._entries.append(kept)
            return self._head.hex()

    @property
    def entries(self) -> list[dict[str, JsonValue]]:
        """A copy of all entries, oldest first."""
        with self._lock:
            return [_copy(entry) for entry in self._entries]

    @property
    def head(self) -> str:
        """Head of the chain, 64 hex digits."""
        with self._lock:
            return self._head.hex()

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)


def verify(run_id: str, entries: Iterable[JsonValue], *, head: str | None = None) -> str:
    """Recompute the chain and return its head, 64 hex digits.

    Args:
        run_id: The run the log must belong to.
        entries: All entries, oldest first.
        head: The head the log must have, where one is known.

    Raises:
        RunLogBroken: A check of the module's list fails.
    """
    try:
        current = _first_head(run_id)
    except DataInvalid as error:
        raise RunLogBroken(str(error), check="run id") from error
    for number, entry in enumerate(entries, start=1):
        if number > MAX_ENTRIES:
            raise RunLogBroken("run log is too long", expected=f"at most {MAX_ENTRIES} entries")
        current = hashlib.sha256(current + _check(entry, number)).digest()
    if head is not None and current.hex() != head:
        raise RunLogBroken(
            "run log does not lead to the signed head",
            check="run log head",
            got=current.hex(),
            expected=head,
            hint="entries were changed, dropped, swapped or taken from another run",
        )
    return current.hex()


def require_events_of(entries: Iterable[Mapping[str, JsonValue]], kind: str | None) -> None:
    """Return if a log that ``verify`` accepts has only events of its kind of run.

    Args:
        entries: All entries, oldest first.
        kind: Of the run's collaboration; ``None`` for one guest.

    Raises:
        RunLogBroken: An event belongs to another kind.
    """
    for entry in entries:
        if not is_of(str(entry["event"]), kind):
            raise RunLogBroken(
                f"run log entry {entry['seq']} has an event of another kind of run",
                check="run log event",
                got=str(entry["event"]),
                expected="an event of every run" if kind is None else f"an event of kind {kind}",
            )


def _first_head(run_id: str) -> bytes:
    if not _RUN_ID.fullmatch(run_id):
        raise DataInvalid("run id is not 32 hex digits")
    return hashlib.sha256(b"sealtrain/run-log/v1:" + run_id.encode("ascii")).digest()


def _check(entry: JsonValue, number: int) -> bytes:
    match entry:
        case {"seq": int(seq), "at": str(at), "event": str(event), "fields": dict(), **rest}:
            if rest or isinstance(seq, bool) or seq != number:
                raise _broken(number)
            try:
                from_rfc3339(at)
                data = _entry_bytes(entry)
            except DataInvalid as error:
                raise _broken(number) from error
            if (wrong := fault(event, entry["fields"])) is not None:
                raise RunLogBroken(
                    f"run log entry {number} has an event or fields that no run log has",
                    check=f"run log {wrong}",
                    expected="a row of the table in spec/run-log.md",
                )
            return data
    raise _broken(number)


def _entry_bytes(entry: dict[str, JsonValue]) -> bytes:
    data = canonical_json(entry)
    if len(data) > MAX_ENTRY_BYTES:
        raise LimitExceeded(
            "run log entry is too long",
            got=f"{len(data)} bytes",
            expected=f"at most {MAX_ENTRY_BYTES}",
        )
    return data


def _copy(entry: JsonValue) -> dict[str, JsonValue]:
    copied: dict[str, JsonValue] = parse_canonical(canonical_json(entry))
    return copied


def _broken(number: int) -> RunLogBroken:
    return RunLogBroken(
        f"run log entry {number} is malformed or out of sequence",
        check="run log entry",
        expected=f"seq {number}, at, event and fields, nothing else",
    )

"""The closed table of a run log's events and of their fields. See ``spec/run-log.md``.

A name or a field that the table does not know could hold anything that its writer chose: a script
of the recipe would have a way out of the guest. ``RunLog`` writes by the table, both verifiers read
by it, and ``tools/verifier_page.py`` writes it into the second verifier and into the page.

A ``Form`` states one rule three times, side by side: as Python, as the second verifier's script and
in the words of the page.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.platforms import Platform, either
from sealtrain.errors import ERROR_CODES, DataInvalid

_MOST: Final = (1 << 53) - 1
KINDS: Final = ("cut", "federated", "nodes", "pads", "travelling")
"""The kinds of collaboration that have events of their own."""
PHASES: Final = ("classify", "cpt", "dpo", "embed", "evaluate", "reward", "rlhf", "sft", "vlm")
RULES: Final = ("exact", "fedavg", "ffa", "flower", "median", "trimmed-mean")
"""How a federation merges updates."""


@dataclass(frozen=True, slots=True)
class Form:
    """A rule for one value.

    Attributes:
        holds: Whether a value parsed from JSON keeps the rule.
        script: The same as an expression over ``verify/shape.js``.
        words: The same for a reader of the page.
    """

    holds: Callable[[object], bool]
    script: str
    words: str


def _choice(*values: str) -> Form:
    allowed = frozenset(values)
    return Form(
        lambda value: isinstance(value, str) and value in allowed,
        f"shape.literal({json.dumps(values)[1:-1]})",
        either([f"`{value}`" for value in values]),
    )


def _integer(least: int, most: int = _MOST) -> Form:
    return Form(
        lambda value: type(value) is int and least <= value <= most,
        f"shape.integer({least}, {most})",
        f"integer, {least} to {most:,}" if most < _MOST else ("count from 1" if least else "count"),
    )


def _number(least: float, most: float = math.inf, *, above: bool = False) -> Form:
    def holds(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and least <= value <= most and not (above and value == least)

    limit = "" if most == math.inf else f" && value <= {most!r}"
    until = "" if most == math.inf else f" to {most:g}"
    return Form(
        holds,
        f"shape.number((value) => value {'>' if above else '>='} {least!r}{limit})",
        f"number, {'above' if above else 'from'} {least:g}{until}",
    )


def _match(pattern: str, words: str) -> Form:
    """Text of a pattern, which means the same in Python and in JavaScript."""
    compiled = re.compile(pattern)
    return Form(
        lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None,
        "shape.match(/^(?:" + pattern.replace("/", r"\/") + ")$/)",
        words,
    )


def _nullable(item: Form) -> Form:
    return Form(
        lambda value: value is None or item.holds(value),
        f"shape.nullable({item.script})",
        f"{item.words}; or null",
    )


def _either(first: Form, second: Form) -> Form:
    return Form(
        lambda value: first.holds(value) or second.holds(value),
        f"shape.either({first.script}, {second.script})",
        f"{first.words} or {second.words}",
    )


def _list(item: Form, least: int, most: int) -> Form:
    return Form(
        lambda value: (
            isinstance(value, list) and least <= len(value) <= most and all(map(item.holds, value))
        ),
        f"shape.list({item.script}, {{ min: {least}, max: {most} }})",
        f"list of {least} to {most:,}: {item.words}",
    )


def _map(key: Form, item: Form, least: int, most: int) -> Form:
    def holds(value: object) -> bool:
        if not isinstance(value, dict) or not least <= len(value) <= most:
            return False
        return all(key.holds(name) and item.holds(inner) for name, inner in value.items())

    return Form(
        holds,
        f"shape.map({key.script}, {item.script}, {{ min: {least}, max: {most} }})",
        f"object of {least} to {most:,}: {key.words} → {item.words}",
    )


def _record(fields: Mapping[str, Form], optional: Mapping[str, Form] | None = None) -> Form:
    more = optional or {}

    def holds(value: object) -> bool:
        if not isinstance(value, dict) or not fields.keys() <= value.keys():
            return False
        known = {**fields, **more}
        return all(name in known and known[name].holds(inner) for name, inner in value.items())

    def script(forms: Mapping[str, Form]) -> str:
        return "{" + ", ".join(f"{name}: {form.script}" for name, form in forms.items()) + "}"

    return Form(
        holds,
        f"shape.record({script(fields)}{f', {script(more)}' if more else ''})",
        "object: " + ", ".join(f"`{name}` {form.words}" for name, form in fields.items()),
    )


def _is_moment(value: object) -> bool:
    try:
        from_rfc3339(value if isinstance(value, str) else "")
    except DataInvalid:
        return False
    return True


_HEX32 = Form(_match("[0-9a-f]{32}", "").holds, "shape.hex32", "32 hex digits")
_HEX64 = Form(_match("[0-9a-f]{64}", "").holds, "shape.hex64", "64 hex digits")
_OWNER = _match("[a-z0-9][a-z0-9-]{0,62}", "name of an owner")
_TIME = Form(_is_moment, "shape.realTime", "time")
_CODE = Form(_choice(*ERROR_CODES).holds, "shape.errorCode", "code of an error")
_BOOLEAN = Form(lambda value: isinstance(value, bool), "shape.boolean", "true or false")
_OBJECT = Form(lambda value: isinstance(value, dict), "shape.anyObject", "object")
_COUNT = _integer(0)
_SOME = _integer(1)
_LAYER = _match("[A-Za-z0-9_][A-Za-z0-9_.]{0,199}", "name of a layer")
_PART = "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_SUBJECT = _match(f"model/{_PART}(?:/{_PART})*\\.sealed", "name of a subject")
_COUNTED = _record({
    "records": _COUNT, "whole": _COUNT, "truncated": _COUNT, "filtered": _COUNT, "empty": _COUNT,
})  # fmt: skip
_DATASET = Form(_HEX32.holds, "shape.hex32", "dataset id")
_PARTIES = _list(_OWNER, 1, 256)
_NOISE = _number(0.001, 1e6)
_WITHHELD = _choice(
    "channel.broken", "exception.thread", "exception.uncaught", "exception.unraisable",
    "file.refused", "logged.error", "logged.info", "logged.warning", "network.refused", "printed",
    "program.refused", "warned",
)  # fmt: skip
_HOLDER_CODES = frozenset(f"holder.{code}" for code in ERROR_CODES)
_BY_HOLDER = Form(
    _choice(*_HOLDER_CODES).holds,
    '(value) => value.startsWith("holder.") && shape.errorCode(value.slice(7))',
    "`holder.` and the code of an error",
)
_SIGNATURE = _record({
    "keyid": _match("ed25519:[0-9a-f]{64}", "key id"),
    "sig": _match("[A-Za-z0-9+/]{86}==", "base64 of 64 bytes"),
})  # fmt: skip
_CONSENT = _record({
    "payload": _match("[A-Za-z0-9+/]*={0,2}", "base64"),
    "payloadType": _choice("application/vnd.sealtrain.cut-consent+json"),
    "signatures": _list(_SIGNATURE, 1, 1),
})  # fmt: skip
_STATE = {"code": _HEX64, "model": _HEX64}
_SPENT = _record({"epsilon": _number(0), "delta": _number(0, 1), "sequences": _COUNT})
_NODE = _record({
    "node": _integer(1, 255), "run_id": _HEX32, "evidence": _HEX64, "key": _HEX64, "from": _TIME,
})  # fmt: skip
_PADS_BEGUN = {
    "pads": _choice("own", "pool", "dealer"), "checks": _integer(1, 4),
    "skip": _list(_LAYER, 0, 256), "layers": _map(_LAYER, _integer(1, 1_000_000), 1, 4096),
    "products": _integer(1, 1_000_000), "dealer": _nullable(_record({"simulated": _BOOLEAN})),
}  # fmt: skip
_PADS_SPENT = {"products": _COUNT, "rows": _COUNT, "bytes_out": _COUNT, "bytes_in": _COUNT}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """A row of the table.

    Attributes:
        of: The kind of collaboration whose runs have the event; ``None`` for every run.
        form: Of all its fields.
        fields: Each of them, all of which an entry has.
        optional: Those that an entry may have.
    """

    of: str | None
    form: Form
    fields: Mapping[str, Form]
    optional: Mapping[str, Form] = field(default_factory=dict)


def _event(
    of: str | None,
    fields: Mapping[str, Form] | None = None,
    optional: Mapping[str, Form] | None = None,
) -> LogEvent:
    every, some = fields or {}, optional or {}
    return LogEvent(of=of, form=_record(every, some), fields=every, optional=some)


def _free(form: Form) -> LogEvent:
    """An event whose fields are names with one form."""
    return LogEvent(of=None, form=form, fields={})


EVENTS: Final[Mapping[str, LogEvent]] = {
    "run.started": _event(
        None,
        {"platform": _choice(*get_args(Platform)), "phase": _choice(*PHASES)},
        {"collaboration": _choice(*KINDS)},
    ),
    "run.restarted": _event(None),
    "run.resumed": _event(None, {"counter": _COUNT, "step": _COUNT, "checkpoint": _HEX64}),
    "border.closed": _event(None, {
        "landlock": _COUNT, "seccomp": _BOOLEAN, "unbound": _COUNT,
        "memory": _choice("private", "folder"),
    }),
    "keys.released": _event(None, {"lease_id": _HEX64, "not_after": _TIME}),
    "data.validated": _event(None, {"rules_sha256": _HEX64}, {"report_sha256": _HEX64}),
    "data.counted": _free(_map(_DATASET, _nullable(_COUNTED), 1, 256)),
    "rows.served": _free(_map(_DATASET, _nullable(_COUNT), 1, 256)),
    "checkpoint.sealed": _event(None, {"counter": _COUNT, "step": _COUNT, "digest": _HEX64}),
    "training.finished": _event(None, {"steps": _COUNT, "samples": _COUNT}),
    "output.withheld": _free(_map(_either(_WITHHELD, _BY_HOLDER), _SOME, 0, 512)),
    "outputs.sealed": _free(_map(_SUBJECT, _HEX64, 1, 4096)),
    "nodes.joined": _event("nodes", {
        "session": _HEX32, "ranks": _integer(1, 64), "nodes": _list(_NODE, 1, 255),
    }),
    "federation.begun": _event("federated", {
        "rule": _choice(*RULES), "rounds": _SOME, "min_parties": _SOME, "parties": _PARTIES,
        "state": _HEX64,
    }),
    "federation.planned": _event("federated", {
        "patients": _map(_OWNER, _SOME, 1, 256), "rate": _number(0, 1, above=True),
        "noise_multiplier": _NOISE, "epsilon": _number(0, 1e6),
    }),
    "party.joined": _event(
        "federated",
        {"party": _OWNER, "records": _nullable(_SOME)},
        {"patients": _SOME, "products": _record(_PADS_BEGUN)},
    ),
    "party.left": _event("federated", {"party": _OWNER, "code": _CODE}),
    "party.refused": _event("federated", {"code": _CODE}),
    "round.begun": _event("federated", {"round": _SOME, "state": _HEX64}),
    "update.taken": _event("federated", {
        "round": _SOME, "party": _OWNER, "digest": _nullable(_HEX64),
        "records": _nullable(_SOME), "norm": _nullable(_number(0)),
    }, {"products": _record({"session": _HEX32} | _PADS_SPENT)}),
    "update.refused": _event("federated", {"round": _SOME, "party": _OWNER, "code": _CODE}),
    "round.merged": _event(
        "federated",
        {"round": _SOME, "rule": _choice(*RULES), "parties": _PARTIES, "state": _HEX64},
        {"noise_multiplier": _NOISE},
    ),
    "federation.finished": _event("federated", {"rounds": _SOME, "state": _HEX64}),
    "cut.begun": _event("cut", {
        "layers": _integer(0, 1000), "wire": _choice("bfloat16", "int8"),
        "spf_share": _number(0, 1),
    }),
    "cut.joined": _event("cut", {"party": _OWNER, "consent": _CONSENT}),
    "cut.received": _event("cut", {
        "party": _OWNER, "dataset_id": _HEX32, "rows": _COUNT, "messages": _COUNT,
        "bytes": _COUNT, "digest": _HEX64,
    }),
    "cut.finished": _event("cut", {"entries": _COUNT}),
    "pads.begun": _event("pads", _PADS_BEGUN),
    "pads.spent": _event("pads", _PADS_SPENT),
    "travel.setup": _event("travelling", {
        "buffer": _SOME, "program": _OBJECT, "holders": _map(_OWNER, _SOME, 1, 256),
        "nonce": _HEX64, **_STATE,
    }),
    "travel.taken-over": _event("travelling", _STATE),
    "travel.finished": _event(
        "travelling", {"model": _HEX64}, {"privacy": _map(_OWNER, _SPENT, 1, 256)}
    ),
    "trip.lent": _event("travelling", {
        "trip": _COUNT, "holder": _OWNER, "start": _COUNT, "end": _COUNT, "id": _HEX32,
    }),
    "trip.written": _event("travelling", {"trip": _COUNT, "size": _COUNT, "mark": _HEX64}),
    "trip.refused": _event("travelling", {"trip": _COUNT, "holder": _OWNER, "code": _CODE}),
    "trip.trained": _event(
        "travelling",
        {"trip": _COUNT, "tokens": _SOME, "nonce": _HEX64, "after": _record(_STATE)},
        {"moved": _number(-1)},
    ),
    "trip.scrubbed": _event("travelling", {
        "trip": _COUNT, "seed": _HEX64, "nonce": _HEX64, "proof": _HEX64,
    }),
}  # fmt: skip
"""Event → its row, in the order of the page."""


def fault(event: object, fields: object) -> str | None:
    """Name what an entry has that the table does not: ``event``, ``fields``, or ``None``.

    The value itself is in no answer: it may be what the entry was meant to carry.
    """
    if not isinstance(event, str) or event not in EVENTS:
        return "event"
    return None if EVENTS[event].form.holds(fields) else "fields"


def is_of(event: str, kind: str | None) -> bool:
    """Whether a run of a kind of collaboration has an event; ``None`` for a run of one guest."""
    return EVENTS[event].of in (None, kind)


def module() -> str:
    """The table as a module of the second verifier."""
    rows = "".join(
        f"  {json.dumps(name)}: {{\n    of: {json.dumps(row.of)},\n"
        f"    fields: {row.form.script},\n  }},\n"
        for name, row in EVENTS.items()
    )
    return (
        "// The closed table of a run log's events (spec/run-log.md): written by\n"
        "// tools/verifier_page.py from src/sealtrain/signing/logevents.py.\n"
        '\nimport * as shape from "./shape.js";\n'
        "\n/** Event → the kind of collaboration that has it, null for every run; its fields. */\n"
        f"export const EVENTS = {{\n{rows}}};\n"
        "\n/** Whether the table has such an event with such fields. */\n"
        "export const isWritten = (event, fields) =>\n"
        "  Object.hasOwn(EVENTS, event) && EVENTS[event].fields(fields);\n"
    )


def table() -> Iterable[str]:
    """The table as lines of the page."""
    yield "| event | of | field | form |"
    yield "|---|---|---|---|"
    for name, row in EVENTS.items():
        of = row.of or "every run"
        rows = [(f"`{field}`", form.words) for field, form in row.fields.items()]
        rows += [(f"`{field}`, or left out", form.words) for field, form in row.optional.items()]
        if not rows:
            free = row.form.words.startswith("object of")
            rows = [("any", row.form.words)] if free else [("none", "")]
        for number, (shown, words) in enumerate(rows):
            first = f"`{name}` | {of}" if number == 0 else " | "
            yield f"| {first} | {shown} | {words} |"

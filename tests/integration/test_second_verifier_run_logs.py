"""Run logs with any event or field changed and chained anew end alike for both verifiers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from manifest_world import FINISHED, START, World, make_world
from mutants import Mutants, at, places, variants
from run_logs import FIELDS, chained, fields_of
from second_verifier import Comparison, Question, compare, counted

from sealtrain.signing import logevents
from sealtrain.signing.logevents import EVENTS

SAMPLE = 42
Entry = tuple[str, Any]
Change = Callable[[list[Entry]], None]
RUNS = (None, *logevents.KINDS)
BROKEN = "run-log run-log-broken"
OTHERS: tuple[Any, ...] = (
    0, 1, -1, 0.5, 1e-9, -0.25, 1e9, 1e17, 2**53 - 1, 257, 1001, 4097, "", "0", "ab" * 16,
    "ab" * 32, "AB" * 32, "cd" * 33, "hospital-a", "Hospital", "a" * 64, "data-invalid",
    "patient 4711", "2026-02-30T00:00:00Z", "2026-02-28T00:00:00Z", "2026-02-28T00:00:00+00:00",
    "٣" * 32, "\U0001f3e5", "fedavg", "int8", "cuda", None, True, [], {}, [[]], [None],
    ["hospital-a"] * 257, {"note": "positive"}, {"constructor": 1}, {"__proto__": {"x": 1}},
)  # fmt: skip

pytestmark = [pytest.mark.long, pytest.mark.claim("C530"), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> Mutants:
    world: World = make_world(tmp_path_factory.mktemp("world"))
    return Mutants(world, world.manifest())


def told_of(kind: str | None) -> list[Entry]:
    """Every event that a run of a kind may have, with all its fields."""
    return [(event, fields_of(event)) for event, row in EVENTS.items() if row.of in (None, kind)]


def question(mutants: Mutants, label: str, kind: str | None, told: list[Entry]) -> Question:
    """A manifest of a run with such a log: each check before the log's passes."""
    document = copy.deepcopy(mutants.statement)
    predicate = document["predicate"]
    if kind is not None:
        predicate["collaboration"] = {"kind": kind, "parties": []}
    timed = [(event, fields, min(START + at, FINISHED)) for at, (event, fields) in enumerate(told)]
    predicate["run_log"] = chained(predicate["run"]["run_id"], timed)
    return mutants.question(f"{kind}: {label}", mutants.requoted(document))


def changes_of(kind: str | None) -> Iterator[tuple[str, Change]]:
    """Every change of one entry, by what a person would call it."""
    for place, (event, fields) in enumerate(told_of(kind)):

        def put(entry: Entry, place: int = place) -> Change:
            return lambda told: told.__setitem__(place, entry)

        def put_made(make: Callable[[], Any], place: int = place, event: str = event) -> Change:
            return lambda told: told.__setitem__(place, (event, make()))

        for other in (*EVENTS, "party.bribed", "trip.blessed", "constructor", "__proto__", ""):
            yield f"{event} renamed {other}", put((other, fields))
        for other in FIELDS:
            yield f"{event} with the fields of {other}", put((event, FIELDS[other]))
        for value in OTHERS:
            yield (
                f"{event} = {value!r}"[:80],
                put((event, value if isinstance(value, dict) else {})),
            )
            yield f"{event} with a note {value!r}"[:80], put((event, fields | {"note": value}))
        for path in places(fields):
            for label, make in variants(fields, path):
                yield f"{event} {label}"[:80], put_made(make)
            for value in OTHERS:
                yield (
                    f"{event} {path} = {value!r}"[:80],
                    put_made(partial(with_value, fields, path, value)),
                )
    for event in FIELDS:
        yield f"{event} added", lambda told, event=event: told.append((event, fields_of(event)))


def with_value(fields: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The fields with another value at a path."""
    changed = copy.deepcopy(fields)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def made(mutants: Mutants, kind: str | None, label: str, change: Change) -> Question:
    told = told_of(kind)
    change(told)
    return question(mutants, label, kind, told)


def compared(questions: list[Question], capsys: pytest.CaptureFixture[str]) -> Comparison:
    comparison = compare(questions)
    with capsys.disabled():
        print(f"\n{comparison}")
    assert comparison.disagreements == ()
    assert comparison.crashes == ()
    assert comparison.undecided.total() == 0
    return comparison


@pytest.mark.parametrize("kind", RUNS)
def test_every_event_of_a_kind_passes_both_verifiers_check_of_the_log(
    mutants: Mutants, kind: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compared([question(mutants, "honest", kind, told_of(kind))], capsys)
    assert BROKEN not in comparison.verdicts


def test_a_sample_of_changed_logs_ends_alike(
    mutants: Mutants, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(36)  # noqa: S311  # the same in every run
    questions = [
        made(mutants, kind, label, change)
        for kind in RUNS
        for label, change in chosen.sample(list(changes_of(kind)), SAMPLE // len(RUNS))
    ]
    comparison = compared(questions, capsys)
    assert 0 < comparison.verdicts[BROKEN] < len(questions)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.nightly
def test_changed_logs_end_alike(
    mutants: Mutants, kind: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random()  # noqa: S311  # others every night
    seen = chosen.sample(list(changes_of(kind)), 2000)
    comparison = compared([made(mutants, kind, *change) for change in seen], capsys)
    counted("changed run logs", comparison.asked, len(comparison.disagreements))


ATTACKS: dict[str, tuple[str, Change]] = {
    "words in a capability's id": (
        "travelling",
        lambda told: dict(told)["trip.lent"].update(id="patient 4711 was positive"),
    ),
    "words beside a measurement": (
        "travelling",
        lambda told: dict(told)["trip.trained"]["after"].update(note="positive"),
    ),
    "words for a measurement": (
        "travelling",
        lambda told: dict(told)["trip.trained"].update(after="positive"),
    ),
    "words for the code of one who left": (
        "federated",
        lambda told: dict(told)["party.left"].update(code="patient-4711-was-positive"),
    ),
    "an event that no federation has": (
        "federated",
        lambda told: told.append(("party.bribed", {"party": "hospital-a"})),
    ),
    "an event that no trip has": (
        "travelling",
        lambda told: told.append(("trip.blessed", {"trip": 0})),
    ),
    "an event of pads that none has": ("pads", lambda told: told.append(("pads.pool", {}))),
    "an event of a cut in a run of pads": (
        "pads",
        lambda told: told.append(("cut.finished", {"entries": 1})),
    ),
    "a kind's event in a run of none": (
        "",
        lambda told: told.append(("party.refused", {"code": "update-refused"})),
    ),
    "words as the name of withheld output": (
        "",
        lambda told: dict(told)["output.withheld"].update({"patient.4711": 1}),
    ),
    "words as the name of an output": (
        "",
        lambda told: dict(told)["outputs.sealed"].update({"patient 4711": "ab" * 32}),
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_chained_log_that_carries_more_is_refused_by_both(
    mutants: Mutants, attack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, change = ATTACKS[attack]
    comparison = compared([made(mutants, kind or None, attack, change)], capsys)
    assert comparison.verdicts == {BROKEN: 1}

"""Bad input to every command: the right exit code and error, nothing half-written, no row shown.

``bad_inputs.txt`` has what each call answers. ``SEALTRAIN_WRITE_TABLE=1`` writes it anew; read the
difference before you commit it. Where a changed byte lies differs from run to run, and so does the
answer to it: the table says so, and what holds for every answer is still checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from bad_input_calls import AT_THE_DESK, CALLS, NOT_WHOLE, NOTHING_TO_REPLACE
from bad_input_play import left_by, listing, play, remove
from bad_input_world import World, desk, world
from bad_inputs import Case, cases, good
from cli_tree import all_commands
from stage import CANARY

TABLE = Path(__file__).with_name("bad_inputs.txt")
WRITE = "SEALTRAIN_WRITE_TABLE" in os.environ
VARIES = "varies | varies"

nightly = pytest.mark.nightly  # more than two thousand calls


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("bad")) as made:
        yield made


@pytest.fixture(scope="module")
def calls(at: World) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases(CALLS, at.stage.folder, at.places):
        if at.disk or case.bad != "full small tmpfs":
            found.setdefault(case.command, []).append(case)
    return found


def expected() -> dict[str, str]:
    return {line.rsplit(" | ", 2)[0]: line for line in TABLE.read_text("utf-8").splitlines()}


@nightly
@pytest.mark.parametrize("command", CALLS)
def test_bad_input_is_refused_by_name(
    command: str, at: World, calls: dict[str, list[Case]]
) -> None:
    play_all(command, at, calls.get(command, []))


@pytest.fixture(scope="module")
def at_the_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, list[Case]]]:
    with desk(tmp_path_factory.mktemp("desk")) as made:
        yield made, list(cases(CALLS, made.stage.folder, made.places, AT_THE_DESK))


@pytest.mark.parametrize("command", AT_THE_DESK)
def test_bad_input_is_refused_at_the_desk(
    command: str, at_the_desk: tuple[World, list[Case]]
) -> None:
    made, every = at_the_desk
    found = [case for case in every if case.command == command and case.bad != "full small tmpfs"]
    play_all(command, made, found)
    call = CALLS[command]
    before = listing(made.stage.folder)
    assert play(made.stage, good(command, call, made.places), call).code == call.code
    remove(made.stage.folder, before)


def play_all(command: str, at: World, found: list[Case]) -> None:
    """Play the calls of a command, and hold their answers against the table."""
    call = CALLS[command]
    known, rows, wrong = expected(), [], []
    for case in found:
        before = listing(at.stage.folder)
        answer = play(at.stage, case.words, call, elsewhere=case.elsewhere)
        rows.append(f"{case.name} | {VARIES if case.bad == 'changed' else answer.told}")
        faults = [
            fault
            for fault, holds in {
                "traceback": "Traceback" in answer.said,
                "bug": "a bug in sealtrain" in answer.said,
                "row shown": CANARY in answer.said,
                "hang": answer.hung,
                "exit code": answer.code not in (0, 1, 2, 3, 4, 5, 124),
                "answer": not WRITE and rows[-1] != known.get(case.name),
                "left behind": answer.refused
                and not call.keeps
                and listing(at.stage.folder) != before,
            }.items()
            if holds
        ]
        if faults:
            wrong.append((rows[-1], faults, left_by(at.stage.folder, before), answer.said[-600:]))
        remove(at.stage.folder, before)  # the next call finds what this one found
    if WRITE:
        keep = [line for line in known.values() if not line.startswith(f"{command} | ")]
        TABLE.write_text("\n".join(sorted([*keep, *rows])) + "\n", "utf-8")
    assert not wrong, "\n\n".join(map(str, wrong))


@nightly
@pytest.mark.parametrize("command", sorted(CALLS, key=lambda name: CALLS[name].lasting))
def test_the_call_works_with_good_input(command: str, at: World) -> None:
    call = CALLS[command]
    before = listing(at.stage.folder)
    answer = play(at.stage, good(command, call, at.places), call)
    assert (answer.code, answer.ready) == (call.code, bool(call.ready)), answer.said[-2000:]
    remove(at.stage.folder, before)


@nightly
def test_every_row_of_the_table_is_a_call(calls: dict[str, list[Case]]) -> None:
    assert sorted(expected()) == sorted(case.name for of in calls.values() for case in of)


def test_every_command_has_a_call_or_a_reason() -> None:
    commands = {
        " ".join(path)
        for path, command in all_commands()
        if path and (not isinstance(command, click.Group) or command.invoke_without_command)
    }
    assert set(CALLS) | set(NOTHING_TO_REPLACE) == commands
    assert not set(CALLS) & set(NOTHING_TO_REPLACE)
    failing = {name for name, call in CALLS.items() if call.code and call.code != 124}
    assert failing - {"chain status"} == set(NOT_WHOLE)

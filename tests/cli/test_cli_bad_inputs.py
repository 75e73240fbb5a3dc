"""Every command: a call that works, and what it answers to bad input.

``bad_inputs.txt`` has a row for each bad call: command, what was replaced, by what, exit code and
error code. All calls are played every night, in a consortium of real servers; those of six commands
that ask no server are played with every change.
``SEALTRAIN_WRITE_TABLE=1`` writes the rows of the commands that are played (``-m nightly -k
"bad_input and attest"``) anew; read the difference before you commit it.

Where a changed byte lies differs from run to run, and so does the answer to it: the table says so,
and what holds for every answer is still checked.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import click
import pytest
from bad_input_calls import AT_THE_DESK, CALLS, NOT_WHOLE, NOTHING_TO_REPLACE
from bad_input_cases import ANOTHER_FOLDER, Case, cases, good
from bad_input_play import left_by, listing, lost_by, play, remove
from bad_input_world import World, desk, world
from bad_inputs import ADDRESS, PROXY, READ, SERVER, STORE, TEXT, WRITE
from cli_tree import all_commands
from stage import CANARY
from variants import variants

pytestmark = pytest.mark.long

TABLE = Path(__file__).with_name("bad_inputs.txt")
WRITE_TABLE = "SEALTRAIN_WRITE_TABLE" in os.environ
VARIES = "varies | varies"
DOCUMENTED = (0, 1, 2, 3, 4, 5, 124)
MOST_SAID = 40_000
"""Characters: an answer fits a few screens, however long the input is."""
FULL_DISK = "full small tmpfs"
DISK = "/dev/full"
"""The device that a full disk is; who may write everywhere could lose it."""
LASTING_LAST = sorted(CALLS, key=lambda name: CALLS[name].lasting)
Cases = Mapping[str, Sequence[Case]]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Cases]]:
    with world(tmp_path_factory.mktemp("calls")) as made:
        yield made, by_command(made, CALLS)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("good")) as made:
        yield made


@pytest.fixture(scope="module")
def at_the_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Cases]]:
    with desk(tmp_path_factory.mktemp("desk")) as made:
        yield made, by_command(made, AT_THE_DESK)


@pytest.mark.parametrize(
    "command",
    variants(
        [
            name
            for name in AT_THE_DESK
            if name not in ("deploy adopt", "image measure", "recipe import")
        ],
        each_time=["broker root split", "deploy parts", "explain", "init", "keygen", "recipes"],
    ),
)
def test_bad_input_is_refused_at_the_desk(command: str, at_the_desk: tuple[World, Cases]) -> None:
    made, found = at_the_desk
    are_answered_as_the_table_says(command, made, found[command])
    works(command, made)


@pytest.mark.nightly
@pytest.mark.parametrize("command", LASTING_LAST)
def test_bad_input_is_refused(command: str, at: tuple[World, Cases]) -> None:
    made, found = at
    are_answered_as_the_table_says(command, made, found[command])


@pytest.mark.nightly
@pytest.mark.parametrize("command", LASTING_LAST)
def test_a_call_of_every_command_works(command: str, untouched: World) -> None:
    works(command, untouched)


def test_every_command_has_a_call_or_a_reason() -> None:
    commands = {
        " ".join(path)
        for path, command in all_commands()
        if path and (not isinstance(command, click.Group) or command.invoke_without_command)
    }
    called = {call.command or name for name, call in CALLS.items()}
    assert called | set(NOTHING_TO_REPLACE) == commands
    assert not set(CALLS) & set(NOTHING_TO_REPLACE)
    failing = {name for name, call in CALLS.items() if call.code and call.code != 124}
    assert failing - {"chain status"} == set(NOT_WHOLE)


def test_the_table_has_every_command_and_every_kind_of_bad_input() -> None:
    rows = [line.split(" | ") for line in TABLE.read_text("utf-8").splitlines()]
    assert {command for command, *_ in rows} == set(CALLS)
    assert {bad for _, _, bad, *_ in rows} == {
        *READ,
        *WRITE,
        *TEXT,
        *ADDRESS,
        *SERVER,
        *STORE,
        *PROXY,
        ANOTHER_FOLDER,
    }


def by_command(made: World, commands: Collection[str]) -> Cases:
    """The cases that can be played here."""
    found: dict[str, list[Case]] = {name: [] for name in commands}
    for case in cases(CALLS, made.stage.folder, made.places, commands):
        if made.disk or case.bad != FULL_DISK:
            found[case.command].append(case)
    return found


def are_answered_as_the_table_says(command: str, made: World, found: Sequence[Case]) -> None:
    answers = {case.name: answer_to(case, made) for case in found}
    known = {}
    for line in TABLE.read_text("utf-8").splitlines():
        name, code, error = line.rsplit(" | ", 2)
        known[name] = f"{code} | {error}"
    own = {name for name in known if name.startswith(f"{command} | ")}
    if WRITE_TABLE:
        rows = {name: told for name, told in known.items() if name not in own} | answers
        lines = (f"{name} | {told}" for name, told in rows.items())
        TABLE.write_text("\n".join(sorted(lines)) + "\n", "utf-8")
    else:
        assert answers == {
            name: known[name] for name in own if made.disk or not name.endswith(f" | {FULL_DISK}")
        }


def answer_to(case: Case, made: World) -> str:
    """Exit code and error code of a bad call, which shows no row and leaves nothing behind."""
    call, folder = CALLS[case.command], made.stage.folder
    before = listing(folder)
    answer = play(made.stage, case.words, call, elsewhere=case.elsewhere)
    assert "Traceback" not in answer.said, case.name
    assert "a bug in sealtrain" not in answer.said, case.name
    assert CANARY not in answer.said, case.name
    assert len(answer.said) <= MOST_SAID or answer.code == 0, case.name
    assert not answer.hung, case.name
    assert answer.code in DOCUMENTED, case.name
    assert Path(DISK).is_char_device(), case.name
    assert lost_by(folder, before) == [], case.name
    if answer.refused and not call.keeps:
        assert left_by(folder, before) == [], case.name
    remove(folder, before)  # the next call finds what this one found
    return VARIES if case.bad == "changed" else answer.told


def works(command: str, made: World) -> None:
    call, folder = CALLS[command], made.stage.folder
    before = listing(folder)
    answer = play(made.stage, good(command, call, made.places), call)
    assert (answer.code, answer.ready) == (call.code, bool(call.ready)), answer.said[-2000:]
    remove(folder, before)

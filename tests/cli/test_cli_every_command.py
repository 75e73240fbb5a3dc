"""A call that works of every command, from identities to chains; and bad input at the desk.

Whole calls are played every night, in a consortium of real servers. The commands that ask no server
are played with every change, each word of their calls replaced by something bad; what they answer
is in ``bad_inputs.txt``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from bad_input_calls import AT_THE_DESK, CALLS, NOT_WHOLE, NOTHING_TO_REPLACE
from bad_input_cases import Case, cases, good
from bad_input_play import left_by, listing, play, remove
from bad_input_world import World, desk, world
from cli_tree import all_commands
from stage import CANARY

TABLE = Path(__file__).with_name("bad_inputs.txt")
DOCUMENTED = (0, 1, 2, 3, 4, 5, 124)


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("calls")) as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("command", sorted(CALLS, key=lambda name: CALLS[name].lasting))
def test_a_call_of_every_command_works(command: str, at: World) -> None:
    call = CALLS[command]
    before = listing(at.stage.folder)
    answer = play(at.stage, good(command, call, at.places), call)
    assert (answer.code, answer.ready) == (call.code, bool(call.ready)), answer.said[-2000:]
    remove(at.stage.folder, before)


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


@pytest.fixture(scope="module")
def at_the_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, list[Case]]]:
    with desk(tmp_path_factory.mktemp("desk")) as made:
        found = cases(CALLS, made.stage.folder, made.places, AT_THE_DESK)
        yield made, [case for case in found if made.disk or case.bad != "full small tmpfs"]


@pytest.mark.parametrize("command", AT_THE_DESK)
def test_bad_input_is_refused_at_the_desk(
    command: str, at_the_desk: tuple[World, list[Case]]
) -> None:
    (made, every), call = at_the_desk, CALLS[command]
    known = dict(line.rsplit(" | ", 2)[::2] for line in TABLE.read_text("utf-8").splitlines())
    folder = made.stage.folder
    for case in (case for case in every if case.command == command):
        before = listing(folder)
        answer = play(made.stage, case.words, call, elsewhere=case.elsewhere)
        assert "Traceback" not in answer.said, case
        assert "a bug in sealtrain" not in answer.said, case
        assert CANARY not in answer.said, case
        assert not answer.hung, case
        assert answer.code in DOCUMENTED, case
        if case.bad != "changed":
            assert answer.error == known.get(case.name, answer.error), case
        assert not answer.refused or left_by(folder, before) == [], case
        remove(folder, before)
    before = listing(folder)
    assert play(made.stage, good(command, call, made.places), call).code == call.code
    remove(folder, before)

"""A guest passes its states in order: made, it has done nothing; refused, it comes no further."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sealtrain.errors import RecipeChanged, SealtrainError
from sealtrain.guest.guest import AttestedGuest, Surroundings
from sealtrain.guest.guestrun import GuestRun
from sealtrain.guest.key_holder import Asking, DataGuest
from sealtrain.guest.settings import RunSettings
from sealtrain_together.parties.lead import LeadRun
from sealtrain_together.parties.party import Participation, PartyRun

RUN_ID = "5a" * 16
MADE: dict[str, Callable[[RunSettings, Surroundings], AttestedGuest]] = {
    "without keys": AttestedGuest,
    "run": lambda settings, around: GuestRun(settings, RUN_ID, around, resuming=False),
    "lead": lambda settings, around: LeadRun(settings, RUN_ID, around),
    "party": lambda settings, around: PartyRun(
        settings, Participation(party="clinic-a", run_id=RUN_ID), around
    ),
}


def settings_of(folder: Path) -> RunSettings:
    """Settings of a run whose lock, guest, brokers and data are missing."""
    return RunSettings(
        lock=folder / "recipe.lock.json",
        platform="simulator",
        guest="guest.sock",
        collateral=None,
        brokers=(folder / "north.yaml",),
        data=(folder / "sealed",),
        base=folder,
        out=folder / "run",
    )


class NotedSurroundings:
    """Surroundings that note what a guest asks of them."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.asked: list[str] = []
        self.around = Surroundings(on_stage=self.stage, clock=self.clock, random=self.random)

    def stage(self, what: str) -> Any:
        self.stages.append(what)
        return nullcontext()

    def clock(self) -> int:
        self.asked.append("clock")
        return 0

    def random(self, count: int) -> bytes:
        self.asked.append("random")
        return secrets.token_bytes(count)


class MeasuredOther(DataGuest):
    """A guest that measured another recipe."""

    def admit(self) -> NoReturn:
        raise RecipeChanged("another recipe", check="recipe hash")


@pytest.mark.parametrize("kind", MADE)
def test_a_guest_that_was_made_has_done_nothing(kind: str, tmp_path: Path) -> None:
    noted = NotedSurroundings()
    made = MADE[kind](settings_of(tmp_path), noted.around)
    assert (noted.stages, noted.asked, list(tmp_path.iterdir())) == ([], [], [])
    assert not hasattr(made, "admitted")


def test_a_guest_that_is_not_admitted_asks_no_broker(tmp_path: Path) -> None:
    noted = NotedSurroundings()
    asking = Asking(run_id=RUN_ID, resuming=False)
    guest = MeasuredOther(settings_of(tmp_path), asking, noted.around, shared_out=False)
    with pytest.raises(RecipeChanged):
        guest.prepare()
    assert (len(noted.stages), noted.asked) == (1, [])
    assert not hasattr(guest, "quorum")


def test_a_run_that_does_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    noted = NotedSurroundings()
    with pytest.raises(SealtrainError):
        GuestRun.begin(settings_of(tmp_path), noted.around)
    assert (len(noted.stages), list(tmp_path.iterdir())) == (1, [])

"""A run keeps silent wherever its data is real, whatever its host's environment says."""

from __future__ import annotations

from typing import get_args

import pytest

from sealtrain.base.platforms import Platform
from sealtrain.guest.sandbox.border import enclose
from sealtrain.guest.sandbox.events import run_telling
from sealtrain.guest.sandbox.output import OutputTally
from sealtrain.guest.sandbox.rehearsal import INSECURE_SHOW, insecure_loud, shows_insecurely

pytestmark = pytest.mark.claim("C149")

RECORD = "patient 4711, malignant"


@pytest.fixture
def asked_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in INSECURE_SHOW.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("asked_to_show")
@pytest.mark.parametrize("platform", get_args(Platform))
def test_no_setting_of_a_host_makes_a_run_on_hardware_show_anything(platform: str) -> None:
    assert shows_insecurely(platform) == (platform == "simulator")
    for odd in (platform.upper(), f"{platform} ", ""):
        assert not shows_insecurely(odd)


@pytest.mark.parametrize("value", [None, "", "1", "true", "MAY-SHOW-DATA", "may-show-data "])
def test_the_simulator_is_silent_unless_the_whole_word_is_said(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    (name,) = INSECURE_SHOW
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    assert not shows_insecurely("simulator")


@pytest.mark.usefixtures("asked_to_show")
def test_the_variable_alone_changes_nothing_inside_the_sandbox(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def failing() -> None:
        print(RECORD)
        raise ValueError(RECORD)

    tally = OutputTally()
    with (
        enclose(tally, alone=False, accelerated=False),
        pytest.raises(Exception) as caught,
    ):
        run_telling(failing, "none", lambda: tally.counts)
    shown = capfd.readouterr()
    assert RECORD not in shown.out + shown.err + str(caught.value)
    assert tally.counts["printed"] == 1


def test_what_a_rehearsal_shows_is_talk_and_no_data(capfd: pytest.CaptureFixture[str]) -> None:
    """Stdout stays one JSON object."""
    with insecure_loud() as terminal:
        print("said")
        terminal.write("drawn\n")
    print("data")
    shown = capfd.readouterr()
    assert shown.out == "data\n"
    assert shown.err == "said\ndrawn\n"

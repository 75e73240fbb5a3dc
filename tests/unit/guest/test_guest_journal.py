"""Sealed journals beside checkpoints, in a folder that the operator can write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sealing_world import KEY

from sealtrain.guest.journal import Journal, JournalStore
from sealtrain.signing.runlog import RunLog

RUN = "ab" * 16
STARTED = "2026-01-02T03:04:05Z"


@pytest.fixture
def journal() -> Journal:
    return Journal(log=RunLog(RUN), started_at=STARTED)


@pytest.fixture
def store(tmp_path: Path, journal: Journal) -> JournalStore:
    made = JournalStore(tmp_path / "journals", KEY, RUN)
    made.save(journal, 1, 5, 1.0)
    return made


@pytest.mark.claim("C34")
def test_files_that_are_no_journals_are_passed_over(
    tmp_path: Path, store: JournalStore, journal: Journal
) -> None:
    folder = tmp_path / "journals"
    for name in (
        "x",
        "journal-x",
        "zz z",
        "journal-",
        "journal-99999999x",
        "\N{ARABIC-INDIC DIGIT ONE}",
    ):
        (folder / f"{name}.sealed").write_bytes(b"")
    os.mkfifo(folder / "journal-00000009.sealed")
    for counter in range(2, 6):
        store.save(journal, counter, 5 * counter, 1.0)
    assert store.counters() == {3, 4, 5}
    assert store.load(5).started_at == STARTED

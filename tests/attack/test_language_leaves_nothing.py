"""Sentence Transformers writes texts into model cards, TRL too; none come out of a run."""

from __future__ import annotations

import pytest
from remains import Remains, remains_of
from training_world import CANARY

pytestmark = [pytest.mark.long, pytest.mark.nightly]

OURS = ("owner", "sealed", "checkpoints", "base")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    """What is left after training every way."""
    return remains_of("learner_victim", tmp_path_factory.mktemp("left"), "language", timeout=280)


@pytest.mark.claim("C4")
def test_only_sealed_files_are_left(left: Remains) -> None:
    assert left.places() == set(OURS)
    assert left.suffixes("checkpoints") == {".sealed"}
    assert len(set(left.answer["weights"].values())) == 5


@pytest.mark.claim("C4")
def test_no_file_but_the_owners_holds_a_record(left: Remains) -> None:
    assert left.holding(CANARY) == {"owner"}


@pytest.mark.claim("C4")
def test_nothing_else_is_opened_for_writing_and_nobody_is_called(left: Remains) -> None:
    assert left.opened_outside(OURS) == set()
    assert len(left.opened_for_a_try()) <= 1
    assert left.answer["called"] == []

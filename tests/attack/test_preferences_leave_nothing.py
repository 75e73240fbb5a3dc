"""TRL writes model cards, caches and warnings when it learns from preferences; none come out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from preference_world import merging_tokenizer, preferring, write_preferences
from remains import Remains, remains_of
from training_world import CANARY, checkpoint_store, run, seal_records, sources_of

pytestmark = pytest.mark.long

OURS = ("owner", "sealed", "checkpoints", "tokenizer")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    """What is left after training every way."""
    return remains_of("learner_victim", tmp_path_factory.mktemp("left"), "preferences", timeout=200)


@pytest.mark.nightly
@pytest.mark.claim("C4")
def test_only_sealed_files_are_left(left: Remains) -> None:
    assert left.places() == set(OURS)
    assert left.suffixes("checkpoints") == {".sealed"}
    assert len(set(left.answer["weights"].values())) == 5


@pytest.mark.nightly
@pytest.mark.claim("C4")
def test_no_file_but_the_owners_holds_a_record(left: Remains) -> None:
    assert left.holding(CANARY) == {"owner"}


@pytest.mark.nightly
@pytest.mark.claim("C4")
def test_nothing_else_is_opened_for_writing_and_nobody_is_called(left: Remains) -> None:
    assert left.opened_outside(OURS) == set()
    assert len(left.opened_for_a_try()) <= 1
    assert left.answer["called"] == []


@pytest.mark.claim("C4")
def test_a_question_that_trl_quotes_in_a_warning_is_heard_by_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sealed = dict(seal_records(write_preferences(tmp_path), tmp_path))
    merging_tokenizer(tmp_path / "tokenizer")
    model = preferring("dpo").to_dict()["model"] | {"tokenizer": {"path": "tokenizer"}}
    recipe = preferring("dpo", model=model, trainer={"max_steps": 2})
    quoted: list[str] = []

    def listen(record: logging.LogRecord) -> bool:
        quoted.append(record.getMessage())
        return True

    from accelerate.logging import MultiProcessAdapter

    trl = logging.getLogger("trl.trainer.dpo_trainer")
    trl.addFilter(listen)
    try:
        run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / "checkpoints"),
            base_dir=tmp_path,
        )
        assert quoted == []
        assert caplog.records == []
        assert capfd.readouterr() == ("", "")
        # The same warning is there to be heard, were TRL not silenced.
        MultiProcessAdapter.warning_once.cache_clear()
        trl.setLevel(logging.WARNING)
        run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / "loud"),
            base_dir=tmp_path,
        )
    finally:
        trl.setLevel(logging.NOTSET)
        trl.removeFilter(listen)
    assert any("left out of the training sequence" in message for message in quoted)

"""What a model answers to sealed prompts while it is trained never comes out."""

from __future__ import annotations

import pytest
from learner_victim import UTTERED
from remains import Remains, remains_of
from training_world import CANARY

pytestmark = [pytest.mark.nightly, pytest.mark.long]

OURS = ("owner", "sealed", "checkpoints", "base", "scorer")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    """What is left after training every way."""
    return remains_of("learner_victim", tmp_path_factory.mktemp("left"), "answers", timeout=300)


def test_the_model_did_say_it(left: Remains) -> None:
    for name in ("ppo", "rloo", "grpo"):
        assert left.answer["metrics"][name]["reward"] > 0.5
        assert left.answer["metrics"][name]["eval_reward"] > 0.5


@pytest.mark.claim("C4")
def test_no_answer_and_no_prompt_is_in_any_file_or_line(left: Remains) -> None:
    for word in (UTTERED, CANARY):
        assert word not in left.line
        assert left.holding(word) == {"owner"}


@pytest.mark.claim("C4")
def test_only_sealed_files_are_left_and_nobody_is_called(left: Remains) -> None:
    assert left.places() == set(OURS)
    assert left.suffixes("checkpoints") == {".sealed"}
    assert left.opened_outside(OURS) == set()
    assert len(left.opened_for_a_try()) <= 1
    assert left.answer["called"] == []
    assert left.answer["logged"] == []

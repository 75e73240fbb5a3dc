"""A stage is said when it begins and while it lasts, and leaves no thread behind."""

from __future__ import annotations

import threading
import time

import pytest

from sealtrain.base.stages import say_stages, unsaid


def test_a_stage_is_said_once_and_again_while_it_lasts() -> None:
    said: list[str] = []
    again = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) >= 3:
            again.set()

    with say_stages(say, every=0.01)("waiting for the brokers"):
        assert again.wait(10)
    assert said[0] == "waiting for the brokers"
    assert all(said[0] in line for line in said)
    count = len(said)
    time.sleep(0.05)
    assert len(said) == count


def test_no_thread_is_left_even_where_the_stage_fails() -> None:
    with pytest.raises(ValueError, match="x"), say_stages(lambda _line: None)("work"):
        raise ValueError("x")
    assert not [thread for thread in threading.enumerate() if thread.name == "stage"]


def test_an_unsaid_stage_does_nothing() -> None:
    with unsaid("work"):
        assert not [thread for thread in threading.enumerate() if thread.name == "stage"]

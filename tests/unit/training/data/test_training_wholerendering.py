"""Whether a chat template renders what a record holds."""

from __future__ import annotations

from typing import Any

import pytest
from carrying import carries

from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.template_check import WholeRendering, find_left_out

pytestmark = pytest.mark.claim("C618")

Turn = dict[str, Any]
ASKED: Turn = {"role": "user", "content": "How are you?"}
SAID: Turn = {"role": "assistant", "content": "Well."}
THOUGHT: Turn = {"role": "assistant", "content": "<think>Am I?</think>Well."}
CALLED: Turn = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "free_beds", "arguments": {"ward": 1}}}],
}
TOOL: Turn = {"type": "function", "function": {"name": "free_beds"}}


@pytest.mark.parametrize(
    ("text", "turns", "tools"),
    [
        ("How are you? Well.", [ASKED, SAID], None),
        ("  How are you?\nWell.", [ASKED, SAID], None),
        ("How are you? Well. Bye.", [ASKED, THOUGHT, SAID | {"content": "Bye."}], None),
        ("How are you? <think>\nAm I?\n</think>\n\nWell.", [ASKED, THOUGHT], None),
        ('How are you? {"name": "free_beds", "arguments": {"ward": 1}}', [ASKED, CALLED], [TOOL]),
        ('"say \\"it\\"\\n\\u00e9"', [ASKED | {"content": 'say "it"\n\u00e9'}], None),
        ("How are you? No. Well.", [ASKED, SAID | {"reasoning_content": "No."}], None),
        ("How are you?", [ASKED, SAID | {"content": " \n"}], None),
    ],
)
def test_what_a_template_trims_escapes_or_leaves_out_by_design_is_there(
    text: str, turns: list[Turn], tools: list[Turn] | None
) -> None:
    assert find_left_out(text, turns, tools) is None


@pytest.mark.parametrize(
    ("text", "turns", "tools"),
    [
        ("How are you?", [ASKED, SAID], None),
        ("How are you? Well.", [ASKED, THOUGHT], None),
        ("How are you?", [ASKED, CALLED], None),
        ("How are you? free_beds", [ASKED, CALLED], None),
        ("How are you? Well.", [ASKED, SAID], [TOOL]),
        ("How are you? Well.", [ASKED, SAID | {"reasoning_content": "No."}], None),
        ("How are you? Well.", [ASKED, SAID | {"thinking": "No."}], None),
    ],
)
def test_what_is_not_rendered_is_named_by_its_kind(
    text: str, turns: list[Turn], tools: list[Turn] | None
) -> None:
    assert find_left_out(text, turns, tools) is not None


def test_messages_of_each_form_are_rendered_once_and_a_later_form_is_found() -> None:
    whole, rendered = WholeRendering(), 0

    def render() -> str:
        nonlocal rendered
        rendered += 1
        return "How are you? Well."

    for _ in range(3):
        whole.require([ASKED, SAID], None, render)
    assert rendered == 1
    for turns in ([{"role": "system", "content": "Be kind."}, ASKED, SAID], [ASKED, CALLED]):
        for _ in range(2):  # what was refused is refused again
            with pytest.raises(RecordInvalid, check=carries(check="tokenizer")):
                whole.require(turns, None, render)


def test_a_text_of_another_length_is_looked_at() -> None:
    whole = WholeRendering()
    whole.require([ASKED], None, lambda: "How are you?")
    long = ASKED | {"content": "How are you? " * 50}
    with pytest.raises(RecordInvalid):
        whole.require([long], None, lambda: "How are you?")

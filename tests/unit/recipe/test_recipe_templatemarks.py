"""Where only answers are learned, a template that cannot say which they are is refused early."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying import carries

from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.fitness import misfits, misfits_of_record, require_fitness
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.templatemarks import (
    changing_name,
    chat_template,
    chat_templates,
    has_marks,
    list_templates,
)
from sealtrain.training.data.conversations import check_template, check_tokenizer

PLAIN = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
MARKED = PLAIN.replace("{{ m['role']", "{{ m['role'] }}{% generation %}{{ m['role']").replace(
    "{% endfor %}", "{% endgeneration %}{% endfor %}"
)


def conversations(sft: dict[str, Any], **trainer: Any) -> Any:
    return parse_recipe(
        sft
        | {
            "columns": {"messages": "messages"},
            "model": {"path": "base"},
            "trainer": sft["trainer"] | trainer,
            "release_policy": sft["release_policy"] | {"metrics": ["loss"]},
        }
    )


def base(folder: Path, template: Any, *, file: bool = False) -> Path:
    """A model's folder whose tokenizer has a template, in a file of its own or in its settings."""
    folder = folder / "base"
    folder.mkdir()
    settings = {"eos_token": "</s>"} | ({} if file else {"chat_template": template})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if file:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def named(template: str) -> list[dict[str, str]]:
    return [{"name": "tool_use", "template": MARKED}, {"name": "default", "template": template}]


@pytest.mark.parametrize(
    ("template", "file"),
    [(PLAIN, True), (PLAIN, False), (named(PLAIN), False)],
    ids=["of its own file", "of the settings", "named"],
)
def test_a_template_without_marks_is_refused_where_only_answers_are_learned(
    sft: dict[str, Any], tmp_path: Path, template: Any, file: bool
) -> None:
    pytest.importorskip("trl")
    base(tmp_path, template, file=file)
    recipe = conversations(sft, assistant_only_loss=True)
    with pytest.raises(RecipeInvalid, check=carries(field="trainer.assistant_only_loss")):
        require_fitness(recipe, tmp_path, [*recipe.owners, *recipe.release_policy.model.recipients])
    whole = conversations(sft)
    assert "trainer.assistant_only_loss" not in {
        misfit.field for misfit in misfits(whole, tmp_path, whole.owners)
    }


@pytest.mark.parametrize(
    "template",
    [
        MARKED,
        MARKED.replace("{% generation %}", "{%- generation -%}"),
        MARKED.replace("{% generation %}", "{%generation%}"),
    ],
)
def test_marks_are_found_however_they_are_spaced(
    sft: dict[str, Any], tmp_path: Path, template: str
) -> None:
    base(tmp_path, template, file=True)
    recipe = conversations(sft, assistant_only_loss=True)
    assert "trainer.assistant_only_loss" not in {
        misfit.field for misfit in misfits(recipe, tmp_path, recipe.owners)
    }


def test_a_template_of_which_trl_has_a_twin_is_no_misfit() -> None:
    pytest.importorskip("trl")
    known = list_templates()
    assert known
    assert all(has_marks(template, known) for template in known)
    assert not has_marks(PLAIN, known)


def test_without_trl_no_template_is_refused() -> None:
    assert has_marks(PLAIN, None)


def test_a_file_goes_before_the_settings(tmp_path: Path) -> None:
    folder = base(tmp_path, PLAIN)
    assert chat_template(folder) == PLAIN
    (folder / "chat_template.jinja").write_text(MARKED, "utf-8")
    assert chat_template(folder) == MARKED
    assert chat_template(tmp_path) is None


DATED = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}" + PLAIN


@pytest.mark.claim("C647")
@pytest.mark.parametrize(
    ("template", "name"),
    [
        (DATED, "strftime_now"),
        ("{%- set now = strftime_now -%}{{ now('%d') }}" + PLAIN, "strftime_now"),
        ("{{ lipsum(1) }}" + PLAIN, "lipsum"),
        ("{{ ['a', 'b'] | random }}" + PLAIN, "random"),
        ("{{ ['a', 'b']|random }}" + PLAIN, "random"),
        (PLAIN, None),
        ("{{ ['a']|map('random') }}" + PLAIN, "random"),
        ("{% filter random %}ab{% endfilter %}" + PLAIN, "random"),
        ("{{ '{#' }}{{ strftime_now('%d') }}{{ '#}' }}" + PLAIN, "strftime_now"),
        ("{% if strftime_now is not defined %}{{ date }}{% endif %}" + PLAIN, None),
        ("{% set strftime_nowadays = 1 %}Say lipsum, at random." + PLAIN, None),
    ],
)
def test_a_template_that_changes_by_itself_is_named(template: str, name: str | None) -> None:
    assert changing_name(template) == name


@pytest.mark.claim("C647")
@pytest.mark.parametrize(
    ("template", "file"),
    [
        (DATED, True),
        (DATED, False),
        ([*named(PLAIN), {"name": "rag", "template": DATED}], False),
    ],
    ids=["of its own file", "of the settings", "named"],
)
def test_a_template_that_writes_the_date_is_refused_for_conversations_alone(
    sft: dict[str, Any], tmp_path: Path, template: Any, file: bool
) -> None:
    base(tmp_path, template, file=file)
    recipe = conversations(sft)
    [found] = [
        misfit
        for misfit in misfits(recipe, tmp_path, recipe.owners)
        if misfit.field == "model.tokenizer"
    ]
    assert found.got == "strftime_now"
    texts = parse_recipe(sft | {"model": {"path": "base"}})
    assert not [
        misfit for misfit in misfits(texts, tmp_path, texts.owners) if misfit.got == "strftime_now"
    ]


@pytest.mark.claim("C647")
def test_a_further_template_in_a_file_is_judged_too(sft: dict[str, Any], tmp_path: Path) -> None:
    folder = base(tmp_path, PLAIN, file=True)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(DATED, "utf-8")
    assert chat_templates(folder) == {"default": PLAIN, "tool_use": DATED}
    recipe = conversations(sft)
    assert "strftime_now" in {misfit.got for misfit in misfits(recipe, tmp_path, recipe.owners)}


@pytest.mark.claim("C647")
@pytest.mark.parametrize("held", [DATED, {"default": PLAIN, "tool_use": DATED}])
def test_the_guest_refuses_such_a_template_of_an_opened_tokenizer(held: Any) -> None:
    tokenizer: Any = SimpleNamespace(chat_template=held, eos_token="</s>")
    with pytest.raises(ModelInvalid, check=carries(got="strftime_now")):
        check_template(tokenizer)
    check_tokenizer(tokenizer, conversations=False)


@pytest.mark.claim("C647")
def test_preferences_in_conversations_need_a_template_that_stays(
    sft: dict[str, Any], tmp_path: Path
) -> None:
    base(tmp_path, DATED)
    recipe = parse_recipe(
        sft
        | {
            "phase": "dpo",
            "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
            "model": {"path": "base"},
            "release_policy": sft["release_policy"] | {"metrics": ["loss"]},
        }
    )
    turns = [{"role": "user", "content": "x"}]
    spoken = {"prompt": turns, "chosen": turns, "rejected": turns}
    [found] = misfits_of_record(recipe, tmp_path, spoken)
    assert (found.field, found.got) == ("model.tokenizer", "strftime_now")
    assert not misfits_of_record(recipe, tmp_path, {"prompt": "x", "chosen": "y", "rejected": "z"})

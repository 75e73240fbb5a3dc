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
from sealtrain.training.models.base import build_tokenizer

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


class TestTemplateOfTheRecipe:
    """``model.chat_template``: a list of lines, judged as the template of a saved tokenizer is."""

    LINES = ("{% for m in messages %}", "{{ m['role'] + ': ' + m['content'] }}", "{% endfor %}")

    def recipe(self, sft: dict[str, Any], template: Any = LINES, **changed: Any) -> Any:
        whole = {
            "columns": {"messages": "messages"},
            "model": sft["model"] | {"chat_template": template},
            "release_policy": sft["release_policy"] | {"metrics": ["loss"]},
        }
        return parse_recipe(sft | whole | changed)

    @pytest.mark.claim("C740")
    def test_the_lock_has_each_line_and_each_line_is_in_the_hash(
        self, sft: dict[str, Any], lock_of: Any
    ) -> None:
        locked = [
            lock_of(self.recipe(sft, lines).to_dict())
            for lines in (list(self.LINES), [*self.LINES[:2], "{% endfor %} "])
        ]
        assert locked[0].lock.recipe.model.chat_template == self.LINES
        assert locked[0].lock.recipe.model.template == "\n".join(self.LINES)
        assert locked[0].recipe_hash != locked[1].recipe_hash
        assert b"chat_template" not in lock_of(sft).lock_bytes

    def test_it_stands_in_for_the_template_that_a_tokenizer_lacks(
        self, sft: dict[str, Any], tmp_path: Path
    ) -> None:
        without = self.recipe(sft, None)
        assert [found.field for found in misfits(without, tmp_path, without.owners)] == [
            "columns.messages"
        ]
        recipe = self.recipe(sft)
        assert misfits(recipe, tmp_path, recipe.owners) == []
        tokenizer = build_tokenizer(recipe, tmp_path)
        check_template(tokenizer)
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        written = tokenizer.apply_chat_template(turns, tokenize=False)
        assert written == "user: a\nassistant: b\n"

    @pytest.mark.claim("C647", "C740")
    @pytest.mark.parametrize(
        "line", ["{{ strftime_now('%d') }}", "{{ lipsum() }}", "{{ x|random }}"]
    )
    def test_a_template_that_changes_by_itself_is_refused_at_the_desk_and_in_the_guest(
        self, sft: dict[str, Any], tmp_path: Path, line: str
    ) -> None:
        recipe = self.recipe(sft, [*self.LINES, line])
        (found,) = misfits(recipe, tmp_path, recipe.owners)
        assert found.field == "model.chat_template"
        with pytest.raises(ModelInvalid, check=carries(check="tokenizer", got=found.got)):
            check_template(build_tokenizer(recipe, tmp_path))

    def test_a_template_of_the_base_does_not_excuse_the_recipe_s(
        self, sft: dict[str, Any], tmp_path: Path
    ) -> None:
        base(tmp_path, MARKED)
        learns_answers = {"trainer": sft["trainer"] | {"assistant_only_loss": True}}
        model = {"path": "base", "chat_template": [PLAIN]}
        recipe = self.recipe(sft, model=model, **learns_answers)
        found = misfits(recipe, tmp_path, recipe.owners)
        assert [(item.field, item.got) for item in found] == [
            ("trainer.assistant_only_loss", "model.chat_template")
        ]
        marked = self.recipe(sft, model=model | {"chat_template": [MARKED]}, **learns_answers)
        assert misfits(marked, tmp_path, marked.owners) == []

    @pytest.mark.parametrize(
        "changed",
        [
            {"columns": {"text": "prompt"}},
            {"columns": {"prompt": "prompt", "completion": "completion"}},
            {"phase": "cpt", "columns": {"text": "prompt"}},
            {"scripts": ["train.py"]},
            {"model": {"path": "base", "chat_template": ["x"]}, "peft": None,
             "backend": {"name": "axolotl"}},
            {"model": {"path": "base", "chat_template": ["x"]}, "peft": None,
             "backend": {"name": "unsloth"}},
            {"model": {"path": "base", "chat_template": []}},
            {"model": {"path": "base", "chat_template": "x"}},
            {"model": {"path": "base", "chat_template": ["two\nlines"]}},
            {"model": {"path": "base", "chat_template": ["a\u202eb"]}},
        ],
    )  # fmt: skip
    def test_where_no_conversation_is_written_it_is_refused_by_name(
        self, sft: dict[str, Any], changed: dict[str, Any]
    ) -> None:
        with pytest.raises(RecipeInvalid, match="chat_template"):
            self.recipe(sft, **changed)

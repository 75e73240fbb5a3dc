"""Where only answers are learned, a template that cannot say which they are is refused early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.fitness import misfits, require_fitness
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.templatemarks import chat_template, known_templates, marked

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
    known = known_templates()
    assert known
    assert all(marked(template, known) for template in known)
    assert not marked(PLAIN, known)


def test_without_trl_no_template_is_refused() -> None:
    assert marked(PLAIN, None)


def test_a_file_goes_before_the_settings(tmp_path: Path) -> None:
    folder = base(tmp_path, PLAIN)
    assert chat_template(folder) == PLAIN
    (folder / "chat_template.jinja").write_text(MARKED, "utf-8")
    assert chat_template(folder) == MARKED
    assert chat_template(tmp_path) is None

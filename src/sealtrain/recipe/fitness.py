"""Judge a recipe at the engineer's desk: what would fail only after keys, or after the training.

A recipe may keep its schema and still be one that cannot end well. Here it is held against what the
engineer has at hand: the names of the consortium's owners, and the files of the base model.

1. Owners of datasets and recipients of the model are owners of the consortium.
2. The metrics that may leave are ones that the phase measures.
3. The adapter's modules and layers are the base model's.
4. A record, with an adapter's virtual tokens, is no longer than the base model's positions.
5. A tokenizer that writes conversations has a chat template, which renders the same text always.
6. A tokenizer that ends answers has an end token, and the base model an embedding for every token.
7. The metrics that test records are for have test records.
8. Where only the assistant's turns are learned, the template marks them.

Whether prompts and answers of preferences are conversations, only a record says: with one at hand,
the fifth is judged for them too.

A script of the engineer's trains as it likes, so for recipes with scripts only the first is judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.suggestion import nearest
from sealtrain.recipe.basemodel import MADE, BaseFacts, base_facts
from sealtrain.recipe.conversations import TOOLS, has_template
from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.metricnames import find_unmeasured, find_untested, list_metrics
from sealtrain.recipe.modelspec import Model
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.recordcolumns import CONVERSATIONS
from sealtrain.recipe.templatemarks import (
    MARKS,
    changing_name,
    changing_template,
    chat_template,
    chat_templates,
    has_marks,
    list_templates,
)
from sealtrain.recipe.tokenizerfacts import (
    BYTES_TOKENS,
    TokenizerFacts,
    needs_end,
    tokenizer_facts,
    tokens_beyond,
    without_end,
    without_template,
)

_NO_TOKENS: Final = ("image", "tabular")
"""Kinds of columns of which a model reads no tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """One thing in a recipe that could not work.

    Attributes:
        field: Of the recipe.
        message: What is wrong with it.
        got: What the recipe says.
        expected: What would do.
        hint: What the engineer can do.
    """

    field: str
    message: str
    got: str
    expected: str
    hint: str

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON-ready form."""
        return {
            "field": self.field,
            "message": self.message,
            "got": self.got,
            "expected": self.expected,
            "hint": self.hint,
        }


def misfits(recipe: PhaseRecipe, base_dir: Path, members: Collection[str]) -> list[Misfit]:
    """Everything about a recipe that could not work, in the order of the module's list.

    Args:
        recipe: Of any phase.
        base_dir: Folder that its paths start from.
        members: Names of the consortium's owners.

    Raises:
        ModelInvalid: The base model's folder is missing or damaged.
    """
    facts = base_facts(recipe.model, base_dir)
    found = [*_outsiders(recipe, members)]  # (1)
    if not recipe.scripts:
        found += _silent_metrics(recipe)  # (2)
        found += _foreign_modules(recipe, facts)  # (3)
        found += _too_long(recipe, facts)  # (4)
        found += _without_template(recipe, base_dir)  # (5)
        found += _unfit_tokenizer(recipe, facts, base_dir)  # (6)
        found += _without_test_data(recipe)  # (7)
        found += _find_unmarked_template(recipe, base_dir)  # (8)
    return found


def misfits_of_record(
    recipe: PhaseRecipe, base_dir: Path, record: Mapping[str, Any]
) -> list[Misfit]:
    """What a record shows that a recipe alone does not say: prompts and answers are conversations.

    Args:
        recipe: Of any phase.
        base_dir: Folder that its paths start from.
        record: Field of the recipe's columns → value.
    """
    spoken = [name for name, value in record.items() if name != TOOLS and isinstance(value, list)]
    if recipe.scripts or recipe.phase not in CONVERSATIONS or not spoken:
        return []
    models: dict[str, Model] = {"model": recipe.model}
    models |= {f"{name}.model": model for name, model in recipe.further_models.items()}
    found = [
        _no_template(
            f"columns.{spoken[0]}", getattr(model.tokenizer, "path", None), of=f"{field}.tokenizer"
        )
        for field, model in models.items()
        if not _writes_conversations(model, base_dir)
    ]
    for field, model in models.items():
        found += _changing_template(field, model, base_dir)
    return found


def require_fitness(recipe: PhaseRecipe, base_dir: Path, members: Collection[str]) -> None:
    """Refuse a recipe that could not work, with all its misfits at once.

    Raises:
        RecipeInvalid: There are misfits.
        ModelInvalid: As ``misfits``.
    """
    _refuse(misfits(recipe, base_dir, members))


def require_fitness_of_record(
    recipe: PhaseRecipe, base_dir: Path, record: Mapping[str, Any]
) -> None:
    """Refuse a recipe that could not work with such records.

    Raises:
        RecipeInvalid: There are misfits.
    """
    _refuse(misfits_of_record(recipe, base_dir, record))


def _refuse(found: list[Misfit]) -> None:
    if not found:
        return
    first = found[0]
    if len(found) == 1:
        raise RecipeInvalid(
            first.message,
            check=first.field,
            field=first.field,
            got=first.got,
            expected=first.expected,
            hint=first.hint,
        )
    named = "; ".join(
        f"({number}) {misfit.message}: {misfit.got}, expected {misfit.expected}"
        for number, misfit in enumerate(found, start=1)
    )
    raise RecipeInvalid(
        f"{len(found)} things in the recipe cannot work: {named}",
        check=", ".join(dict.fromkeys(misfit.field for misfit in found)),
        field=first.field,
        hint="; ".join(dict.fromkeys(misfit.hint for misfit in found)),
    )


def _outsiders(recipe: PhaseRecipe, members: Collection[str]) -> Iterator[Misfit]:
    known = ", ".join(sorted(members))
    for field, names, what in (
        ("datasets", recipe.owners, "a dataset's owner is not in the consortium"),
        (
            "release_policy.model.recipients",
            recipe.release_policy.model.recipients,
            "a recipient of the model is not in the consortium",
        ),
    ):
        outside = [name for name in names if name not in members]
        if outside:
            yield Misfit(
                field=field,
                message=what,
                got=", ".join(outside),
                expected=f"of {known}",
                hint="correct the name, or have the owners take it in: "
                "sealtrain consortium propose",
            )


def _silent_metrics(recipe: PhaseRecipe) -> Iterator[Misfit]:
    known = list_metrics(recipe.phase)
    for name in find_unmeasured(recipe):
        meant = nearest(name, known)
        yield Misfit(
            field="release_policy.metrics",
            message=f"phase {recipe.phase} measures no such metric",
            got=name,
            expected=meant or ", ".join(sorted(known)),
            hint=f"did you mean {meant}?" if meant else "leave it out: it would release nothing",
        )


def _find_unmarked_template(recipe: PhaseRecipe, base_dir: Path) -> Iterator[Misfit]:
    """Of the recipe's own template, or a saved tokenizer that has a template at all."""
    path: str | None = getattr(recipe.model.tokenizer, "path", None)
    if not getattr(recipe.trainer, "assistant_only_loss", False):
        return
    template, place = recipe.model.template, "model.chat_template"
    if template is None and path is not None:
        template, place = chat_template(base_dir / path), path
    if template is None or has_marks(template, list_templates()):
        return
    yield Misfit(
        field="trainer.assistant_only_loss",
        message="the chat template does not mark the assistant's turns",
        got=place,
        expected=f"{MARKS} around them",
        hint="add the marks to the template, or leave assistant_only_loss out",
    )


def _foreign_modules(recipe: PhaseRecipe, facts: BaseFacts) -> Iterator[Misfit]:
    adapter = recipe.peft
    if adapter is None or facts.modules is None:
        return
    targets = getattr(adapter, "target_modules", ())
    lists = {
        "peft.target_modules": () if targets == "all-linear" else targets,
        "peft.modules_to_save": getattr(adapter, "modules_to_save", None) or (),
    }
    for field, names in lists.items():
        foreign = [name for name in names if name.rpartition(".")[2] not in facts.modules]
        if foreign:
            yield Misfit(
                field=field,
                message="the base model has no such module",
                got=", ".join(foreign),
                expected=", ".join(sorted(facts.modules - MADE) or sorted(facts.modules)),
                hint="name modules of the base model, or write target_modules: all-linear",
            )
    layers = getattr(adapter, "layers_to_transform", None) or ()
    beyond = [layer for layer in layers if facts.layers is not None and layer >= facts.layers]
    if beyond:
        yield Misfit(
            field="peft.layers_to_transform",
            message="the base model has no such layer",
            got=", ".join(map(str, beyond)),
            expected=f"0 to {(facts.layers or 0) - 1}",
            hint="layers are counted from 0",
        )


def _too_long(recipe: PhaseRecipe, facts: BaseFacts) -> Iterator[Misfit]:
    field = "block_size" if recipe.phase == "cpt" else "max_length"
    length = getattr(recipe.trainer, field, None)
    if length is None or facts.positions is None or recipe.columns.kind in _NO_TOKENS:
        return
    virtual = getattr(recipe.peft, "num_virtual_tokens", 0)
    if length + virtual <= facts.positions:
        return
    written = field in recipe.trainer.model_fields_set
    more = f" and {virtual} virtual tokens" if virtual else ""
    yield Misfit(
        field=f"trainer.{field}",
        message="records may be longer than the base model's positions",
        got=f"{length}{more}{'' if written else ' (the default)'}",
        expected=f"at most {facts.positions - virtual}",
        hint=f"write trainer.{field}: {facts.positions - virtual}, or take a base model that "
        "reads more",
    )


def _without_template(recipe: PhaseRecipe, base_dir: Path) -> Iterator[Misfit]:
    """Of a saved tokenizer; a sealed one is opened by the guest alone."""
    if recipe.columns.kind != "messages":
        return
    if not _writes_conversations(recipe.model, base_dir):
        yield _no_template("columns.messages", getattr(recipe.model.tokenizer, "path", None))
    yield from _changing_template("model", recipe.model, base_dir)


def _changing_template(field: str, model: Model, base_dir: Path) -> Iterator[Misfit]:
    """Of the recipe's own template or a saved tokenizer's; the guest judges a sealed one."""
    path, own = getattr(model.tokenizer, "path", None), model.template
    if own is not None:
        templates, field = [own], f"{field}.chat_template"
    else:
        templates = [] if path is None else [*chat_templates(base_dir / path).values()]
        field = f"{field}.tokenizer"
    names = (changing_name(template) for template in templates)
    name = next((name for name in names if name is not None), None)
    if name is not None:
        yield _of_model(field, changing_template(name))


def _writes_conversations(model: Model, base_dir: Path) -> bool:
    """Whether it has a chat template; of a sealed tokenizer nothing is known."""
    if model.template is not None or getattr(model.tokenizer, "kind", None) == "sealed":
        return True
    path = getattr(model.tokenizer, "path", None)
    return path is not None and has_template(base_dir / path)


def _no_template(field: str, path: str | None, of: str = "model.tokenizer") -> Misfit:
    misfit = _of_model(field, without_template(), path or "bytes")
    return misfit if of == "model.tokenizer" else replace(misfit, message=f"{of}: {misfit.message}")


def _unfit_tokenizer(recipe: PhaseRecipe, facts: BaseFacts, base_dir: Path) -> Iterator[Misfit]:
    """Of a saved tokenizer; a sealed one is opened by the guest alone."""
    tokenizer = recipe.model.tokenizer
    path = getattr(tokenizer, "path", None)
    if recipe.columns.kind in _NO_TOKENS or getattr(tokenizer, "kind", None) == "sealed":
        return
    if path is not None:
        known = tokenizer_facts(base_dir / path)
    else:
        known = TokenizerFacts(tokens=None if tokenizer is None else BYTES_TOKENS)
    if needs_end(recipe) and known.ends is False:
        yield _of_model("model.tokenizer", without_end(), path or "bytes")
    if known.tokens is not None and facts.tokens is not None and known.tokens > facts.tokens:
        yield _of_model("model", tokens_beyond(facts.tokens, known.tokens))


def _of_model(field: str, error: ModelInvalid, got: str | None = None) -> Misfit:
    """What the guest would refuse in these words."""
    return Misfit(
        field=field,
        message=error.message,
        got=str(error.got if got is None else got),
        expected=str(error.expected),
        hint=str(error.hint),
    )


def _without_test_data(recipe: PhaseRecipe) -> Iterator[Misfit]:
    names = find_untested(recipe)
    if not names:
        return
    tested = any(dataset.role == "test" for dataset in recipe.datasets)
    yield Misfit(
        field="release_policy.metrics",
        message="the recipe releases metrics that nothing in the run can measure",
        got=", ".join(names),
        expected="records with a prompt and a completion" if tested else "a dataset of role test",
        hint="leave them out: they would release nothing; or "
        + ("read prompts and completions" if tested else "name a dataset with role: test"),
    )

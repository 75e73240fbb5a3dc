"""Settings in an engineer's script that no run could follow, found before the recipe is approved.

They are looked for in the text: keywords of calls, with values that are written out. A value that
is computed shows only in the run, which refuses it there.

| setting | refused | because |
|---|---|---|
| ``dataloader_num_workers``, ``num_workers`` | above 0 | keys and records stay in one process |
| ``load_best_model_at_end``, ``resume_from_checkpoint`` | true, a path | checkpoints are sealed |
| ``push_to_hub`` | true | a guest reaches no hub |
| no ``max_steps`` | on a stream, whatever ``num_train_epochs`` says | the stream is endless |
| ``save_model``, ``_save`` in a class of a trainer | defined | the run saves the model itself |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sealtrain.recipe.errors import RecipeInvalid

_WORKERS: Final = ("dataloader_num_workers", "num_workers")
_IN_THREAD: Final = "set it to 0: a thread decrypts and prefetches already"
_BY_ITSELF: Final = "leave it out: sealtrain resume continues from the newest sealed checkpoint"
_BEST: Final = "leave it out; trainer.load_best_model_at_end of the recipe does it, sealed"
_ENDLESS: Final = "set max_steps, or hold the records in memory: unwrap_dataset(map_style=True)"
_ARGUMENTS: Final = re.compile(
    r"\w*TrainingArguments|(SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|RLOO)Config"
)
_SAVES: Final = ("save_model", "_save")


@dataclass(frozen=True, slots=True)
class _FoundSettings:
    line: int
    setting: str
    hint: str


def refuse_settings(texts: Mapping[str, str]) -> None:
    """Refuse the first setting of the module's table.

    Args:
        texts: Text of each script by path; those that are not Python are passed over.

    Raises:
        RecipeInvalid: Names script, line and setting.
    """
    trees = {path: ast.parse(text) for path, text in texts.items() if path.endswith(".py")}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    endless = not any(_read_keyword(call, "map_style") is True for call in calls)
    endless = endless and not any("max_steps" in text for text in texts.values())
    for path, tree in trees.items():
        for found in sorted(_find_in(tree, endless=endless), key=lambda place: place.line):
            raise RecipeInvalid(
                f"script {path}, line {found.line}, sets what a run on sealed data cannot follow",
                check="scripts",
                got=found.setting,
                hint=found.hint,
            )


def _find_in(tree: ast.AST, *, endless: bool) -> Iterator[_FoundSettings]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _in_call(node, endless=endless)
        if isinstance(node, ast.ClassDef) and any(map(_is_trainer, node.bases)):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name in _SAVES:
                    hint = "give the model's class save_pretrained and from_pretrained instead"
                    yield _FoundSettings(inner.lineno, f"{node.name}.{inner.name}", hint)


def _in_call(call: ast.Call, *, endless: bool) -> Iterator[_FoundSettings]:
    for name in _WORKERS:
        value = _read_keyword(call, name)
        if isinstance(value, int) and value > 0:
            yield _FoundSettings(call.lineno, f"{name}={value}", _IN_THREAD)
    if _read_keyword(call, "push_to_hub") is True:
        yield _FoundSettings(
            call.lineno, "push_to_hub=True", "leave it out: a guest reaches no hub"
        )
    if _read_keyword(call, "load_best_model_at_end") is True:
        yield _FoundSettings(call.lineno, "load_best_model_at_end=True", _BEST)
    resumed = _read_keyword(call, "resume_from_checkpoint")
    if resumed is True or (isinstance(resumed, str) and resumed):
        yield _FoundSettings(call.lineno, f"resume_from_checkpoint={resumed!r}"[:80], _BY_ITSELF)
    named = {keyword.arg for keyword in call.keywords}
    if endless and None not in named and _ARGUMENTS.fullmatch(_name(call.func)):
        epochs = _read_keyword(call, "num_train_epochs")
        said = "no max_steps" if "num_train_epochs" not in named else f"num_train_epochs={epochs}"
        yield _FoundSettings(call.lineno, said, _ENDLESS)


def _read_keyword(call: ast.Call, name: str) -> Any:
    """Value of a keyword, where it is written out; else ``None``."""
    for keyword in call.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return None


def _name(function: ast.expr) -> str:
    """Last part of the name of what is called."""
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


def _is_trainer(base: ast.expr) -> bool:
    return _name(base).endswith("Trainer")

"""The recipe: everything a run does, in one document that owners read and approve.

A recipe has a common part (``recipe.recipe``) and a part for its phase (``recipe.phases``). Unknown
fields are refused with a similar name; settings that would carry data out (trackers, hubs,
telemetry, remote code) do not exist. Format: spec/recipe.md.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, SerializationInfo, TypeAdapter
from pydantic_core import core_schema

from sealtrain.base.canonical import JsonValue
from sealtrain.base.files import read_bounded
from sealtrain.base.models import load_model
from sealtrain.base.yamltext import MAX_YAML_BYTES, parse_yaml
from sealtrain.errors import LimitExceeded
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.labels import write_labels
from sealtrain.recipe.recipe import PhaseRecipe

__all__ = ["PHASES", "AnyRecipe", "PhaseRecipe", "json_schema", "load_recipe", "parse_recipe"]

PHASES: Final = {
    "classify": "ClassifyRecipe",
    "cpt": "CptRecipe",
    "dpo": "DpoRecipe",
    "embed": "EmbedRecipe",
    "evaluate": "EvaluateRecipe",
    "reward": "RewardRecipe",
    "rlhf": "RlhfRecipe",
    "sft": "SftRecipe",
    "vlm": "VlmRecipe",
}
"""Phase → class of its recipes in ``recipe.phases.<phase>``. Sorted."""


def _recipe_class(phase: str) -> type[PhaseRecipe]:
    # Loaded when named: building the models of all phases would slow every verification down.
    module = import_module(f"sealtrain.recipe.phases.{phase}")
    found: type[PhaseRecipe] = getattr(module, PHASES[phase])
    return found


def parse_recipe(data: JsonValue) -> PhaseRecipe:
    """Validate a parsed recipe.

    Raises:
        RecipeInvalid: Names the first field that breaks the schema.
    """
    if not isinstance(data, dict):
        raise RecipeInvalid("recipe is not a mapping", check="recipe")
    phase = data.get("phase")
    if not isinstance(phase, str) or phase not in PHASES:
        raise RecipeInvalid(
            "recipe names no known phase",
            check="recipe",
            got="none" if phase is None else repr(phase)[:40],
            expected=" or ".join(PHASES),
        )
    return load_model(_recipe_class(phase), data, RecipeInvalid, "recipe")


def _any_recipe(value: Any) -> PhaseRecipe:
    return value if isinstance(value, PhaseRecipe) else parse_recipe(value)


def _dump_recipe(recipe: PhaseRecipe, info: SerializationInfo) -> dict[str, Any]:
    return recipe.model_dump(mode=info.mode, by_alias=info.by_alias)


class _OfItsPhase:
    """Validation and serialization of a recipe by the class of its phase.

    Pydantic's own annotations would build the schema of ``Recipe`` too, which no recipe uses.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _any_recipe,
            serialization=core_schema.plain_serializer_function_ser_schema(
                _dump_recipe, info_arg=True
            ),
        )


AnyRecipe = Annotated[PhaseRecipe, _OfItsPhase]
"""A recipe of any phase, as a field of another document."""


def load_recipe(path: Path) -> PhaseRecipe:
    """Read and validate ``recipe.yaml``.

    Raises:
        RecipeInvalid: Not the YAML of yamltext.py, or it breaks the schema.
        DataInvalid: The file is missing.
    """
    try:
        data = read_bounded(path, MAX_YAML_BYTES)
    except LimitExceeded as error:
        raise RecipeInvalid(f"recipe is too long: {path}", expected=error.expected) from None
    return parse_recipe(write_labels(parse_yaml(data, error=RecipeInvalid, what="recipe")))


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe as written.

    ``x-left-out`` marks what a lock leaves out where it is the default (spec/recipe.md §3).
    """
    from pydantic.json_schema import GenerateJsonSchema

    class SchemaGenerator(GenerateJsonSchema):
        def model_field_schema(self, schema: Any) -> dict[str, Any]:
            written = super().model_field_schema(schema)
            left_out = "serialization_exclude_if" in schema
            return written | ({"x-left-out": True} if left_out else {})

        def dict_schema(self, schema: Any) -> dict[str, Any]:
            written = super().dict_schema(schema)
            # Patterns alone would let every other name pass.
            closed = "patternProperties" in written
            return written | ({"additionalProperties": False} if closed else {})

    classes: Any = [_recipe_class(phase) for phase in PHASES]
    union: Any = Annotated[reduce(or_, classes), Field(discriminator="phase")]
    schema = TypeAdapter(union).json_schema(mode="validation", schema_generator=SchemaGenerator)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sealtrain recipe, version 1",
        **schema,
    }

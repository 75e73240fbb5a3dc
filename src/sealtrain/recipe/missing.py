"""What stands in for a missing value of a column (spec/recipe.md §2.2, Missing values).

A recipe without a rule refuses records with a gap. A rule says what a gap means, the same for every
owner: a constant, a category of its own, or the mean or median of the training records. The last
two are figures about the owners' data, so they stand among the metrics that a run releases, and are
refused where the recipe promises privacy or where no guest has all training records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from sealtrain.base.models import StrictModel
from sealtrain.recipe.collaboration import is_none
from sealtrain.recipe.fields import ColumnName, Text

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe

_LEARNED: Final = ("mean", "median")
_MOST: Final = 1e30
"""Greatest size of a constant."""


class Constant(StrictModel):
    """One value for every gap of a column."""

    constant: Annotated[float, Field(ge=-_MOST, le=_MOST)] | Text


def _require_rule(value: Any) -> Any:
    """Refuse what is no rule by the forms that there are."""
    known = ("refuse", "mean", "median", "own-category")
    if value not in known if isinstance(value, str) else not isinstance(value, dict | Constant):
        raise ValueError(f"a rule is {', '.join(known)} or {{constant: VALUE}}")
    number = value.get("constant") if isinstance(value, dict) else None
    if isinstance(number, int | float) and (
        isinstance(number, bool) or not -_MOST <= number <= _MOST
    ):
        raise ValueError(f"a constant is a text, or a number from -{_MOST:.0e} to {_MOST:.0e}")
    return value


Missing = Annotated[
    Literal["refuse", "mean", "median", "own-category"] | Constant, BeforeValidator(_require_rule)
]


def missing_field() -> Any:
    """A field with a rule for each column that may have gaps."""
    return Field(
        default=None,
        min_length=1,
        max_length=256,
        exclude_if=is_none,
        description="What a missing value means, by column; others have none.",
    )


MissingValues = dict[ColumnName, Missing] | None
"""Column → rule."""


def rules_of(recipe: PhaseRecipe) -> Mapping[str, Any]:
    """Column → rule, of those that are not refused."""
    rules = getattr(recipe, "missing", None) or {}
    return {column: rule for column, rule in rules.items() if rule != "refuse"}


def missing_values(recipe: PhaseRecipe) -> dict[str, float | str]:
    """Column → value that stands for a gap; not a number where the model fills it."""
    return {
        column: rule.constant if isinstance(rule, Constant) else math.nan
        for column, rule in rules_of(recipe).items()
    }


def list_learned(recipe: PhaseRecipe) -> dict[str, str]:
    """Feature whose stand-in is learned → metric that tells it: ``missing_3`` of the third."""
    rules = rules_of(recipe)
    return {
        column: f"missing_{number}"
        for number, column in enumerate(getattr(recipe.columns, "features", ()), 1)
        if rules.get(column) in _LEARNED
    }


def find_gap_rule_fault(recipe: PhaseRecipe) -> str | None:
    """Why a recipe's rules cannot be; ``None`` where they can."""
    rules = rules_of(recipe)
    columns = recipe.columns
    features = getattr(columns, "features", ())
    labels = getattr(recipe, "labels", None)
    for column in getattr(recipe, "missing", None) or ():
        if column not in columns.names:
            return "missing names a column that the recipe does not read"
    for column, rule in rules.items():
        number = isinstance(rule, Constant) and isinstance(rule.constant, float)
        if column in features:
            if isinstance(rule, Constant) and not number:
                return "missing of a feature is a number, mean, median or own-category"
            if not number and (recipe.phase != "classify" or recipe.scripts):
                return "missing is a constant where no classifier of ours is trained"
            continue
        if not isinstance(rule, Constant) or number or column == getattr(columns, "image", None):
            return "missing of a text or a label is constant: TEXT; images have no stand-in"
        if column == getattr(columns, "label", None) and rule.constant not in (labels or ()):
            return "missing of the label is a constant that labels list"
    told = list_learned(recipe)
    if told and recipe.privacy.dp != "none":
        return "missing: mean and median are learned from records without the noise of privacy.dp"
    if told and recipe.collaboration is not None:
        return "missing: mean and median need all training records in one guest"
    absent = [name for name in told.values() if name not in recipe.release_policy.metrics]
    if absent:
        return f"missing: mean and median leave the guest: release_policy.metrics lists {absent[0]}"
    return None

"""Epochs: ``trainer.num_train_epochs`` of a recipe, and the steps that become of them.

A lock cannot know how many records owners will seal, so a recipe with epochs has a rule in place of
a number of steps. The guest counts the records of the datasets that it opened, and keeper and
workload compute the steps by the same function (spec/recipe.md §2.3). Learning rates, fractions of
warm-up, checkpoints and the last step follow from that number as they follow from ``max_steps``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

from sealtrain.errors import DataInvalid
from sealtrain.recipe.backends import processes_of
from sealtrain.recipe.collaboration import is_shared_out

MAX_STEPS: Final = 10_000_000
_WRITE: Final = "write max_steps"
_OTHER_ROWS: Final = {
    "cpt": "its rows are blocks of tokens, which only training makes",
    "rlhf": "a step samples several answers of a prompt",
}
"""Phases whose steps do not take records by number, and why."""


def unfit_for_epochs(recipe: Any) -> str | None:
    """Why the steps of a ``Recipe`` cannot follow from its records; ``None`` if they can."""
    if recipe.phase in _OTHER_ROWS:
        return f"is not for phase {recipe.phase}: {_OTHER_ROWS[recipe.phase]}; {_WRITE}"
    if recipe.scripts:
        return f"does not reach into a script of your own, which counts by itself; {_WRITE}"
    if getattr(recipe.trainer, "packing", False):
        return f"does not go together with packing: packed rows are not records; {_WRITE}"
    if recipe.privacy.dp == "sgd":
        return f"does not go together with dp: sgd, which draws records by coin; {_WRITE}"
    if is_shared_out(recipe):
        return f"is not for a collaboration whose parties keep their data apart; {_WRITE}"
    if getattr(getattr(recipe, "audit", None), "canaries", 0):
        return f"does not go together with audit.canaries, which join the records; {_WRITE}"
    trained = [dataset for dataset in recipe.datasets if dataset.role == "train"]
    if len({dataset.weight for dataset in trained}) > 1:
        return f"has each record once an epoch, and datasets.weight differs; {_WRITE}"
    if any(dataset.max_records is not None for dataset in trained):
        return f"has each record once an epoch, and datasets.max_records leaves some out; {_WRITE}"
    return None


def records_a_step(recipe: Any) -> int:
    """Records that all processes of a ``Recipe`` together take in an optimizer step."""
    trainer = recipe.trainer
    batch = trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps
    return int(batch) * processes_of(recipe)


def steps_of(recipe: Any, records: int) -> int:
    """Optimizer steps that a ``Recipe`` has on so many records.

    ``max_steps`` where it is written; else the least number of steps that read every record as
    often as the recipe says. Where records do not fill the last step, the next epoch's first
    records do.

    Args:
        recipe: To train.
        records: Sealed records of all its training datasets.

    Raises:
        DataInvalid: More steps than a recipe may have.
    """
    epochs = recipe.trainer.num_train_epochs
    if epochs is None:
        return int(recipe.trainer.max_steps)
    # Decimal text, so that 0.1 epochs are a tenth and not its nearest binary fraction.
    steps = math.ceil(Fraction(repr(float(epochs))) * records / records_a_step(recipe))
    if steps > MAX_STEPS:
        raise DataInvalid(
            "the epochs of these records have more steps than a recipe may have",
            check="num_train_epochs",
            got=steps,
            expected=f"at most {MAX_STEPS}",
            hint="lock a recipe with fewer epochs, or a larger batch",
        )
    return max(1, steps)


def with_steps(recipe: Any, records: Iterable[int]) -> Any:
    """The ``Recipe`` with ``max_steps`` in place of its epochs; itself where it has none.

    Args:
        recipe: As it was approved.
        records: Sealed records of each of its training datasets.

    Raises:
        DataInvalid: As ``steps_of``.
    """
    if recipe.trainer.num_train_epochs is None:
        return recipe
    steps = {"max_steps": steps_of(recipe, sum(records)), "num_train_epochs": None}
    return recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update=steps)})


def steps_in_words(recipe: Any, records: int | None) -> str:
    """How long a ``Recipe`` trains, for an owner.

    Args:
        recipe: Under review.
        records: Of all its training datasets, where all are known.
    """
    size, epochs = records_a_step(recipe), recipe.trainer.num_train_epochs
    if epochs is None:
        return f"{recipe.trainer.max_steps} steps of {size} records"
    times = f"{epochs:g} epoch{'' if epochs == 1 else 's'} in steps of {size} records"
    if records is None:
        return f"{times}: as many steps as the sealed records need, rounded up"
    return f"{times}: {steps_of(recipe, records)} steps for the {records} records sealed so far"

"""What a keeper makes of the words of a phase: counts of records, and the privacy that it spent.

A workload's word is a stranger's. Rows, settings and promises are the keeper's own; it takes from
the workload the numbers alone that only training knows, where they can be true.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid
from sealtrain.guest.workload.channel import Misused
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.recipe.privacy import PrivateSgd
from sealtrain.training.inputs.learnable import RecordTally
from sealtrain.training.privacy.accounting import sampling_rates
from sealtrain.training.privacy.record import lot, privacy_of_recipe, write_spent_record

if TYPE_CHECKING:
    from io import RawIOBase

    from sealtrain.guest.workload.messages import Sign, TallyRecords
    from sealtrain.training.data.sources import SealedFolder, Source


def digests_tokens(recipe: Any) -> bool:
    """Whether a phase takes the digest of the tokens that it trains on."""
    return not recipe.scripts and recipe.phase == "cpt" and bool(recipe.trainer.token_digest)


def draws(recipe: Any) -> bool:
    """Whether a phase draws what only its run may know: noise, or canaries."""
    audit = getattr(recipe, "audit", None)
    return not recipe.scripts and (recipe.privacy.dp != "none" or audit is not None)


def tally_records(
    question: TallyRecords, sources: Sequence[Source]
) -> list[tuple[Source, RecordTally]]:
    """What the next training datasets leave to learn.

    Args:
        question: Their counts.
        sources: The training datasets that were not counted yet.

    Raises:
        Misused: The counts are not of these datasets, or one leaves nothing.
    """
    tallies = [RecordTally(**parts.to_dict()) for parts in question.datasets]
    counted = sources[: len(tallies)]
    if [tally.records for tally in tallies] != [_rows(source) for source in counted]:
        raise Misused("counts of other records")
    if any(tally.records and not tally.trained for tally in tallies):
        raise Misused("a dataset leaves nothing to learn")
    return list(zip(counted, tallies, strict=True))


def write_privacy(question: Sign, recipe: Any, sources: Sequence[Source]) -> dict[str, Any]:
    """The manifest's section on privacy.

    Raises:
        Misused: It does not fit the recipe's promise.
    """
    spent, privacy = question.spent, recipe.privacy
    if not isinstance(privacy, PrivateSgd):
        if spent is not None:
            raise Misused("a recipe without noise spends nothing")
        return privacy_of_recipe(recipe)
    trained = [source for source in sources if source.role == "train"]
    if (
        spent is None
        or question.steps > recipe.trainer.max_steps
        or len(spent.epsilons) != len(trained)
        or privacy.noise_multiplier not in (None, spent.noise_multiplier)
        or any(epsilon > privacy.target_epsilon for epsilon in spent.epsilons)
    ):
        raise Misused("private training spends what the recipe promises")
    sizes = [(source.weight, _rows(source)) for source in trained]
    if recipe.audit is not None and recipe.audit.canaries:
        sizes.append((1.0, recipe.audit.canaries * recipe.audit.repetitions))
    rates = sampling_rates(sizes, lot(recipe.trainer))[: len(trained)]
    return write_spent_record(
        recipe,
        noise_multiplier=spent.noise_multiplier,
        steps=question.steps,
        costs=list(zip(trained, rates, spent.epsilons, strict=True)),
    )


def in_memory(model: SealedFolder, name: str) -> tuple[int, int]:
    """Decrypt a file of the sealed base model into new memory: its size, and its descriptor.

    Raises:
        SealRefused, DataInvalid: It does not open.
    """
    with model.open_file(name) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        _, descriptor = SharedMemory.create_filled(size, lambda view: _fill(view, file))
    return size, descriptor


def _fill(view: memoryview, file: RawIOBase) -> None:
    while len(view):
        count = file.readinto(view)
        if not count:
            raise DataInvalid("a file of the sealed model was cut off")
        view = view[count:]


def _rows(source: Source) -> int:
    return sum(source.dataset.batch_rows)

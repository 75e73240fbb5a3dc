"""Try out at home what the arithmetic under pads makes of a recipe: no guest, no accelerator.

Two trainings on records in the clear: of the int8 model in floating point, and with products as
they are under pads. The second gives the losses of a run under pads, bit for bit
(``tests/equivalence/test_split_exact.py``); the difference is what twelve bits cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.pads import Pads
from sealtrain.recipe.terms import expect_data

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.sealing.tabular.conversion import Conversion
    from sealtrain.training.data.sources import Source
    from sealtrain.training.models.standins import StandIns

_RUN_ID = "00" * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What two trainings of a recipe showed.

    Attributes:
        int8: Metrics of the int8 model by step, as the release policy lets them out.
        under_pads: The same with products as they are under pads.
        outside: Names of the layers whose products would leave the guest, those with one product
            together.
        inside: Names of linear layers that would stay.
        row_bytes: What one row of all products sends and receives, forward and backward.
    """

    int8: list[dict[str, Any]]
    under_pads: list[dict[str, Any]]
    outside: tuple[tuple[str, ...], ...]
    inside: tuple[str, ...]
    row_bytes: int

    def differences(self, metric: str = "loss") -> list[float]:
        """By step, where both have a number."""
        pairs = zip(self.int8, self.under_pads, strict=True)
        both = [(plain_step.get(metric), two.get(metric)) for plain_step, two in pairs]
        return [abs(plain - two) for plain, two in both if plain is not None and two is not None]


def try_pads(
    recipe: PhaseRecipe, base: Path, data: Mapping[str, Path], say: Callable[[str], None]
) -> Trial:
    """Train twice on records in the clear. Nothing is kept.

    Args:
        recipe: Of ``collaboration`` kind ``pads``.
        base: Folder that its paths start from.
        data: ``owner.name`` → file of records, for each of its datasets.
        say: Called with a line for each step that begins.

    Raises:
        UsageError: The recipe is of another kind, or data are missing.
        ModelInvalid: No layer can be replaced, or one to skip is not there.
        DataInvalid: Records cannot be read.
    """
    from sealtrain_together.pads.protect import IntegerWeights

    how = of_kind(recipe, Pads)
    expect_data(recipe.datasets, data)
    say("training the int8 model in floating point")
    first = _history(recipe, base, data, IntegerWeights(how.skip))
    say("training it with products as they are under pads")
    exact = _Exact(how.skip)
    second = _history(recipe, base, data, exact)
    return Trial(
        int8=first,
        under_pads=second,
        outside=exact.outside,
        inside=tuple(exact.inside),
        row_bytes=exact.row_bytes,
    )


@dataclass
class _Exact:
    """``StandIns``: products as they are under pads, made here."""

    skip: tuple[str, ...]
    outside: tuple[tuple[str, ...], ...] = ()
    inside: list[str] = field(default_factory=list)
    row_bytes: int = 0

    def put_in(self, model: Any) -> None:
        from torch import nn

        from sealtrain_together.pads.protect import list_protected, quantise

        self.outside = quantise(model, skip=self.skip)
        parts = model.named_modules()
        self.inside = [name for name, part in parts if isinstance(part, nn.Linear)]
        layers = dict(list_protected(model))
        for stack in self.outside:
            wide = sum(layers[name].out_features for name in stack)
            self.row_bytes += 2 * 4 * (layers[stack[0]].in_features + wide)

    def take_out(self, model: Any) -> None:
        from sealtrain_together.pads.protect import restore

        restore(model)


def _history(
    recipe: PhaseRecipe, base: Path, data: Mapping[str, Path], standins: StandIns
) -> list[dict[str, Any]]:
    from sealtrain.training.run import Inputs, Reporting, train

    told: list[dict[str, Any]] = []
    train(
        recipe,
        run_id=_RUN_ID,
        inputs=Inputs(
            base_dir=base,
            sources=[
                plain_source(recipe, dataset, data[f"{dataset.owner}.{dataset.name}"])
                for dataset in recipe.datasets
            ],
        ),
        reporting=Reporting(
            on_metrics=lambda step, values: told.append({"step": step, **values}),
        ),
        standins=standins,
    )
    return told


def plain_source(recipe: PhaseRecipe, dataset: Any, path: Path) -> Source:
    """One of a recipe's datasets from records in the clear, in the batches that a seal makes.

    Args:
        recipe: Says which columns are text.
        dataset: Of the recipe.
        path: File of records.
    """
    from sealtrain.recipe.missing import missing_values
    from sealtrain.recipe.recordcolumns import ColumnJudge
    from sealtrain.training.data.sources import Source

    records: Any = _Table(path, ColumnJudge(recipe, dataset).conversion())
    return Source(
        role=dataset.role,
        owner=dataset.owner,
        name=dataset.name,
        weight=dataset.weight,
        dataset=records,
        max_records=dataset.max_records,
        columns=dataset.columns,
        missing=missing_values(recipe),
    )


class _Table:
    """Records in memory, in the batches in which they would be sealed."""

    def __init__(self, path: Path, conversion: Conversion) -> None:
        from sealtrain.training.data.validation.check import PlainRecords

        plain = PlainRecords(path, conversion)
        self.dataset_id, self.root = plain.dataset_id, plain.root
        self.schema = plain.schema
        self._batches = list(plain.batches())
        self.batch_rows = tuple(batch.num_rows for batch in self._batches)

    def batch(self, number: int) -> pa.RecordBatch:
        return self._batches[number]

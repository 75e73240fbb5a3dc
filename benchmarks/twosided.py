"""The plaintext side of comparisons: same trainer, same order, same cuts, nothing sealed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TextIO

import pyarrow as pa

from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.sealer import NewDataset, SealOptions, seal_dataset
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.training.data.sources import Source
from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

BINDING = RecipeBinding("00" * 20, "00" * 32, "00" * 32)
SECRET = DataKey(bytes(32))
"""Both sides draw the same noise."""


class PlainRecords:
    """Record batches held in the clear, behind the interface of a sealed dataset."""

    def __init__(self, sealed: SealedDataset) -> None:
        self._batches = [sealed.batch(number) for number in range(sealed.num_batches)]
        self.dataset_id, self.root = sealed.dataset_id, sealed.root
        self.schema: pa.Schema | None = sealed.schema
        self.batch_rows = sealed.batch_rows

    def batch(self, number: int) -> pa.RecordBatch:
        """Record batch ``number``."""
        return self._batches[number]


class PlainStore:
    """Checkpoints as plain files, on disk before training goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bindings: dict[str, dict[str, str | int]] = {}
        folder.mkdir()

    def memory(self, size: int) -> None:
        """Any memory will do."""

    @contextmanager
    def write(self, name: str, binding: Mapping[str, str | int]) -> Iterator[Any]:
        """Open a new file."""
        self._bindings[name] = dict(binding)
        with (self._folder / name).open("wb") as file:
            yield SimpleNamespace(
                writelines=file.writelines,
                finish=lambda: SimpleNamespace(root=self.root(name)),
            )
            file.flush()
            os.fsync(file.fileno())

    def read(
        self, name: str, binding: Mapping[str, str | int], *, root: str | None = None
    ) -> BinaryIO:
        """Open a file."""
        return (self._folder / name).open("rb", buffering=0)  # type: ignore[return-value]

    def binding(self, name: str) -> dict[str, str | int]:
        """What was said when it was written."""
        return self._bindings[name]

    def root(self, name: str) -> str:
        """Nothing is hashed here."""
        return "0" * 64

    audit = root

    def names(self) -> tuple[str, ...]:
        """All files."""
        return tuple(sorted(path.name for path in self._folder.iterdir()))

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self._folder / name).unlink()

    retire = remove

    def sweep(self) -> None:
        """Nothing is left over."""


@dataclass(frozen=True)
class Sealed:
    """A sealed folder with what opens it."""

    folder: Path
    key: DataKey
    root: str

    def open(self) -> SealedDataset:
        """Open it afresh: nothing of it was checked yet."""
        return SealedDataset.open(self.folder, self.key, root=self.root)


def seal(source: Path, out: Path, *, owner: str, name: str, **options: Any) -> Sealed:
    """Seal a file or folder under a key of its own."""
    keys: list[DataKey] = []

    def stanzas(key: DataKey, _: str) -> tuple[Stanza, ...]:
        keys.append(key)
        return ()

    description = seal_dataset(
        source,
        out,
        NewDataset(
            name=name,
            owner_id="00" * 32,
            owner_name=owner,
            binding=BINDING,
            stanzas=stanzas,
            sign=lambda _: b"{}",
        ),
        SealOptions(**options),
    )
    return Sealed(out, keys[0], description.root)


def run(
    recipe: PhaseRecipe,
    base_dir: Path,
    datasets: Mapping[str, Any],
    store: Any,
    progress: TextIO | None = None,
) -> tuple[Any, list[tuple[int, dict[str, Any]]]]:
    """Train a recipe on opened datasets, by ``owner.name``; what came out, and the metrics."""
    history: list[tuple[int, dict[str, Any]]] = []
    trained = train(
        recipe,
        run_id="00" * 16,
        inputs=Inputs(
            base_dir=base_dir,
            sources=[
                Source(
                    role=dataset.role,
                    owner=dataset.owner,
                    name=dataset.name,
                    weight=dataset.weight,
                    dataset=datasets[f"{dataset.owner}.{dataset.name}"],
                )
                for dataset in recipe.datasets
            ],
            secret=SECRET,
        ),
        checkpoints=Checkpoints(
            store=store,
        ),
        reporting=Reporting(
            on_metrics=lambda step, values: history.append((step, values)),
            progress=progress,
        ),
    )
    return trained, history

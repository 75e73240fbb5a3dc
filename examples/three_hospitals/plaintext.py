"""The demo's training once more, on plaintext: same recipe, order and settings, nothing sealed.

Prints the loss history and the accuracy, to be set beside those of the sealed run: sealing must
change neither. Nobody could run this in earnest, since it needs the records of all hospitals.

    python examples/three_hospitals/plaintext.py recipe.lock.json RECORDS
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.lockfile import load_lock
from sealtrain.training.data.sources import Source
from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.schema import PhaseRecipe


class PlainRecords:
    """Records of one JSONL file behind the interface of a sealed dataset."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Args:
            path: JSONL that fits one record batch (about 1 MiB), so that it is cut as sealing does.
        """
        import pyarrow as pa

        lines = path.read_text("utf-8").splitlines()
        self._batch = pa.RecordBatch.from_pylist([json.loads(line) for line in lines])
        self.dataset_id = hashlib.sha256(str(path).encode()).hexdigest()[:32]
        self.root = "0" * 64
        self.schema: pa.Schema | None = self._batch.schema
        self.batch_rows = (self._batch.num_rows,)

    def batch(self, number: int) -> pa.RecordBatch:
        """The one batch."""
        return self._batch


class ForgetfulStore:
    """Takes checkpoints and keeps none; it is never asked for one."""

    def memory(self, size: int) -> None:
        """Any memory will do."""

    @contextmanager
    def write(self, name: str, binding: Mapping[str, str | int]) -> Iterator[Any]:
        """A file that forgets what is written to it."""
        yield SimpleNamespace(
            writelines=lambda _parts: None, finish=lambda: SimpleNamespace(root="0" * 64)
        )

    def names(self) -> tuple[str, ...]:
        """None."""
        return ()

    def sweep(self) -> None:
        """Nothing was left over."""


def train_in_the_clear(recipe: PhaseRecipe, records: Path, base_dir: Path) -> dict[str, Any]:
    """Train the recipe on plaintext.

    Args:
        recipe: The demo's.
        records: Folder with one folder of JSONL files per hospital.
        base_dir: Folder that the recipe's paths start from.

    Returns:
        ``{"history": [{"step", "loss"}], "accuracy", "majority"}``, as the release policy rounds.
    """
    history: list[dict[str, Any]] = []
    trained = train(
        recipe,
        run_id="0" * 32,
        inputs=Inputs(
            base_dir=base_dir,
            sources=[
                Source(
                    role=dataset.role,
                    owner=dataset.owner,
                    name=dataset.name,
                    weight=dataset.weight,
                    dataset=PlainRecords(records / dataset.owner / f"{dataset.name}.jsonl"),
                )
                for dataset in recipe.datasets
            ],
        ),
        checkpoints=Checkpoints(
            store=ForgetfulStore(),
        ),
        reporting=Reporting(
            on_metrics=lambda step, values: history.append({"step": step, **values}),
        ),
    )
    return {
        "history": history,
        "accuracy": trained.metrics["accuracy"],
        "majority": trained.metrics["majority"],
    }


if __name__ == "__main__":
    lock_path = Path(sys.argv[1])
    result = train_in_the_clear(
        load_lock(lock_path).recipe, Path(sys.argv[2]), lock_path.resolve().parent
    )
    print(json.dumps(result))

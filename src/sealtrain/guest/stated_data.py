"""What the keeper says by itself: to a workload of its datasets, to a manifest of the training.

A workload learns of a dataset what it needs to order and ask for records, and no key or manifest.

Steps, tokens and measurements are the workload's word (limit ``workload-word``). These are not:
the keeper opened each record batch, and it reads versions and devices of the machine without
asking the workload, and without loading a training library.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain.manifest.checks.counts import counts_public
from sealtrain.manifest.limits import ROWS_SERVED

if TYPE_CHECKING:
    from sealtrain.guest.datasets import FoundDataset
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.sealing.places import Folder
    from sealtrain.training.data.columns import Projection
    from sealtrain.training.data.sources import Source

_MOST_DATASETS: Final = 256
"""Of one entry of the run log."""
_MOST_ACCELERATORS: Final = 1024
_MODEL_LINE: Final = "Model:"
_MOST_CHARACTERS: Final = 300
_PACKAGES: Final = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "numpy")
_SETTINGS: Final = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "OMP_NUM_THREADS")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_KFD_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")


class ServedRows:
    """Counts rows of datasets as they are served. Thread-safe.

    Attributes:
        rows: By dataset id; the journal's, so that a resumed run goes on counting.
    """

    def __init__(self, rows: dict[str, int]) -> None:
        self.rows = rows
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def serving(self, dataset_id: str, rows: int) -> Iterator[None]:
        """Count a record batch that is served in the block, unless it is refused there.

        Raises:
            DataInvalid: The counts are closed.
        """
        with self._lock:
            if self._closed:
                raise DataInvalid(
                    "no record is read once the manifest is being signed", check="manifest"
                )
            self._add(dataset_id, rows)
        try:
            yield
        except BaseException:
            with self._lock:
                self._add(dataset_id, -rows)
            raise

    def close(self) -> None:
        """Serve nothing more: the counts, with what is being served now, are signed."""
        with self._lock:
            self._closed = True

    def _add(self, dataset_id: str, rows: int) -> None:
        self.rows[dataset_id] = self.rows.get(dataset_id, 0) + rows


def record_served(run: GuestRun, rows: Mapping[str, int]) -> None:
    """Record the rows of each opened dataset in the run log, where they are public.

    Args:
        run: That ends.
        rows: Served, by dataset id.
    """
    listed = [
        (
            found.manifest.dataset_id,
            rows.get(found.manifest.dataset_id, 0)
            if counts_public(run.recipe, found.manifest.records)
            else None,
        )
        for found in run.sealed_datasets
        if found.role != "model"
    ]
    for at in range(0, len(listed), _MOST_DATASETS):
        run.record(ROWS_SERVED, dict(listed[at : at + _MOST_DATASETS]))


def state_datasets(
    found: Sequence[FoundDataset],
    sources: Sequence[Source],
    projections: Sequence[Projection | None],
) -> list[dict[str, Any]]:
    """The datasets of a guest as its workload gets to know them (``stubs.KeptRecords``).

    Args:
        found: The datasets, sealed; a model among them is not stated.
        sources: The datasets besides a model, opened.
        projections: The recipe's columns of each; ``None`` where it does not have them.
    """
    folders = [dataset.folder for dataset in found if dataset.role != "model"]
    return [
        _describe_source(source, projection, folder)
        for source, projection, folder in zip(sources, projections, folders, strict=True)
    ]


def _describe_source(
    source: Source, projection: Projection | None, folder: Folder
) -> dict[str, Any]:
    import numpy as np

    dataset = source.dataset
    places = {str(folder), folder.name}
    if isinstance(folder, Path):
        places.add(str(folder.resolve()))
    return {
        "role": source.role,
        "owner": source.owner,
        "name": source.name,
        "weight": source.weight,
        "max_records": source.max_records,
        "places": sorted(places),
        "dataset_id": dataset.dataset_id,
        "root": dataset.root,
        "largest_batch": getattr(dataset, "largest_batch", 0),
        "schema": None
        if projection is None
        else to_base64(projection.schema.serialize().to_pybytes()),
        "batch_rows": to_base64(np.asarray(dataset.batch_rows, dtype="<u4").tobytes()),
    }


def environment_here(processes: int) -> dict[str, str]:
    """Versions, settings and processor, on which a repetition of the run depends.

    Args:
        processes: Ranks of the recipe.
    """
    facts = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "world_size": str(processes),
        **{name.lower(): _plain(os.environ.get(name, "unset")) for name in _SETTINGS},
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts


def accelerators_here(gpus: Path = _GPUS, nodes: Path = _KFD_NODES) -> tuple[str, ...]:
    """Models of the accelerators in this machine, as their drivers list them.

    Args:
        gpus: NVIDIA's folder, with a folder for each.
        nodes: AMD's, with a folder for each processor and each accelerator.
    """
    found = [_model(folder) for folder in _folders(gpus)]
    for folder in _folders(nodes):
        if _text(folder / "gpu_id").strip() not in ("", "0"):
            found.append(_plain(f"AMD {_text(folder / 'name').strip()}"))
    return tuple(found[:_MOST_ACCELERATORS])


def _model(folder: Path) -> str:
    lines = _text(folder / "information").splitlines()
    named = [line.removeprefix(_MODEL_LINE) for line in lines if line.startswith(_MODEL_LINE)]
    return _plain("".join(named[:1]).strip()) or "unknown"


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # no such driver
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


def _plain(text: str) -> str:
    return "".join(letter for letter in text if " " <= letter <= "~")[:_MOST_CHARACTERS]

"""How often the ranks of a trainer open a record batch and prepare a row, together.

    python benchmarks/scale_ranks.py URL ROOT [--ranks 1 2 8 16]

Prints JSON. Each rank is a forked process in a group over TLS, as between nodes, and reads the
dataset at URL through Accelerate's loader, over a map that stands for a tokenizer: once as ranks
that read everything, once as the recipe's trainers do. Counted, never timed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import torch.utils.data
from accelerate.data_loader import prepare_data_loader
from wire_world import ranks

from scale_node import stream_of
from scale_store import KEY
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.storage.connect import open_folder
from sealtrain.training.data.hugging import Positioned, as_iterable_dataset
from sealtrain.training.distributed.dealing import deal_rows

ROWS = 24_576
"""Read by all ranks together: six rounds, in which every lane comes to its second batch."""
SIZE = 8


class _Noted:
    """A sealed dataset that notes which record batches are opened."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.opened: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def batch(self, number: int) -> Any:
        """As of the dataset."""
        self.opened.append(number)
        return self._dataset.batch(number)


def read(url: str, root: str, rank: int, world: int, *, together: bool) -> dict[str, Any]:
    """One rank's part of ``ROWS`` rows: batches opened, rows prepared, digest of the rows."""
    with SealedDataset.open(open_folder(url), KEY, root=root) as dataset:
        noted = _Noted(dataset)
        stream = Positioned(stream_of(noted, ahead=0))
        prepared = 0

        def mapped(row: dict[str, Any]) -> dict[str, Any]:
            nonlocal prepared
            prepared += 1
            return {"id": row["id"], "length": len(row["text"])}

        rows = as_iterable_dataset(stream).map(mapped, remove_columns=["text"])
        loader = prepare_data_loader(
            torch.utils.data.DataLoader(rows, batch_size=SIZE),
            num_processes=world,
            process_index=rank,
            dispatch_batches=False,
        )
        if together:
            deal_rows(loader, stream)
        batches = list(islice(loader, ROWS // (SIZE * world)))
        ids = [batch["id"].tolist() for batch in batches]
    return {
        "opened": len(noted.opened),
        "prepared": prepared,
        "rows": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
    }


def measured(url: str, root: str, world: int) -> dict[str, Any]:
    """Of so many ranks, both ways: the most of one rank and the sum of all."""
    found: dict[str, Any] = {"ranks": world}
    for name, together in (("alone", False), ("together", True)):

        def work(rank: int, _wire: Any, together: bool = together) -> Any:
            return read(url, root, rank, world, together=together)

        parts = [work(0, None)] if world == 1 else ranks(world, work, timeout_s=100)
        for part in parts:
            if isinstance(part, BaseException):
                raise part
        found[name] = {
            key: {"most": max(part[key] for part in parts), "all": sum(part[key] for part in parts)}
            for key in ("opened", "prepared")
        } | {"rows": [part["rows"] for part in parts]}
    found["same"] = found["alone"].pop("rows") == found["together"].pop("rows")
    return found


def main() -> None:
    """Print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("root")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 8, 16])
    given = parser.parse_args()
    json.dump([measured(given.url, given.root, world) for world in given.ranks], sys.stdout)


if __name__ == "__main__":
    main()

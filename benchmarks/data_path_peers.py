"""Other people's loaders, each in an environment of its own. Started by ``data_path.py``.

    PYTHON benchmarks/data_path_peers.py PEER ROWS.arrow FOLDER ROUNDS

Writes the same rows in the peer's format below FOLDER, reads them shuffled in batches of 64, and
prints one JSON object: rows per second of each round, and whether rows lie in the clear on disk.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH = 64
MARK = b"plainly-readable-mark"


class _NoVision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for a package of image functions that text never calls."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """All rows of an Arrow stream."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        for batch in pa.ipc.open_stream(source):
            yield from batch.to_pylist()


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def litdata(source: Path, folder: Path, encryption: str | None) -> Callable[[], int]:
    """Write with ``optimize`` and return a reader."""
    import litdata as ld
    from litdata.utilities.encryption import FernetEncryption

    cipher = None if encryption is None else FernetEncryption(password="x", level=encryption)  # noqa: S106
    ld.optimize(
        fn=_same,
        inputs=list(rows_of(source)),
        output_dir=str(folder),
        chunk_bytes="8MB",
        num_workers=1,
        encryption=cipher,
    )

    def read() -> int:
        dataset = ld.StreamingDataset(str(folder), shuffle=True, encryption=cipher)
        loader = ld.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0)
        return sum(len(batch["id"]) for batch in loader)

    return read


def mosaic(source: Path, folder: Path) -> Callable[[], int]:
    """Write MDS and return a reader."""
    sys.meta_path.insert(0, _NoVision())
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    columns = {"text": "str", "id": "int", "label": "int", "origin": "str"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=8 << 20) as out:
        for row in rows_of(source):
            out.write(row)

    def read() -> int:
        dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
        return sum(len(batch["id"]) for batch in StreamingDataLoader(dataset, batch_size=BATCH))

    return read


def main() -> None:
    """Write, read, print."""
    peer, source, folder, rounds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    folder.mkdir(parents=True)
    os.chdir(folder.parent)
    if peer == "mosaic":
        read = mosaic(source, folder)
    else:
        read = litdata(source, folder, {"plain": None}.get(peer, peer))
    rates = []
    for _ in range(int(rounds)):
        began = time.perf_counter()
        try:
            rows = read()
        except Exception as error:  # one peer cannot read back what it wrote in the clear
            print(f"cannot read: {type(error).__name__}")
            break
        rates.append(rows / (time.perf_counter() - began))
    clear = any(MARK in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    print("\n" + json.dumps({"rates": rates, "clear": clear}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""One simulated node of the scale benchmark: a process that reads its part of a sealed dataset.

It runs what a guest runs: ``storage`` fetches, ``sealing`` verifies and decrypts, and
``training.data.stream`` decides which rows come next.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from scale_store import KEY, ROWS_A_BATCH
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.storage.connect import open_folder
from sealtrain.training.data.rank_part import RankPart
from sealtrain.training.data.sources import Source
from sealtrain.training.data.stream import RecordStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one node does.

    Attributes:
        url: Folder of the sealed dataset.
        root: Dataset root.
        part: Its rank, the number of nodes, and the rows of a step.
        windows: First row and row after the last of each stretch to read.
    """

    url: str
    root: str
    part: RankPart
    windows: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one node did.

    Attributes:
        positions: In the stream, int64, by window.
        ids: Of the rows at these positions.
        seconds: Of each window, from its beginning to its last row.
        first: Seconds to the first rows of each window.
        open_seconds: To open the dataset.
        base_mib: Memory before the dataset was opened.
        opened_mib: Memory after.
        peak_mib: The most.
        requests: Range requests, those of opening included.
        open_requests: Of opening alone.
    """

    positions: list[Any]
    ids: list[Any]
    seconds: list[float]
    first: list[float]
    open_seconds: float
    base_mib: float
    opened_mib: float
    peak_mib: float
    requests: int
    open_requests: int


def stream_of(dataset: Any, **settings: Any) -> RecordStream:
    """The stream of one dataset."""
    source = Source(role="train", owner="owner", name="scale", weight=1.0, dataset=dataset)
    return RecordStream([source], ["id", "text"], seed=1, **settings)


def read(task: Task, answer: Connection, start: Any) -> None:
    """Open the dataset, wait for the other nodes, read, and answer with a ``Read``."""
    import pyarrow as pa

    pa.array([1])  # the library is loaded and counted before the dataset
    base = memory("VmRSS")
    folder = open_folder(task.url)
    began = time.perf_counter()
    dataset = SealedDataset.open(folder, KEY, root=task.root)
    stream = stream_of(dataset)
    opening = time.perf_counter() - began
    opened, asked = memory("VmRSS"), folder.requests
    positions, ids, seconds, first = [], [], [], []
    start.wait(300)
    for low, high in task.windows:
        began = time.perf_counter()
        found = []
        for batch in stream.rounds(low, high, part=task.part):
            if not found:
                first.append(time.perf_counter() - began)
            found.append(batch["id"].to_numpy())
        seconds.append(time.perf_counter() - began)
        ids.append(np.concatenate(found))
        positions.append(np.concatenate(list(stream.positions(low, high, part=task.part))))
    answer.send(
        Read(
            positions=positions,
            ids=ids,
            seconds=seconds,
            first=first,
            open_seconds=opening,
            base_mib=base,
            opened_mib=opened,
            peak_mib=memory("VmHWM"),
            requests=folder.requests,
            open_requests=asked,
        )
    )
    dataset.close()


def planned(url: str, root: str, answer: Connection) -> None:
    """Which row lies at each position of a whole epoch, and nothing is decrypted.

    Answers with the number of rows, whether each came exactly once, seconds, and a digest of all.
    """
    with SealedDataset.open(open_folder(url), KEY, root=root) as dataset:
        began = time.perf_counter()
        order = stream_of(dataset).order
        rows = order.epoch_rows()
        seen = np.zeros(rows, dtype=bool)
        digest = hashlib.sha256()
        held: dict[int, tuple[tuple[int, int], Any]] = {}
        for number in range(order.rounds_in(0)):
            current = order.round(0, number)
            pieces = []
            for pick in current.picks:
                key = pick.turn, pick.batch
                if held.get(pick.lane, ((-1, -1), None))[0] != key:
                    held[pick.lane] = key, order.shuffle(pick, ROWS_A_BATCH)
                turned = held[pick.lane][1]
                pieces.append(turned[pick.start : pick.stop] + pick.batch * ROWS_A_BATCH)
            ids = np.concatenate(pieces)[current.order]
            seen[ids] = True
            digest.update(ids.tobytes())
        answer.send(
            {
                "rows": rows,
                "once": bool(seen.all()),
                "seconds": time.perf_counter() - began,
                "digest": digest.hexdigest(),
            }
        )


def memory(field: str) -> float:
    """A field of this process's status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no {field} in /proc/self/status")

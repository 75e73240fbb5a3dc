"""The process of the GPU benchmark that trains: locked down as ``sealtrain train`` locks a guest.

    python benchmarks/gpu_inside.py TASK.json

It opens the sealed records, closes the sandbox (``guest.sandbox.border``: no output, no network, no
file outside its folder, Landlock and seccomp where the kernel has them), and then trains both sides
in turn. It answers by a file beside its task.
"""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ANSWER = "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One training of one side, after its first steps.

    Attributes:
        side: ``sealed`` or ``plain``.
        began: When the counted steps began, by ``time.monotonic``.
        ended: When they ended.
        steps: That were counted.
        waited: Seconds in which the trainer waited for records.
        stalled: Seconds that each counted checkpoint kept the trainer from its next step.
        losses: Of all steps.
        rows: What was trained on, row by row: the first 16 hex digits of SHA-256.
        peak_bytes: Most memory of the GPU that tensors took at once; ``None`` without a GPU.
    """

    side: str
    began: float
    ended: float
    steps: int
    waited: float
    stalled: list[float]
    losses: list[float]
    rows: list[str]
    peak_bytes: int | None


class Clocks:
    """Seconds that the trainer spends on what is measured: waiting for records, and checkpoints."""

    def __init__(self) -> None:
        from sealtrain.base.digests import sha256_hex
        from sealtrain.training.checkpoints.saver import CheckpointSaver
        from sealtrain.training.data.stream import RecordStream

        self.waited = 0.0
        self.rows: list[str] = []
        self.stalls: list[tuple[float, float]] = []
        give, save = RecordStream.rows, CheckpointSaver.save
        clocks = self

        def rows(stream: Any, *place: Any) -> Iterator[dict[str, Any]]:
            given = give(stream, *place)
            while True:
                began = time.perf_counter()
                row = next(given, None)
                clocks.waited += time.perf_counter() - began
                if row is None:
                    return
                clocks.rows.append(sha256_hex(repr(row).encode())[:16])
                yield row

        def timed_save(*arguments: Any, **options: Any) -> None:
            began = time.perf_counter()
            save(*arguments, **options)
            clocks.stalls.append((time.monotonic(), time.perf_counter() - began))

        RecordStream.rows = rows  # type: ignore[method-assign]
        CheckpointSaver.save = timed_save  # type: ignore[method-assign]


class Work:
    """Both sides of one recipe."""

    def __init__(self, task: dict[str, Any]) -> None:
        from sealtrain.recipe.schema import load_recipe
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.sealing.opened_dataset import SealedDataset
        from twosided import PlainRecords

        self.task = task
        self.folder = Path(task["folder"])
        self.recipe = load_recipe(Path(task["recipe"]))
        self.base = Path(task["recipe"]).parent
        self.datasets: dict[str, dict[str, Any]] = {"sealed": {}, "plain": {}}
        for key, dataset in task["datasets"].items():
            opened = SealedDataset.open(
                Path(dataset["folder"]),
                DataKey(bytes.fromhex(dataset["key"])),
                root=dataset["root"],
            )
            self.datasets["sealed"][key] = opened
            self.datasets["plain"][key] = PlainRecords(opened)
        self._clocks: Clocks | None = None

    def turn(self, side: str, number: int) -> Turn:
        """Train one side once."""
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.sealing.store import SealedStore
        from sealtrain.training.run import Checkpoints, Inputs, Reporting, train
        from twosided import SECRET, PlainStore

        self._clocks = clocks = self._clocks or Clocks()
        clocks.rows.clear()
        place = self.folder / f"{side}-{number}"
        store: Any = PlainStore(place)
        if side == "sealed":
            store = SealedStore(place, DataKey.generate(), label="checkpoint")
        marks: list[tuple[float, float, float]] = []
        _forget_peak()
        train(
            self.recipe,
            run_id="00" * 16,
            inputs=Inputs(base_dir=self.base, sources=self._sources(side), secret=SECRET),
            checkpoints=Checkpoints(store=store),
            reporting=Reporting(
                on_metrics=lambda _step, values: marks.append(
                    (time.monotonic(), clocks.waited, _number(values["loss"]))
                )
            ),
        )
        first, last = marks[self.task["warm"] - 1], marks[-1]
        return Turn(
            side=side,
            began=first[0],
            ended=last[0],
            steps=len(marks) - self.task["warm"],
            waited=last[1] - first[1],
            stalled=[taken for at, taken in clocks.stalls if first[0] < at <= last[0]],
            losses=[loss for _, _, loss in marks],
            rows=clocks.rows[: len(marks) * self.recipe.trainer.per_device_train_batch_size],
            peak_bytes=_peak(),
        )

    def other_rank(self, side: str) -> None:
        """Train as another rank, which keeps nothing."""
        from sealtrain.training.run import Checkpoints, Inputs, train
        from twosided import SECRET, PlainStore

        store: Any = PlainStore(self.folder / f"other-{side}-{time.monotonic_ns()}")
        train(
            self.recipe,
            run_id="00" * 16,
            inputs=Inputs(base_dir=self.base, sources=self._sources(side), secret=SECRET),
            checkpoints=Checkpoints(store=store),
        )

    def _sources(self, side: str) -> list[Any]:
        from sealtrain.training.data.sources import Source

        return [
            Source(
                role=dataset.role,
                owner=dataset.owner,
                name=dataset.name,
                weight=dataset.weight,
                dataset=self.datasets[side][f"{dataset.owner}.{dataset.name}"],
            )
            for dataset in self.recipe.datasets
        ]


def _forget_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int | None:
    import torch

    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def _number(loss: float | None) -> float:
    """A loss; one that is not finite was not released."""
    return math.nan if loss is None else float(loss)


def locked(work: Work, train: Callable[[Any], list[Turn]]) -> tuple[list[Turn], dict[str, Any]]:
    """Train in the sandbox of a guest; what was measured, and how the kernel held the sandbox."""
    from sealtrain.guest.sandbox.border import Ways, enclose
    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.training.distributed.ranks import gather_ranks

    ways, life = Ways(folders=[work.folder]), ExitStack()
    with enclose(OutputTally(), alone=True) as room, room.confine(ways):

        def secure() -> None:
            life.enter_context(room.confine(ways))
            room.lock(ways)

        with gather_ranks(
            work.recipe.backend.ranks,
            group=False,
            prepare=lambda: None,
            secure=secure,
            work=work.other_rank,
        ) as ranks:
            held = room.lock(ways)
            return train(ranks), held.to_dict()


def main() -> None:
    """Do the task in a file."""
    task: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    answer = Path(task["folder"]) / ANSWER
    try:
        work = Work(task)

        def all_turns(ranks: Any) -> list[Turn]:
            turns = []
            for number, side in enumerate(task["sides"]):
                with ranks.lead(side):
                    turns.append(work.turn(side, number))
            return turns

        turns, held = locked(work, all_turns)
        answer.write_text(json.dumps({"turns": [asdict(turn) for turn in turns], "held": held}))
    except BaseException:  # the sandbox silences this process; the records are filler
        answer.write_text(json.dumps({"failed": traceback.format_exc()}))
        raise


if __name__ == "__main__":
    main()

"""Streams as the types Hugging Face trainers accept, without a copy on disk and without pickling.

``load_dataset`` and ``Dataset.from_generator`` write plaintext Arrow under a cache folder, and
``IterableDataset.from_generator`` fingerprints a generator by pickling it. Nothing here does
either: the dataset is built on one internal class of ``datasets``, which is why that library's
version is bounded, and the stream refuses to be pickled.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import datasets
from datasets import iterable_dataset
from datasets.iterable_dataset import _BaseExamplesIterable

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.training.data.stream import RecordStream, read_all

if TYPE_CHECKING:
    from sealtrain.training.data.sources import Source

ROW = "sealtrain_row"
"""Under this name a numbered row carries its position in the stream."""


def _own_epoch(value: Any) -> int:
    return int(value)


# The library puts each dataset's epoch into shared memory, for workers of a loader, which no run
# has. A run may write there only into its own folder, unless it may mount memory of its own.
iterable_dataset._maybe_share_with_torch_persistent_workers = _own_epoch


class Positioned:
    """A stream with a place to begin at and a count of where its newest reader is.

    Attributes:
        stream: The records.
        start: Row at which the next iteration begins; a resumed run sets it.
        position: Row after the one handed out last.
        stop: Row at which iterations end; endless when ``None``.
        numbered: Rows carry their position, as ``ROW``.
        fed: Rows with their positions that are given instead of the stream's; ``None`` for those.
        divided: The rows given are one rank's share; other ranks get the others.
    """

    def __init__(self, stream: RecordStream, *, stop: int | None = None) -> None:
        self.stream = stream
        self.start = 0
        self.position = 0
        self.stop = stop
        self.numbered = False
        self.fed: Iterable[tuple[int, dict[str, Any]]] | None = None
        self.divided = False

    def rows(self, start: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows from ``start`` on, the attribute when not given."""
        self.position = self.start if start is None else start
        given = self.fed
        if given is None:
            given = enumerate(self.stream.rows(self.position, self.stop), self.position)
        for position, row in given:
            if self.numbered:
                row[ROW] = position
            self.position = position + 1
            yield row

    def mark(self) -> dict[str, Any]:
        """Where the newest reader is: plain data for ``seek``; ``row`` counts rows begun."""
        return {"row": self.position}

    def seek(self, mark: Mapping[str, Any]) -> None:
        """Make the next iteration begin where ``mark`` was taken."""
        self.start = int(mark["row"])

    def __reduce__(self) -> Any:
        """Refuse: keys and plaintext stay in this process."""
        raise UsageError(
            "a sealed stream does not leave its process",
            hint="set dataloader_num_workers to 0; decryption runs ahead in a thread",
        )


def once(positioned: Positioned | None) -> None:
    """Let iterations of a stream end with its first epoch."""
    if positioned is not None:
        positioned.stop = positioned.stream.order.epoch_rows()


class _StreamExamples(_BaseExamplesIterable):  # type: ignore[misc]  # datasets ships no types
    """The one shard of a stream. Its state is a row number."""

    def __init__(self, positioned: Positioned) -> None:
        super().__init__()
        self.positioned = positioned

    @property
    def features(self) -> datasets.Features:
        return datasets.Features.from_arrow_schema(self.positioned.stream.schema)

    @property
    def is_typed(self) -> bool:
        return True

    @property
    def num_shards(self) -> int:
        return 1

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict: dict[str, Any] = {"row": None, "type": type(self).__name__}
        return self._state_dict

    def shuffle_data_sources(self, generator: Any) -> _StreamExamples:
        """Return itself: the stream is shuffled already, and does not follow a trainer's epochs."""
        return self

    def shard_data_sources(
        self, num_shards: int, index: int, contiguous: bool = True
    ) -> _StreamExamples:
        """Return itself: rows are divided among ranks, shards are not."""
        return self

    def reshard_data_sources(self) -> _StreamExamples:
        """Return itself."""
        return self

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        state = self._state_dict
        for row in self.positioned.rows(state["row"] if state else None):
            if state:
                state["row"] = self.positioned.position
            yield self.positioned.position - 1, row


def nothing_kept() -> DataInvalid:
    """What ends an endless stream of which a trainer's filters keep no row."""
    return DataInvalid(
        "the trainer keeps no record of the training data",
        check="records",
        hint="no record leaves anything to learn within trainer.max_length: raise it",
    )


def _keep_rows(
    filtered: iterable_dataset.FilteredExamplesIterable,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The rows that a filter keeps; by the library's own way it would look for one for ever.

    Raises:
        DataInvalid: Of an endless stream it dropped every row. Ranks among which the rows are
            divided count together (``training.distributed.dealing``).
    """
    stream = _stream_under(filtered)
    counted = stream is not None and stream.stop is None and not stream.divided
    dropped_since: int | None = None
    for key, example in iterable_dataset.MappedExamplesIterable._iter(filtered):
        row = dict(example)
        if row.pop(filtered.mask_column_name):
            dropped_since = None
            yield key, row
        elif stream is not None and counted:
            dropped_since = stream.position if dropped_since is None else dropped_since
            if stream.position - dropped_since > stream.stream.order.full_turn():
                raise nothing_kept()


iterable_dataset.FilteredExamplesIterable._iter = _keep_rows


def as_iterable_dataset(positioned: Positioned) -> datasets.IterableDataset:
    """A ``datasets.IterableDataset`` over a stream, as ``SFTTrainer`` wants it.

    Endless unless the stream has a stop: give the trainer ``max_steps``.
    """
    features = datasets.Features.from_arrow_schema(positioned.stream.schema)
    return datasets.IterableDataset(
        _StreamExamples(positioned), info=datasets.DatasetInfo(features=features)
    )


def as_map_style_dataset(
    sources: Sequence[Source],
    columns: Sequence[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
) -> datasets.Dataset:
    """A ``datasets.Dataset`` with every record decrypted in memory, for data that fits there."""
    import pyarrow as pa

    return datasets.Dataset(pa.Table.from_batches(list(read_all(sources, columns, names=names))))


def map_in_this_process() -> None:
    """Have ``Dataset.map`` and ``filter`` do their work here, whatever ``num_proc`` says.

    Their processes would speak to each other through sockets that a run does not open. The rows
    are the same.
    """
    for name in ("map", "filter"):
        method = getattr(datasets.Dataset, name)
        if not hasattr(method, "of_datasets"):
            setattr(datasets.Dataset, name, _alone(method))


def _alone(method: Any) -> Any:
    @functools.wraps(method)
    def alone(self: Any, *args: Any, **settings: Any) -> Any:
        bound = inspect.signature(method).bind(self, *args, **settings)
        bound.arguments["num_proc"] = None
        return method(*bound.args, **bound.kwargs)

    alone.of_datasets = method  # type: ignore[attr-defined]
    return alone


def read_in_each_rank() -> None:
    """Have Accelerate let each rank read a stream, where a script does not say who reads it.

    By default rank 0 would read for all, and join batches that a collator padded to unequal
    lengths.
    """
    from accelerate import Accelerator

    def is_dispatching(self: Any) -> bool:
        return bool(self.dataloader_config.dispatch_batches)

    Accelerator.dispatch_batches = property(is_dispatching)


def find_positioned(dataset: Any) -> Positioned | None:
    """The stream under a dataset that was mapped, filtered or divided since; ``None`` if none.

    For the dataset of a user's script, which may be made of the stream in any way. A phase says
    which stream its trainer reads (``RunContext.stream``).
    """
    while dataset is not None:
        found = _stream_under(getattr(dataset, "_ex_iterable", None))
        if found is not None:
            return found
        dataset = getattr(dataset, "dataset", None)
    return None


def _stream_under(examples: Any) -> Positioned | None:
    while examples is not None:
        if isinstance(getattr(examples, "positioned", None), Positioned):
            found: Positioned = examples.positioned
            return found
        examples = getattr(examples, "ex_iterable", None)
    return None

"""Names of shards, and which of them lie beside a checkpoint (spec/checkpoint.md §2.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.errors import CheckpointRefused, SealRefused

if TYPE_CHECKING:
    from sealtrain.training.data.sources import BlobStore

MAX_SHARDS: Final = 4096
_NAME: Final = re.compile(r"rank-([0-9]{4})/shard-([0-9]{8})-([0-9]{10})-of-([0-9]{4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRef:
    """A shard of a checkpoint.

    Attributes:
        counter: Of its checkpoint.
        step: Of its checkpoint.
        number: From 0; it has the place of a rank that held pieces.
        count: Number of the checkpoint's shards.
    """

    counter: int
    step: int
    number: int
    count: int

    @property
    def name(self) -> str:
        """Name of its blob. Shards of one number lie in one folder: only one is written at a time.

        Raises:
            CheckpointRefused: The numbers are not those of a shard.
        """
        if not 0 <= self.number < self.count <= MAX_SHARDS:
            raise CheckpointRefused(
                "no shard has this number",
                check="shard",
                got=f"{self.number} of {self.count}",
                expected=f"at most {MAX_SHARDS}",
            )
        return (
            f"rank-{self.number:04d}/shard-{self.counter:08d}-{self.step:010d}-of-{self.count:04d}"
        )

    def binding(self, run_id: str, previous: str) -> dict[str, str | int]:
        """The values that its blob is bound to.

        Args:
            run_id: 32 hex digits.
            previous: Digest of the checkpoint before the shard's own.
        """
        return {
            "run_id": run_id,
            "counter": self.counter,
            "step": self.step,
            "previous": previous,
            "shard": self.number,
            "shards": self.count,
        }


def shard_named(name: str) -> ShardRef | None:
    """The shard whose blob has this name; ``None`` for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    number, counter, step, count = (int(part) for part in found.groups())
    return ShardRef(counter=counter, step=step, number=number, count=count)


def shards_beside(store: BlobStore, counter: int, step: int) -> Iterator[ShardRef]:
    """Shards that lie in a store with a checkpoint's counter and step, by number.

    Those of an attempt with another number of shards may be among them; the index says which count.
    """
    for name in store.names():
        ref = shard_named(name)
        if ref is not None and (ref.counter, ref.step) == (counter, step):
            yield ref


def are_whole(store: BlobStore, counter: int, step: int) -> bool:
    """Whether all shards beside a checkpoint are there, each with every byte under its hashes.

    A checkpoint without any shard beside it may be one that has none.
    """
    numbers: dict[int, set[int]] = {}
    for ref in shards_beside(store, counter, step):
        held = numbers.setdefault(ref.count, set())
        try:
            store.verify(ref.name)
        except (SealRefused, DataInvalid, LimitExceeded):
            continue
        held.add(ref.number)
    return not numbers or any(held == set(range(count)) for count, held in numbers.items())

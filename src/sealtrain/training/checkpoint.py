"""Sealed checkpoints: one blob each, bound to run, counter and step, loaded as plain data only.

A blob holds trainable weights, optimizer, scheduler, random states and the loss account. It is
written through a store that seals while torch writes; nothing is staged in the clear. The counter
grows with every checkpoint of a run and is anchored outside, so an older one is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from sealtrain.errors import CheckpointRefused
from sealtrain.training import quiet
from sealtrain.training.randomness import random_states, restore_random_states

if TYPE_CHECKING:
    from sealtrain.training.sources import BlobStore

quiet.silence()

__all__ = [
    "CheckpointRef",
    "load",
    "newest",
    "prune",
    "random_states",
    "restore_random_states",
    "save",
]

_NAME = re.compile(r"checkpoint-(\d{8})-(\d{10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """A checkpoint of a run.

    Attributes:
        counter: 1 for the first of the run, growing by one.
        step: Optimizer steps done.
        digest: SHA-256 of its sealed bytes, 64 hex digits.
    """

    counter: int
    step: int
    digest: str

    @property
    def name(self) -> str:
        """Name of its blob."""
        return _name(self.counter, self.step)


def save(
    store: BlobStore, run_id: str, counter: int, step: int, state: dict[str, Any]
) -> CheckpointRef:
    """Seal ``state`` as checkpoint ``counter``.

    Args:
        store: Seals what is written.
        run_id: 32 hex digits, bound.
        counter: Bound.
        step: Bound.
        state: Nested dicts, lists, numbers, strings and tensors.
    """
    import torch

    name = _name(counter, step)
    with store.write(name, _binding(run_id, counter, step)) as file:
        torch.save(state, cast(IO[bytes], file))
    return CheckpointRef(counter=counter, step=step, digest=store.digest(name))


def load(store: BlobStore, run_id: str, ref: CheckpointRef) -> dict[str, Any]:
    """Open a checkpoint.

    Raises:
        SealRefused: It was altered or belongs to another run, step or counter.
        CheckpointRefused: It holds something other than plain data.
    """
    import pickle

    import torch

    with store.read(ref.name, _binding(run_id, ref.counter, ref.step)) as file:
        try:
            state: dict[str, Any] = torch.load(
                cast(IO[bytes], file), map_location="cpu", weights_only=True
            )
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise CheckpointRefused(
                "the checkpoint holds no training state", check="checkpoint"
            ) from error
    return state


def newest(
    store: BlobStore, anchor: tuple[int, str] | None, *, complete: Collection[int] | None = None
) -> CheckpointRef | None:
    """The checkpoint to continue from.

    Args:
        store: Holds the run's checkpoints.
        anchor: Counter and digest of the newest one known outside; ``None`` if none was anchored.
        complete: Counters of those whose other records were written too; a crash may have come
            in between. All of them when ``None``.

    Raises:
        CheckpointRefused: Only older ones are there, or another one with the anchored counter.
    """
    found = []
    for name in store.names():
        match = _NAME.fullmatch(name)
        if match and (complete is None or int(match[1]) in complete):
            found.append((int(match[1]), int(match[2])))
    if not found:
        if anchor is not None:
            raise _rolled_back("none", anchor)
        return None
    counter, step = max(found)
    digest = store.digest(_name(counter, step))
    if anchor is not None and (
        counter < anchor[0] or (counter == anchor[0] and digest != anchor[1])
    ):
        raise _rolled_back(f"counter {counter}, digest {digest[:16]}…", anchor)
    return CheckpointRef(counter=counter, step=step, digest=digest)


def prune(store: BlobStore, keep: int, *, besides: Collection[CheckpointRef] = ()) -> None:
    """Delete all but the ``keep`` newest checkpoints and those named ``besides``."""
    names = sorted(name for name in store.names() if _NAME.fullmatch(name))
    kept = {ref.name for ref in besides}
    for name in names[:-keep]:
        if name not in kept:
            store.remove(name)


def _name(counter: int, step: int) -> str:
    return f"checkpoint-{counter:08d}-{step:010d}"


def _binding(run_id: str, counter: int, step: int) -> dict[str, str | int]:
    return {"run_id": run_id, "counter": counter, "step": step}


def _rolled_back(got: str, anchor: tuple[int, str]) -> CheckpointRefused:
    return CheckpointRefused(
        "the newest checkpoint here is not the newest of this run",
        check="checkpoint anchor",
        got=got,
        expected=f"counter {anchor[0]}, digest {anchor[1][:16]}…, or a later one",
        hint="restore the run's folder; an older state would repeat steps unseen",
    )

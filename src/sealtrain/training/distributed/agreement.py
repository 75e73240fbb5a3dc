"""Messages between ranks besides gradients: random states, and measurements that decide."""

from __future__ import annotations

from typing import Any, TypeVar

from sealtrain.errors import CheckpointRefused
from sealtrain.training.distributed.ranks import place

__all__ = ["flag_of_first", "gathered_states", "own_states", "same_for_all", "to_first"]

Told = TypeVar("Told")


def to_first(own: Told) -> list[Told]:
    """Gather every rank's value on rank 0, by rank; other ranks get an empty list."""
    mine = place()
    if mine.world == 1:
        return [own]
    import torch.distributed as dist

    found: list[Any] | None = [None] * mine.world if mine.leads else None
    dist.gather_object(own, found)
    return found or []


def same_for_all(own: Told) -> Told:
    """Rank 0's value, on every rank."""
    if place().world == 1:
        return own
    import torch.distributed as dist

    told = [own]
    dist.broadcast_object_list(told)
    return told[0]


def flag_of_first(own: bool) -> bool:
    """Rank 0's flag, on every rank and at every step: one byte over loopback."""
    import torch
    import torch.distributed as dist

    said = torch.tensor([own], dtype=torch.uint8)
    dist.broadcast(said, 0)
    return bool(said.item())


def gathered_states(own: dict[str, Any]) -> Any:
    """Random states of all ranks as a checkpoint keeps them; a single rank's without a list."""
    return own if place().world == 1 else to_first(own)


def own_states(kept: Any) -> dict[str, Any]:
    """This rank's part of ``gathered_states``.

    Raises:
        CheckpointRefused: The checkpoint is of another number of ranks.
    """
    mine = place()
    parts = kept if isinstance(kept, list) else [kept]
    if len(parts) != mine.world:
        raise CheckpointRefused(
            "the checkpoint is of another number of ranks",
            check="ranks",
            got=len(parts),
            expected=mine.world,
            hint="resume with the recipe that began the run",
        )
    part: dict[str, Any] = parts[mine.rank]
    return part

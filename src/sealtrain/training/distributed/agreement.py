"""Messages between ranks besides gradients: shared work, random states, decisive measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any, Final, TypeVar

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.distributed.ranks import place

Told = TypeVar("Told")
Piece = TypeVar("Piece")

_GENERATORS: Final = frozenset({"python", "numpy", "torch"})


def to_first(own: Told) -> list[Told]:
    """Gather every rank's value on rank 0, by rank; other ranks get an empty list."""
    mine = place()
    if mine.world == 1:
        return [own]
    import torch.distributed as dist

    found: list[Any] | None = [None] * mine.world if mine.leads else None
    dist.gather_object(own, found)
    return found or []


def gather_values(own: Told) -> list[Told]:
    """Every rank's value, by rank, in every rank."""
    mine = place()
    if mine.world == 1:
        return [own]
    import torch.distributed as dist

    found: list[Any] = [None] * mine.world
    dist.all_gather_object(found, own)
    return found


def exchange_parcels(parcels: Sequence[Told]) -> list[Told]:
    """Send each rank its parcel, and get one from each.

    Args:
        parcels: By rank that gets it; tensors in them are on the CPU.

    Returns:
        By rank that sent it.
    """
    if place().world == 1:
        return list(parcels)
    import numpy as np
    import torch
    import torch.distributed as dist

    from sealtrain.base.processes import answer_of, pack

    data = [pack(parcel) for parcel in parcels]
    sizes = torch.tensor([len(each) for each in data])
    coming = torch.empty_like(sizes)
    dist.all_to_all_single(coming, sizes)
    sent = torch.from_numpy(np.frombuffer(bytearray(b"".join(data)), np.uint8))
    got = torch.empty(int(coming.sum()), dtype=torch.uint8)
    dist.all_to_all_single(got, sent, coming.tolist(), sizes.tolist())
    return [answer_of(each.numpy().tobytes()) for each in torch.split(got, coming.tolist())]


def same_for_all(own: Told) -> Told:
    """Rank 0's value, on every rank."""
    if place().world == 1:
        return own
    import torch.distributed as dist

    told = [own]
    dist.broadcast_object_list(told)
    return told[0]


def deal_pieces(pieces: Iterable[Piece], work: Callable[[int, Piece], Told]) -> list[Told]:
    """Work on each piece in one of the ranks, in turns.

    Args:
        pieces: The same in every rank.
        work: From a piece's number and the piece to a result with tensors on the CPU only.

    Returns:
        The results of all pieces in their order, in every rank.
    """
    mine = place()
    own = {
        number: work(number, piece)
        for number, piece in enumerate(pieces)
        if number % mine.world == mine.rank
    }
    found = {number: done for part in gather_values(own) for number, done in part.items()}
    return [found[number] for number in sorted(found)]


def add_up(tensors: Iterable[Any]) -> None:
    """Replace each tensor by its sum over all ranks, in every rank."""
    if place().world == 1:
        return
    import torch.distributed as dist

    for tensor in tensors:
        dist.all_reduce(tensor)


@contextmanager
def by_itself(trainer: Any) -> Iterator[None]:
    """Let one rank measure with a trainer while the other ranks do not.

    TRL's trainers gather figures for a log of their own in the middle of their loss; ranks that do
    not measure would never answer.

    Args:
        trainer: A Hugging Face trainer. Its accelerator gathers nothing inside the block.
    """
    if place().world == 1:
        yield
        return
    accelerator = trainer.accelerator
    for name in ("gather", "gather_for_metrics"):
        setattr(accelerator, name, _leave_as_is)
    try:
        yield
    finally:
        for name in ("gather", "gather_for_metrics"):
            delattr(accelerator, name)


def _leave_as_is(own: Told, *_: Any, **__: Any) -> Told:
    return own


def mean_over_ranks(own: dict[str, float]) -> dict[str, float]:
    """On rank 0 the mean of each name over the ranks that have it; other ranks keep their own."""
    parts = to_first(own)
    names = dict.fromkeys(name for part in parts for name in part)
    if not place().leads:
        return own
    return {name: fmean(part[name] for part in parts if name in part) for name in names}


def expect_one_model(model: Any) -> None:
    """Compare the parameters of all ranks, each of which has a whole copy. All ranks take part.

    Args:
        model: A ``torch.nn.Module``.

    Raises:
        UsageError: A rank has other parameters, or a part of the model only.
    """
    if place().world == 1:
        return
    digests = gather_values(_digest_of(model))
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others or digests[0] is None:
        raise UsageError(
            "the ranks of this training did not end with one model",
            check="ranks",
            got="a part of the model in each"
            if not others
            else f"another model in rank {others[0]}",
            expected="the same parameters in every rank",
            hint="let the trainer or accelerator.prepare(model) join the ranks' gradients",
        )


def _digest_of(model: Any) -> bytes | None:
    """Of names and content of all parameters; ``None`` where one is shared out over ranks."""
    import torch

    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):
            return None
        content = parameter.detach().reshape(-1).contiguous().view(torch.uint8).cpu()
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
        digest.update(content.numpy().data)
    return digest.digest()


def flag_of_first(own: bool) -> bool:
    """Rank 0's flag, on every rank and at every step: one byte over loopback."""
    import torch
    import torch.distributed as dist

    said = torch.tensor([own], dtype=torch.uint8)
    dist.broadcast(said, 0)
    return bool(said.item())


def ready_in_all(own: bool) -> bool:
    """Whether every rank says so, in every rank."""
    if place().world == 1:
        return own
    import torch
    import torch.distributed as dist

    said = torch.tensor([own], dtype=torch.uint8)
    dist.all_reduce(said, dist.ReduceOp.MIN)
    return bool(said.item())


def gather_states(own: dict[str, Any]) -> Any:
    """Random states of all ranks as a checkpoint keeps them; a single rank's without a list."""
    return own if place().world == 1 else to_first(own)


def own_states(kept: Any, approved: Collection[int] = ()) -> dict[str, Any] | None:
    """This rank's part of ``gather_states``.

    Args:
        kept: What ``gather_states`` returned on rank 0.
        approved: Numbers of ranks whose checkpoints may be continued besides this number.

    Returns:
        The part, or ``None`` where another number of ranks made the checkpoint: then the random
        states of no rank have a counterpart here.

    Raises:
        CheckpointRefused: The checkpoint is of a number of ranks that is not approved, or the state
            of a rank is missing or malformed.
    """
    mine = place()
    parts = kept if isinstance(kept, list) and len(kept) != 1 else [kept]
    if len(parts) != mine.world and len(parts) not in approved:
        raise CheckpointRefused(
            "the checkpoint is of another number of ranks",
            check="ranks",
            got=len(parts),
            expected=mine.world,
            hint="resume with the number of ranks that the recipe names",
        )
    for rank, part in enumerate(parts):
        if not isinstance(part, dict) or not part.keys() >= _GENERATORS:
            raise CheckpointRefused(
                "the checkpoint has no random states for one of its ranks",
                check="random",
                got=f"rank {rank}",
                expected=", ".join(sorted(_GENERATORS)),
                hint="resume from an earlier checkpoint",
            )
    if len(parts) != mine.world:
        return None
    own: dict[str, Any] = parts[mine.rank]
    return own

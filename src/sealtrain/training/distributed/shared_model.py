"""A trained model that lies in parts in its ranks, and its way to a file: tensor by tensor.

Rank 0 has the model's outline and leads: it says once which tensors it wants in which order. Then
each goes by in blocks, and no rank holds more of the others' parts than a block, of ZeRO a tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.training.distributed.agreement import gather_values, same_for_all
from sealtrain.training.distributed.ranks import place
from sealtrain.training.finite import first_weight_not_finite, weight_not_finite
from sealtrain.training.weight_file import BLOCK_BYTES, WeightSource, blocks_of, read_order

if TYPE_CHECKING:
    import torch


class SharedModel:
    """The model after training, as every rank knows it.

    Attributes:
        model: The live model, of which each rank has its part. It can be measured by all together.
        outline: The model that is delivered, without memory.
    """

    def __init__(
        self,
        model: Any,
        outline: Any,
        source: WeightSource,
        *,
        parts: Mapping[str, Any],
        described: Mapping[str, Any],
    ) -> None:
        """Read nothing yet.

        Args:
            model: See the class.
            outline: See the class.
            source: Reads the model's tensors.
            parts: This rank's part of each tensor by name.
            described: What all ranks say alike of each whole tensor.
        """
        self.model, self.outline = model, outline
        self._source, self._parts, self._described = source, parts, described

    def lead(self, order: Sequence[str]) -> WeightSource:
        """Tell the other ranks what is read; rank 0 then reads exactly that, to the end.

        Raises:
            TrainingDiverged: A part of any rank holds a number that is not finite.
            UsageError: Ranks have other tensors than rank 0.
        """
        same_for_all(list(order))
        self._require_whole(order)
        return self._source

    def follow(self) -> None:
        """Take part in what rank 0 reads. Raises as ``lead``, in every rank."""
        order: list[str] = same_for_all([])
        self._require_whole(order)
        read_order(self._source, order)

    def _require_whole(self, order: Sequence[str]) -> None:
        """Agree with all ranks on the tensors that are read, before the first of them is."""
        parts = {name: self._parts[name] for name in order if name in self._parts}
        described = [(name, self._described.get(name)) for name in order]
        digest = hashlib.sha256(repr(described).encode()).digest()
        told = gather_values((first_weight_not_finite(self.model, parts), digest))
        for name, _ in told:
            if name is not None:
                raise weight_not_finite(name)
        others = [rank for rank, (_, each) in enumerate(told) if each != told[0][1]]
        if others or any(each is None for _, each in described):
            raise _another_model(others[0] if others else 0)


def _another_model(rank: int) -> UsageError:
    return UsageError(
        "the ranks of this training did not end with one model",
        check="ranks",
        got=f"another model in rank {rank}",
        expected="the same tensors in every rank",
        hint="resume from the last checkpoint: sealtrain resume",
    )


class ShardedWeights:
    """``WeightSource`` of tensors that FSDP2 cut into rows.

    A block goes from the rank that has it to all of its group by a broadcast, over connections that
    exist: a message between two ranks alone would open new ones, which the sandbox refuses.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        """Keep the parts.

        Args:
            tensors: Of the live model by name.
        """
        self._tensors = tensors

    def read(self, name: str) -> Iterator[torch.Tensor]:
        """See ``WeightSource``."""
        tensor = self._tensors[name]
        if not hasattr(tensor, "to_local"):
            if place().leads:
                yield from blocks_of(tensor)
            return
        shared = [at for at, where in enumerate(tensor.placements) if where.is_shard()]
        if not shared:
            if place().leads:
                yield from blocks_of(tensor.to_local())
            return
        if len(shared) > 1 or not tensor.placements[shared[0]].is_shard(0):
            raise AssertionError("FSDP2 shares rows out, among one dimension of its mesh")
        yield from self._read_rows(tensor, shared[0])

    def _read_rows(self, tensor: Any, dimension: int) -> Iterator[torch.Tensor]:
        """Blocks of the ranks that share one copy out with rank 0, in their order."""
        import torch.distributed as dist

        mesh = tensor.device_mesh
        here = mesh.get_coordinate()
        if any(at for where, at in enumerate(here) if where != dimension):
            return  # a copy without rank 0
        group, mine = mesh.get_group(dimension), here[dimension]
        own = tensor.to_local().detach().contiguous().view(-1)
        ranks = mesh.size(dimension)
        row = tensor.numel() // max(1, len(tensor))
        rows = -(-len(tensor) // ranks)
        step = max(1, BLOCK_BYTES // own.element_size())
        # What rank 0 has itself goes nowhere.
        for owner in range(1 if mine else 0, ranks):
            count = row * max(0, min(rows, len(tensor) - owner * rows))
            if owner == mine and len(own) != count:
                raise _another_model(place().rank)
            for at in range(0, count, step):
                size = min(step, count - at)
                part = own[at : at + size] if owner == mine else own.new_empty(size)
                if owner:
                    dist.broadcast(part, dist.get_global_rank(group, owner), group=group)
                if place().leads:
                    yield part.to("cpu")


class GatheredWeights:
    """``WeightSource`` of tensors that a library gathers one at a time, in every rank."""

    def __init__(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, torch.Tensor],
        gather: Callable[[list[Any]], AbstractContextManager[Any]],
    ) -> None:
        """Keep the parts.

        Args:
            parameters: Of the live model by name.
            buffers: Those of which each rank has a copy.
            gather: Makes a context in which parameters are whole.
        """
        self._parameters, self._buffers, self._gather = parameters, buffers, gather

    def read(self, name: str) -> Iterator[torch.Tensor]:
        """See ``WeightSource``."""
        parameter = self._parameters.get(name)
        if parameter is None:
            if place().leads:
                yield from blocks_of(self._buffers[name])
            return
        with self._gather([parameter]):
            if place().leads:
                yield from blocks_of(parameter)

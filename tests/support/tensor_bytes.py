"""Counts the bytes that tensors take: those that a block makes, at the moment of the most.

Python's own counter does not see tensors, and a process's memory keeps what was freed. Each
operation's results are looked at where they lie; memory counts once, until its last tensor is gone.
Of a tensor that ranks share out, the part of this rank counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Any

MODE: Any = vars(import_module("torch.utils._python_dispatch"))["TorchDispatchMode"]
"""Documented under this name alone."""
leaves: Any = vars(import_module("torch.utils._pytree"))["tree_leaves"]


class TensorBytes(MODE):  # type: ignore[misc]  # known at run time alone
    """As a context: counts what this thread makes.

    Attributes:
        now: Bytes of what was made and is not gone.
        most: The most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.there: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in leaves((args, kwargs)):
            self.there |= {address for address, _ in storages(tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in leaves(made):
            for address, storage in storages(tensor):
                if address not in self.there:
                    self.count(address, storage)
        return made

    def count(self, address: int, storage: Any) -> None:
        size = storage.nbytes()
        self.there.add(address)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.gone, address, size)

    def gone(self, address: int, size: int) -> None:
        self.there.discard(address)
        self.now -= size


def storages(tensor: Any) -> Iterator[tuple[int, Any]]:
    """Where a tensor's elements lie, and the memory; nothing for what has none."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    local = getattr(local, "elem", local)  # of one that a collective still fills
    if hasattr(local, "untyped_storage") and local.device.type != "meta":
        storage = local.untyped_storage()
        if storage.nbytes():
            yield storage.data_ptr(), storage

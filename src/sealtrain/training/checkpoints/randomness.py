"""The random generators that training draws from: saved, restored, or left undisturbed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def seed_of(label: str) -> int:
    """A seed below 2³² that follows from a label, for draws that hide nothing.

    Args:
        label: Purpose of the draws; each purpose has its own label.
    """
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "big")


def random_states() -> dict[str, Any]:
    """States of all random generators training draws from, as plain data."""
    import numpy as np
    import torch

    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def find_moved_generators(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the generators from which numbers were drawn between two ``random_states``."""
    import torch

    return [
        name
        for name, state in before.items()
        if not (
            torch.equal(state, after[name])
            if isinstance(state, torch.Tensor)
            else all(map(torch.equal, state, after[name]))
            if name == "cuda"
            else state == after[name]
        )
    ]


def restore_random_states(states: dict[str, Any]) -> None:
    """Inverse of ``random_states``."""
    import numpy as np
    import torch

    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def seed_again(label: str) -> None:
    """Seed every random generator that training draws from by ``label``."""
    import numpy as np
    import torch

    seed = seed_of(label)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of accelerators too


@contextmanager
def seed_generators(label: str) -> Iterator[None]:
    """Let the block draw from PyTorch's generators as seeded by ``label``; none moves on by it."""
    import torch

    states = random_states()
    torch.manual_seed(seed_of(label))
    try:
        yield
    finally:
        restore_random_states(states)


@contextmanager
def pause_training(model: Any) -> Iterator[None]:
    """Let the block use ``model`` for inference; training goes on as if it had not happened.

    Inside, the model is in evaluation mode and no gradients are recorded. Afterwards every module
    is in the mode it was in, and every random generator in the state it was in.
    """
    import torch

    modes = [(module, module.training) for module in model.modules()]
    states = random_states()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        restore_random_states(states)

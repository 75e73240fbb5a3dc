"""Private training draws nothing but coins and noise: every layer of the model is deterministic.

Clipping bounds what one record adds to a sum only if that record changes nothing else in the sum.
A layer that draws random numbers breaks this: drawn in a row from one generator, its numbers for
every later record change when one record is added, and where the recipe's seed is public they can
be recomputed. So a private step has no dropout, no drop path, no layer drop and no noise on
embeddings or routers. ``without_draws`` sees to that in two ways:

1. the model is in evaluation mode, in which layers draw nothing. Only modules that hold a trained
   parameter themselves stay in training mode: Opacus gives gradients for those alone;
2. the generators of Python, NumPy and PyTorch, and those of accelerators, are where they were after
   the block. A layer of any kind that drew a number is found by that, without a list of kinds. A
   layer with a generator of its own is not found; no model that a recipe can name brings code.

``require_apart`` refuses a model in which a record's loss depends on the records beside it: where
a layer reads the padding that a longer record brings, or shares something among those of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.checkpoints.randomness import find_moved_generators, random_states

_TOLERANCE = 1e-4
"""Relative: far above what float32 rounds, far below what a layer does that mixes records."""


@contextmanager
def without_draws(model: Any) -> Iterator[None]:
    """Let the block compute a pass of ``model``, forward and back, in which no layer draws.

    The modes of its modules are afterwards what they were before.

    Args:
        model: Its trainable parameters get gradients in the block.

    Raises:
        ModelInvalid: A generator moved on in the block.
    """
    modes = [(module, module.training) for module in model.modules()]
    before = random_states()
    try:
        for module, _ in modes:
            held = module.parameters(recurse=False)
            module.training = any(parameter.requires_grad for parameter in held)
        yield
    except (
        RuntimeError
    ):  # so PyTorch ends a drawing layer whose gradients it takes record by record
        _refuse_draws(before)
        raise
    finally:
        for module, training in modes:
            module.training = training
    _refuse_draws(before)


def _refuse_draws(before: dict[str, Any]) -> None:
    moved = find_moved_generators(before, random_states())
    if moved:
        raise ModelInvalid(
            "a layer of this model draws random numbers although dropout is off",
            check="privacy",
            got=f"numbers of {', '.join(moved)}",
            expected="private training draws coins and noise only",
            hint="train another model, or set the layer's noise to 0 in the model's config",
        )


def require_apart(
    model: Any,
    losses: Callable[[list[Any]], Any],
    short: Any,
    long: Any,
) -> None:
    """Refuse a model that gives a record another loss beside a longer record than alone.

    Args:
        model: Of ``losses``.
        losses: Loss of each of some records, float (records,), as training computes it.
        short: A made-up record.
        long: Another, with more tokens.

    Raises:
        ModelInvalid: It does, or it draws random numbers.
    """
    import torch

    with torch.no_grad(), without_draws(model):
        (alone,) = losses([short])
        beside = losses([short, long])[0]
    if not torch.isclose(alone, beside, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ModelInvalid(
            "a record's loss in this model depends on the length of the records beside it",
            check="privacy",
            expected="each record's gradient depends on this record alone",
            hint="train a model that masks padding; of one that reads it from the left, pad right",
        )

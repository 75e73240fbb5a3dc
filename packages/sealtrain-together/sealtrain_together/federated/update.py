"""Encoding of a party's adapter: float32 tensors in safetensors, checked before use.

An update holds exactly the tensors of the state it was learned from, in the same shapes. Names,
shapes and sizes are compared with that state before a number is read; a number that is not finite
is refused. So no party can make the lead hold more than the adapter, or merge something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.messages import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from torch import Tensor

MAX_WEIGHT: Final = (1 << 53) - 1
"""Largest number of records a party can claim."""

State = Mapping[str, "Tensor"]
"""Adapter tensors by name, float32 on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One party's adapter after a round.

    Attributes:
        party: Whose.
        weight: Records it was learned from, 1 to ``MAX_WEIGHT``.
        state: The whole adapter, not the change.
    """

    party: str
    weight: int
    state: State

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise UpdateRefused(
                "an update has an impossible weight",
                owner=self.party,
                check="records",
                got=self.weight,
                expected=f"1 to {MAX_WEIGHT}",
            )


def encode_state(state: State) -> bytes:
    """Safetensors bytes, the same for the same numbers.

    Args:
        state: Cast to float32; the order of names does not matter.
    """
    import torch
    from safetensors.torch import save

    return save(
        {
            name: state[name].detach().to(device="cpu", dtype=torch.float32).contiguous().clone()
            for name in sorted(state)
        }
    )


def decode_state(data: bytes, like: State, *, party: str | None = None) -> dict[str, Tensor]:
    """The inverse, for an adapter whose form is known.

    Args:
        data: From another side.
        like: An adapter of that form; its numbers do not matter.
        party: Whose it is, for the error.

    Returns:
        float32 tensors with the names and shapes of ``like``.

    Raises:
        UpdateRefused: Other tensors, shapes or types; numbers that are not finite; no safetensors.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    wanted = {name: tuple(tensor.shape) for name, tensor in like.items()}
    payload = 4 * sum(math.prod(shape) for shape in wanted.values())
    if not payload <= len(data) <= payload + MAX_HEADER_BYTES:
        raise UpdateRefused(
            "an adapter has the wrong length",
            owner=party,
            check="size",
            got=f"{len(data)} bytes",
            expected=f"{payload} bytes of numbers and a header",
        )
    try:
        state = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UpdateRefused(
            "an adapter is not a safetensors file",
            owner=party,
            check="format",
            got=type(error).__name__,
        ) from None
    _check_form(state, wanted, party)
    if any(not bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise UpdateRefused(
            "an adapter holds a number that is not finite", owner=party, check="numbers"
        )
    return {name: state[name] for name in like}


def change_norm(state: State, previous: State) -> float:
    """L2 norm of what an update changes, over all its tensors; summed in float64."""
    squares = (
        float((state[name].double() - previous[name].double()).square().sum()) for name in previous
    )
    return math.sqrt(math.fsum(squares))


def _check_form(state: State, wanted: dict[str, tuple[int, ...]], party: str | None) -> None:
    import torch

    unknown, missing = state.keys() - wanted.keys(), wanted.keys() - state.keys()
    other = [
        name
        for name in state.keys() & wanted.keys()
        if tuple(state[name].shape) != wanted[name] or state[name].dtype != torch.float32
    ]
    if unknown or missing or other:
        raise UpdateRefused(
            "an adapter is of another form than the one it was learned from",
            owner=party,
            check="tensors",
            got=f"{len(unknown)} unknown, {len(missing)} missing, {len(other)} of another form",
            expected=f"{len(wanted)} tensors in float32",
            hint="every party runs the recipe that was locked",
        )

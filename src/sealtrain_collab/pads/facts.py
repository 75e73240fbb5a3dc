"""What a guest says of its products under pads, for a run log (spec/one-time-pads.md §8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from sealtrain.base.models import StrictModel
from sealtrain_collab.pads.recipe import ProductSettings

__all__ = ["PadsBegun", "PadsSpent", "another_than", "layer_counts"]

_Count = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]


class _Dealer(StrictModel):
    simulated: bool


class PadsBegun(StrictModel):
    """A process began a session of pads.

    Attributes:
        pads: Who makes them.
        checks: Secret vectors of each product.
        skip: Layers that stayed in the guest, as the recipe names them.
        layers: How many left it, by what they are called in their blocks.
        products: Of one pass forward.
        dealer: What the dealer proved; ``None`` where there is none.
    """

    pads: Literal["own", "pool", "dealer"]
    checks: Annotated[int, Field(ge=1, le=4)]
    skip: Annotated[tuple[str, ...], Field(max_length=256)]
    layers: Annotated[
        dict[str, Annotated[int, Field(ge=1, le=1_000_000)]], Field(min_length=1, max_length=4096)
    ]
    products: Annotated[int, Field(ge=1, le=1_000_000)]
    dealer: _Dealer | None


class PadsSpent(StrictModel):
    """Accepted products of a session so far.

    Attributes:
        products: How many.
        rows: In them.
        bytes_out: To the accelerator.
        bytes_in: From it.
    """

    products: _Count
    rows: _Count
    bytes_out: _Count
    bytes_in: _Count

    def falls_below(self, last: PadsSpent) -> bool:
        """Whether a count is lower than it was."""
        names = PadsSpent.model_fields
        return any(getattr(self, name) < getattr(last, name) for name in names)


def another_than(how: ProductSettings, begun: PadsBegun) -> str | None:
    """The first field in which a session is another than the recipe asks for."""
    compared: tuple[tuple[str, Any, Any], ...] = (
        ("pads", begun.pads, how.pads),
        ("checks", begun.checks, how.checks),
        ("skip", begun.skip, how.skip),
        ("dealer", begun.dealer is not None, how.pads == "dealer"),
    )
    return next((name for name, said, meant in compared if said != meant), None)


def layer_counts(stacks: Iterable[Sequence[str]]) -> dict[str, int]:
    """Layers of a model by what they are called in their blocks: ``q_proj`` of ``…attn.q_proj``.

    Args:
        stacks: Their names, those with one product together.
    """
    names = (name.removesuffix(".base_layer") for stack in stacks for name in stack)
    return dict(sorted(Counter(name.rpartition(".")[2] for name in names).items()))

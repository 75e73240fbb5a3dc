"""What a guest says of its products under pads, for a run log (spec/one-time-pads.md §8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sealtrain.base.models import StrictModel
from sealtrain.recipe.collaborations.pads import ProductSettings

_OTHER: Final = "other"
_NAMED: Final = (
    "classifier decoder dense dense_4h_to_h dense_h_to_4h down_proj dt_proj embed_out fc fc1 fc2 "
    "fc_in fc_out gate_proj gate_up_proj head in_proj k k_lin k_proj key kv_a_proj_with_mqa "
    "kv_b_proj lin1 lin2 linear linear1 linear2 linear_1 linear_2 lm_head o o_proj out out_lin "
    "out_proj output pre_classifier proj proj_in proj_out project_in project_out projection q "
    "q_a_proj q_b_proj q_lin q_proj qkv qkv_proj query query_key_value score self_attn summary "
    "up_proj v v_lin v_proj value w1 w2 w3 wi wi_0 wi_1 wo x_proj Wi Wo Wqkv"
)
LAYER_NAMES: Final = frozenset({*_NAMED.split(), _OTHER})
"""Names of linear layers in models of Transformers, as a run log has them. A layer of another name
counts as ``other``: a log is public, and a name could hold a record."""

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

    Returns:
        Names of ``LAYER_NAMES``, with how many layers have each.
    """
    paths = (name.removesuffix(".base_layer") for stack in stacks for name in stack)
    names = (path.rpartition(".")[2] for path in paths)
    counted = Counter(name if name in LAYER_NAMES else _OTHER for name in names)
    return dict(sorted(counted.items()))

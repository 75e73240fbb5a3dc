"""Values of records that a phase cannot learn from, though their column has the right type.

The guest would refuse them, or its loss would not be a number, after every owner approved. So they
are refused before they are sealed, by the position of the first record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.recipe.modelspec import ModelFromConfig
from sealtrain.sealing.tabular.media import SIGNATURE_BYTES, image_kind

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe

_LARGEST: Final = 3.4028234663852886e38
"""The largest number of 32 bits: models compute in these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """Records of a batch that cannot be used.

    Attributes:
        bad: True at these records.
        why: What is wrong with them, as the end of a sentence about a record.
        expected: What a record has there.
        hint: What to do.
    """

    bad: pa.Array
    why: str
    expected: str
    hint: str


def with_gaps(values: pa.Array) -> pa.Array:
    """Numbers; what is not a number (NaN) is missing. Of 16 bits they become 32."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(values.type):
        return values
    if values.type == pa.float16():  # no kernel looks at these
        values = values.cast(pa.float32())
    [nothing] = pa.nulls(1, values.type)
    return pc.if_else(pc.fill_null(pc.is_nan(values), True), nothing, values)


def unusable_number(values: pa.Array) -> Unusable | None:
    """Features that are no finite number of 32 bits; integers always are.

    Args:
        values: As ``with_gaps`` returns them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(values.type):
        return None
    good = pc.and_(pc.greater_equal(values, -_LARGEST), pc.less_equal(values, _LARGEST))
    if pc.all(good).as_py() is not False:
        return None
    return Unusable(
        bad=pc.fill_null(pc.invert(good), False),
        why="has no finite number",
        expected=f"numbers from {-_LARGEST:.1e} to {_LARGEST:.1e}, none of them NaN",
        hint="leave such records out, or complete them, before sealing",
    )


def unusable_tokens(values: pa.Array, most: int | None) -> Unusable | None:
    """Lists of tokens with one that no model has, or that this model does not have.

    Args:
        values: Lists of integers.
        most: Tokens that the model has; ``None`` where that is not known.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = values.flatten()
    if not ids.null_count:
        ends = pc.min_max(ids)
        least, last = ends["min"].as_py(), ends["max"].as_py()
        if least is None or (least >= 0 and (most is None or last < most)):
            return None
    bad = [
        any(token is None or token < 0 or (most is not None and token >= most) for token in row)
        for row in values.to_pylist()
    ]
    return Unusable(
        bad=pa.array(bad),
        why="has a token that no model has" if most is None else "has a token beyond the model's",
        expected="tokens from 0" + ("" if most is None else f" to {most - 1}"),
        hint="write the numbers of the base model's own tokenizer; padding and marks of what is "
        "not learned (-100) have none",
    )


def unusable_image(values: pa.Array) -> Unusable | None:
    """Bytes that do not begin like an image that a guest decodes; none is decoded here."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = pc.binary_slice(values, 0, SIGNATURE_BYTES).to_pylist()
    bad = [start is not None and image_kind(start) is None for start in starts]
    if not any(bad):
        return None
    return Unusable(
        bad=pa.array(bad),
        why="has no image that is decoded",
        expected="a JPEG, PNG or WebP file",
        hint="write the whole file's bytes, and convert other formats: in Pillow, "
        "image.convert('RGB').save(NAME, 'PNG')",
    )


def unusable_answer(recipe: PhaseRecipe, called: str, values: pa.Array) -> Unusable | None:
    """Texts of preferences and prompts that say nothing; a prompt of preferences may be empty.

    Args:
        recipe: Of phase ``dpo``, ``reward`` or ``rlhf``.
        called: The column, as the recipe calls it.
        values: Texts.
    """
    import pyarrow.compute as pc

    prompt: Any = getattr(recipe.columns, "prompt", None)
    if (called == prompt) != (recipe.phase == "rlhf"):
        return None
    empty = pc.equal(pc.binary_length(values), 0)
    if not pc.any(empty).as_py():
        return None
    return Unusable(
        bad=pc.fill_null(empty, False),
        why="has an empty text",
        expected="a text in every record",
        hint="leave such records out, or complete them, before sealing",
    )


def tokens_of(recipe: PhaseRecipe) -> int | None:
    """How many tokens the model has, where the recipe itself says so."""
    found = (
        recipe.model.config.get("vocab_size") if isinstance(recipe.model, ModelFromConfig) else 0
    )
    return found if isinstance(found, int) and found > 0 else None

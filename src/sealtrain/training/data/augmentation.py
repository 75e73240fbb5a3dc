"""Changes of training records, drawn from seed and row: the same for every reader of the row.

A row of the stream comes up at one position and no other, so a resumed run, another number of
readers or an evaluation in between change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from sealtrain.recipe.images import ImageAugmentation, TextAugmentation

_PURPOSE = 0x6175676D  # keeps these draws apart from any other use of the seed
_GREY = (0.299, 0.587, 0.114)


def row_generator(seed: int, row: int) -> np.random.Generator:
    """Random numbers of one row of the stream.

    Args:
        seed: The recipe's.
        row: Position in the stream, from 0.
    """
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence([_PURPOSE, seed, row])))


def image_changes(
    wanted: ImageAugmentation, seed: int
) -> Callable[[int], Callable[[Image], Image]]:
    """Row → what happens to its image: crop, flips, then colours.

    Args:
        wanted: The recipe's.
        seed: The recipe's.
    """

    def of_row(row: int) -> Callable[[Image], Image]:
        return lambda image: _change(image, wanted, row_generator(seed, row))

    return of_row


def text_changes(
    wanted: TextAugmentation, seed: int, tokenizer: Any
) -> Callable[[int, list[int]], list[int]]:
    """Row and its token ids → ids to train on. Special tokens stay.

    Args:
        wanted: The recipe's.
        seed: The recipe's.
        tokenizer: Knows the special tokens.

    Raises:
        ModelInvalid: Spans shall be masked, and there is no mask token.
    """
    if wanted.span_masking and tokenizer.mask_token_id is None:
        raise ModelInvalid(
            "span_masking needs a tokenizer with a mask token",
            check="augmentation",
            hint="use token_dropout, or an encoder's tokenizer",
        )
    special = frozenset(tokenizer.all_special_ids)

    def change_row(row: int, ids: list[int]) -> list[int]:
        generator = row_generator(seed, row)
        plain = [place for place, token in enumerate(ids) if token not in special]
        hidden = _spans(len(plain), wanted, generator)
        left_out = generator.random(len(plain)) < wanted.token_dropout
        if left_out.all() and len(plain):
            left_out[int(generator.integers(len(plain)))] = False  # no text becomes empty
        fate = dict(zip(plain, zip(left_out, hidden, strict=True), strict=True))
        kept = []
        for place, token in enumerate(ids):
            dropped, masked = fate.get(place, (False, False))
            if not dropped:
                kept.append(tokenizer.mask_token_id if masked else token)
        return kept

    return change_row


def _spans(count: int, wanted: TextAugmentation, generator: np.random.Generator) -> Any:
    """Which of the tokens are masked: spans of geometric length until the share is reached."""
    import numpy as np

    hidden = np.zeros(count, bool)
    target = int(wanted.span_masking * count + generator.random())
    while target > hidden.sum():
        length = int(min(generator.geometric(1 / wanted.span_length), target - hidden.sum()))
        start = int(generator.integers(count))
        hidden[start : start + length] = True
    return hidden


def _change(image: Image, wanted: ImageAugmentation, generator: np.random.Generator) -> Image:
    from PIL import Image as Pillow

    # Every row draws the same number of values, so one setting does not move another's draws.
    area, shape, across, down, flip, turn, *factors = generator.random(9)
    if wanted.crop is not None:
        image = _crop(image, wanted, (area, shape, across, down))
    if flip < wanted.horizontal_flip:
        image = image.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT)
    if turn < wanted.vertical_flip:
        image = image.transpose(Pillow.Transpose.FLIP_TOP_BOTTOM)
    return _recolour(image, wanted, [2 * factor - 1 for factor in factors])


def _crop(image: Image, wanted: ImageAugmentation, draws: tuple[float, ...]) -> Image:
    import math

    area, shape, across, down = draws
    least = 1.0 if wanted.crop is None else wanted.crop
    side = math.sqrt(least + (1 - least) * area)
    # No side grows beyond the image, or the crop would lose area.
    stretch = min(math.sqrt(wanted.crop_ratio), 1 / side) ** (2 * shape - 1)
    width = max(1, round(image.width * side * stretch))
    height = max(1, round(image.height * side / stretch))
    left, top = int(across * (image.width - width + 1)), int(down * (image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def _recolour(image: Image, wanted: ImageAugmentation, draws: list[float]) -> Image:
    import numpy as np
    from PIL import Image as Pillow

    if not (wanted.brightness or wanted.contrast or wanted.saturation):
        return image
    values = np.asarray(image, np.float32)
    grey = np.asarray(_GREY, np.float32)
    values = values * np.float32(1 + wanted.brightness * draws[0])
    middle = (values @ grey).mean(dtype=np.float64)
    values = middle + (values - middle) * np.float32(1 + wanted.contrast * draws[1])
    shade = (values @ grey)[..., None]
    values = shade + (values - shade) * np.float32(1 + wanted.saturation * draws[2])
    return Pillow.fromarray(values.round().clip(0, 255).astype(np.uint8))

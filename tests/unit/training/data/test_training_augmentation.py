"""Varied records: the same for seed and row, as often and as far as the recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from image_world import picture
from PIL import Image, ImageEnhance, ImageOps

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.images import ImageAugmentation, TextAugmentation
from sealtrain.training.data.augmentation import image_changes, row_generator, text_changes
from sealtrain.training.models.base import byte_tokenizer

PICTURE = picture(1, 24, 16)
FLAT = Image.new("RGB", (24, 16), (100, 110, 120))


def images(
    wanted: ImageAugmentation, rows: Sequence[int], image: Image.Image = PICTURE
) -> list[Any]:
    changes = image_changes(wanted, 7)
    return [np.asarray(changes(row)(image)) for row in rows]


def encoder_tokenizer() -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "<mask>", "cls_token": "<cls>"})
    return tokenizer


def test_seed_and_row_decide_and_nothing_else() -> None:
    everything = ImageAugmentation(horizontal_flip=0.5, crop=0.3, brightness=0.5, saturation=0.5)
    forwards = images(everything, range(20))
    backwards = images(everything, range(19, -1, -1))[::-1]
    assert all(
        np.array_equal(forward, two) for forward, two in zip(forwards, backwards, strict=True)
    )
    assert len({forward.tobytes() for forward in forwards}) == 20
    other = image_changes(everything, 8)
    assert not np.array_equal(np.asarray(other(0)(PICTURE)), forwards[0])
    tokenizer = byte_tokenizer()
    ids = tokenizer("a text of some length")["input_ids"]
    drops = TextAugmentation(token_dropout=0.3)
    first, second = (text_changes(drops, 7, tokenizer) for _ in range(2))
    assert [first(row, ids) for row in range(9)] == [second(row, ids) for row in range(9)]
    assert text_changes(drops, 8, tokenizer)(0, ids) != first(0, ids)


def test_draws_are_those_of_a_generator_that_does_not_change() -> None:
    drawn = row_generator(7, 3).integers(0, 1 << 32, 2).tolist()
    assert drawn == row_generator(7, 3).integers(0, 1 << 32, 2).tolist()
    sequence = np.random.SeedSequence([0x6175676D, 7, 3])
    assert drawn == np.random.Generator(np.random.Philox(sequence)).integers(0, 1 << 32, 2).tolist()


def test_flips_come_as_often_as_the_recipe_says() -> None:
    found = images(ImageAugmentation(horizontal_flip=0.25), range(800))
    mirrored = np.asarray(ImageOps.mirror(PICTURE))
    count = sum(np.array_equal(value, mirrored) for value in found)
    assert 150 < count < 250
    assert sum(np.array_equal(value, np.asarray(PICTURE)) for value in found) == 800 - count
    flipped = images(ImageAugmentation(vertical_flip=1.0), [0])[0]
    assert np.array_equal(flipped, np.asarray(ImageOps.flip(PICTURE)))


def test_a_crop_keeps_its_share_and_comes_from_everywhere() -> None:
    big = picture(2, 100, 80)
    crops = images(ImageAugmentation(crop=0.4, crop_ratio=1.5), range(300), big)
    shares = [crop.shape[0] * crop.shape[1] / 8000 for crop in crops]
    ratios = [crop.shape[1] / crop.shape[0] / (100 / 80) for crop in crops]
    assert 0.38 < min(shares) < 0.46
    assert 0.94 < max(shares) <= 1
    assert 1 / 1.55 < min(ratios) < 0.75
    assert 1.35 < max(ratios) < 1.55
    whole = np.asarray(big)
    corners = {tuple(crop[0, 0]) for crop in crops}
    assert len(corners) > 150
    assert all((whole == corner).all(axis=2).any() for corner in corners)
    for image in images(ImageAugmentation(crop=1.0), range(50), big):
        assert image.shape == (80, 100, 3)
    for image in images(ImageAugmentation(crop=0.01), range(50), picture(1, 1, 1)):
        assert image.shape == (1, 1, 3)


def test_one_setting_does_not_move_the_draws_of_another() -> None:
    crops = images(ImageAugmentation(crop=0.5), range(30))
    both = images(ImageAugmentation(crop=0.5, horizontal_flip=1.0), range(30))
    assert all(np.array_equal(a, b[:, ::-1]) for a, b in zip(crops, both, strict=True))


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colours_change_as_pillow_changes_them(name: str) -> None:
    enhance = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }[name]
    found = images(ImageAugmentation.model_validate({name: 0.5}), range(40))
    for row, ours in enumerate(found):
        draws = row_generator(7, row).random(9)
        place = 6 + ("brightness", "contrast", "saturation").index(name)
        factor = 1 + 0.5 * (2 * draws[place] - 1)
        assert 0.5 <= factor <= 1.5
        theirs = np.asarray(enhance(PICTURE).enhance(factor), int)
        assert abs(ours.astype(int) - theirs).max() <= 2


def test_a_grey_image_has_no_colour_to_change() -> None:
    grey = Image.new("RGB", (4, 4), (90, 90, 90))
    for image in images(ImageAugmentation(saturation=1.0, contrast=1.0), range(20), grey):
        assert (image == 90).all()


def test_tokens_are_left_out_as_often_as_the_recipe_says() -> None:
    tokenizer = encoder_tokenizer()
    ids = [tokenizer.cls_token_id, *tokenizer("x" * 1000)["input_ids"], tokenizer.eos_token_id]
    found = text_changes(TextAugmentation(token_dropout=0.2), 7, tokenizer)(0, ids)
    assert found[0] == ids[0]
    assert found[-1] == ids[-1]
    assert 150 < len(ids) - len(found) < 250


def test_spans_are_masked_up_to_their_share() -> None:
    tokenizer = encoder_tokenizer()
    ids = [tokenizer.cls_token_id, *tokenizer("y" * 1000)["input_ids"], tokenizer.eos_token_id]
    wanted = TextAugmentation(span_masking=0.3, span_length=5.0)
    found = text_changes(wanted, 7, tokenizer)(0, ids)
    masked = np.array(found) == tokenizer.mask_token_id
    assert len(found) == len(ids)
    assert not masked[0]
    assert not masked[-1]
    assert 290 < masked.sum() <= 301
    spans = int((masked[1:] & ~masked[:-1]).sum())
    assert 30 < spans < 90
    vary = text_changes(wanted, 7, tokenizer)
    short = [vary(row, ids[:4]).count(tokenizer.mask_token_id) for row in range(400)]
    assert 0.25 < np.mean(short) / 3 < 0.35


def test_no_text_becomes_empty() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer("ab")["input_ids"]
    vary = text_changes(TextAugmentation(token_dropout=0.99), 7, tokenizer)
    assert all(len(vary(row, ids)) >= 1 for row in range(200))
    assert vary(0, []) == []


def test_masking_needs_a_mask_token() -> None:
    with pytest.raises(ModelInvalid, match="span_masking"):
        text_changes(TextAugmentation(span_masking=0.1), 7, byte_tokenizer())

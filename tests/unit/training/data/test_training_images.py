"""Images as numbers: as Transformers' own processors make them, and nothing odd gets through."""

from __future__ import annotations

import importlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from image_world import encoded, picture, png
from PIL import Image
from sealing_world import CANARY
from vision_world import image_classifier

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.images import Preparation
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.images import decode, pixels, preparation_file, preparation_of

LIMIT = 1 << 26
CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 40},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32},
    "image_mean": [0.48, 0.45, 0.4],
    "image_std": [0.26, 0.27, 0.28],
}
VIT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CONVNEXT = {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": 56},
    "crop_pct": 0.875,
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
FORMS = [
    ("clip", "CLIPImageProcessorPil", CLIP),
    ("clip", "CLIPImageProcessorPil", CLIP | {"size": {"shortest_edge": 32}, "resample": 2}),
    ("vit", "ViTImageProcessorPil", VIT),
    ("vit", "ViTImageProcessorPil", VIT | {"resample": 1}),
    ("convnext", "ConvNextImageProcessorPil", CONVNEXT),
    ("convnext", "ConvNextImageProcessorPil", CONVNEXT | {"size": {"shortest_edge": 384}}),
]


FROM_FOLDER = image_classifier(model={"path": "base", "tokenizer": None}, preparation=None)


def reference(module: str, name: str, saved: dict[str, Any]) -> Any:
    place = f"transformers.models.{module}.image_processing_pil_{module}"
    return getattr(importlib.import_module(place), name)(**saved)


def from_folder(folder: Path, saved: dict[str, Any]) -> Preparation:
    (folder / "base").mkdir(exist_ok=True)
    (folder / "base" / "preprocessor_config.json").write_text(json.dumps(saved))
    return preparation_of(FROM_FOLDER, folder)


@pytest.mark.parametrize(("module", "name", "saved"), FORMS)
@pytest.mark.parametrize("shape", [(64, 64), (97, 61), (61, 98), (20, 23), (32, 32)])
def test_a_folders_preparation_is_that_of_its_processor(
    module: str, name: str, saved: dict[str, Any], shape: tuple[int, int], tmp_path: Path
) -> None:
    image = picture(3, *shape)
    theirs = reference(module, name, saved)(image, return_tensors="pt")["pixel_values"]
    ours = pixels([image], from_folder(tmp_path, saved))
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) < 1e-5


@pytest.mark.parametrize(
    "chosen",
    [
        Preparation(size=24),
        Preparation(size=24, resize=30, resample="lanczos", mean=(0.1, 0.2, 0.3)),
        Preparation(size=24, stretch=True, resample="nearest", std=(0.2, 0.3, 0.4)),
    ],
)
def test_what_goes_with_the_model_says_the_same_to_transformers(
    chosen: Preparation, tmp_path: Path
) -> None:
    saved = json.loads(preparation_file(chosen)["preprocessor_config.json"])
    image = picture(5, 50, 41)
    ours = pixels([image], chosen)
    theirs = reference("clip", "CLIPImageProcessorPil", saved)(image, return_tensors="pt")
    assert float((ours - theirs["pixel_values"]).abs().max()) < 1e-5
    again = from_folder(tmp_path, saved)
    assert pixels([image], again).equal(ours)


@pytest.mark.parametrize(
    "saved",
    [
        None,
        [],
        {},
        CLIP | {"do_resize": False},
        CLIP | {"rescale_factor": 1.0},
        CLIP | {"crop_size": {"height": 32, "width": 16}},
        VIT | {"size": {"height": 32, "width": 16}},
        VIT | {"size": {"height": 1 << 20, "width": 1 << 20}},
        VIT | {"resample": 7},
        {"size": {"longest_edge": 1456}, "resample": 1, "image_mean": [0.5], "image_std": [0.5]},
    ],
)
def test_a_preparation_that_is_not_understood_is_refused(saved: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="preprocessor_config"):
        from_folder(tmp_path, saved)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_three_formats_are_decoded(kind: str) -> None:
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}, "PNG": {}}
    image = picture(1, 16, 12).resize((32, 24), Image.Resampling.BICUBIC)
    found = np.asarray(decode(encoded(image, kind, **options[kind]), LIMIT), int)
    assert abs(found - np.asarray(image, int)).max() <= (4 if kind == "JPEG" else 0)


def test_every_mode_becomes_three_channels_of_eight_bits() -> None:
    ramp = (np.arange(64, dtype=np.uint16) * 1024).reshape(8, 8)
    deep = np.asarray(decode(encoded(Image.fromarray(ramp)), LIMIT))
    assert (deep == (ramp >> 8)[..., None]).all()
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    assert (np.asarray(decode(encoded(grey), LIMIT))[..., 1] == np.asarray(grey)).all()
    for mode in ("1", "P", "L", "RGBA", "LA"):
        found = decode(encoded(picture(2).convert(mode)), LIMIT)
        assert (found.mode, found.size) == ("RGB", (8, 8))


def test_transparency_is_black() -> None:
    clear = Image.new("RGBA", (4, 4), (200, 100, 50, 0))
    assert not np.asarray(decode(encoded(clear), LIMIT)).any()


def test_a_photograph_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(picture(1, 20, 10), "JPEG", exif=exif), LIMIT).size == (10, 20)


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims this size and holds almost nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 16))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def gif() -> bytes:
    return encoded(picture().convert("P"), "GIF")


BAD = {
    "no bytes": CANARY,
    "none": None,
    "empty": b"",
    "text": CANARY.encode(),
    "another format": gif(),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n" + CANARY.encode(),
    "cut short": png(1, 64, 64)[:-400],
    "cut jpeg": encoded(picture(1, 64, 64), "JPEG")[:-400],
    "cut webp": encoded(picture(1, 64, 64), "WEBP")[:-200],
    "no pixels": bomb(0, 5),
    "too many": bomb(1 << 16, 1 << 16),
    "claims more than it holds": bomb(4000, 4000),
    "broken check": png(1)[:40] + b"\xff" + png(1)[41:],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_refused_without_its_content(name: str) -> None:
    with pytest.raises(RecordInvalid) as caught:
        decode(BAD[name], LIMIT)
    assert CANARY not in repr(vars(caught.value)) + str(caught.value)
    assert caught.value.__cause__ is None


def test_the_bound_on_pixels_holds_before_anything_is_decoded() -> None:
    assert decode(png(1, 10, 10), 100).size == (10, 10)
    with pytest.raises(RecordInvalid, check=carries(check="images", expected="at most 100")):
        decode(png(1, 10, 11), 100)


def test_a_very_long_image_does_not_grow_when_resized() -> None:
    image = decode(encoded(Image.new("RGB", (20_000, 1))), LIMIT)
    assert pixels([image], Preparation(size=224)).shape == (1, 3, 224, 224)


def test_bytes_that_are_changed_never_raise_anything_else() -> None:
    source = np.random.default_rng(7)
    for kind in ("PNG", "JPEG", "WEBP"):
        good = bytearray(encoded(picture(4, 24, 24), kind))
        for _ in range(60):
            data = bytearray(good)
            for place in source.integers(0, len(data), 3):
                data[place] = source.integers(256)
            try:
                found = decode(bytes(data), 1 << 20)
            except RecordInvalid:
                continue
            assert found.mode == "RGB"

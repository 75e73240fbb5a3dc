"""Images of records, decoded in the guest: from encoded bytes to the numbers a model reads.

An image comes from another owner and is not trusted: three formats, a bound on its pixels that is
checked before anything is decoded, and no half image. An error says that a record is bad, never
what is in it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.images import AnyPreparation, GridPreparation, Preparation, TilePreparation
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

FORMATS: Final = ("JPEG", "PNG", "WEBP")
CONFIG_NAME: Final = "preprocessor_config.json"
_RESAMPLE: Final = ("nearest", "lanczos", "bilinear", "bicubic")
_DEEP: Final = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def decode(data: Any, max_pixels: int) -> Image:
    """The image in an encoded file, upright, in three channels.

    Args:
        data: Bytes of a JPEG, PNG or WebP file; its first picture counts.
        max_pixels: Largest width times height.

    Raises:
        RecordInvalid: No such image, cut short, or too large.
    """
    from PIL import Image, ImageOps

    if not isinstance(data, bytes):
        raise RecordInvalid("a record holds no image", check="images", expected="encoded bytes")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            _refuse_large(opened.size, max_pixels)
            opened.load()
            return _in_colour(ImageOps.exif_transpose(opened))
    except (RecordInvalid, MemoryError):
        raise
    except Exception:  # decoders fail in many ways, and their messages may quote the image
        raise RecordInvalid(
            "a record holds an image that cannot be decoded",
            check="images",
            expected="a complete JPEG, PNG or WebP file",
        ) from None


def pixels(
    images: Sequence[Image],
    preparation: Preparation,
    *,
    vary: Sequence[Callable[[Image], Image]] | None = None,
) -> Tensor:
    """What a model reads.

    Args:
        images: Three channels each.
        preparation: Size and scale.
        vary: For each image, a change to make before anything else.

    Returns:
        float32, (images, 3, size, size).
    """
    import numpy as np
    import torch

    mean = np.asarray(preparation.mean, np.float32)
    deviation = np.asarray(preparation.std, np.float32)
    rows = []
    for number, image in enumerate(images):
        changed = image if vary is None else vary[number](image)
        values = np.asarray(_square(changed, preparation), np.float32) / np.float32(255)
        rows.append(((values - mean) / deviation).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(rows))


def preparation_of(recipe: Any, base_dir: Path) -> Any:
    """The recipe's preparation, else what the model's folder was saved with.

    Raises:
        ModelInvalid: The folder has none that is understood.
    """
    if recipe.preparation is not None:
        return recipe.preparation
    path = base_dir / recipe.model.path / CONFIG_NAME
    try:
        return _from_config(json.loads(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ModelInvalid(
            f"the model's folder has no {CONFIG_NAME} that is understood",
            check="preparation",
            hint="write preparation into the recipe",
        ) from None


def preparation_file(preparation: Preparation) -> dict[str, bytes]:
    """The model's file that says how it was trained, as Transformers reads it: name → content."""
    side = {"height": preparation.size, "width": preparation.size}
    edge = {"shortest_edge": preparation.resize or preparation.size}
    values = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": side if preparation.stretch else edge,
        "resample": _RESAMPLE.index(preparation.resample),
        "do_center_crop": not preparation.stretch,
        "crop_size": side,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preparation.mean),
        "image_std": list(preparation.std),
    }
    return {CONFIG_NAME: json.dumps(values, indent=2).encode()}


def _from_config(saved: Mapping[str, Any]) -> AnyPreparation:
    """Of the forms Transformers saves.

    Those of CLIP (edge and crop), ViT (square), ConvNeXt, Qwen-VL (area), Llama 3.2 Vision (tiles).
    """
    if not saved.get("do_resize", True) or not saved.get("do_rescale", True):
        raise ValueError("images must be resized and rescaled")
    if abs(saved.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise ValueError("only a factor of 1/255")
    normalised = saved.get("do_normalize", True)
    kind = str(saved.get("image_processor_type", ""))
    area = kind.startswith("Qwen2VL")
    common: dict[str, Any] = {
        # Qwen's files leave their processor's own out.
        "resample": _RESAMPLE[saved.get("resample", 3) if area else saved["resample"]],
        "mean": tuple(saved["image_mean"]) if normalised else (0.0, 0.0, 0.0),
        "std": tuple(saved["image_std"]) if normalised else (1.0, 1.0, 1.0),
    }
    if area:
        edges = saved.get("size") or {}
        return GridPreparation(
            min_area=saved.get("min_pixels") or edges["shortest_edge"],
            max_area=saved.get("max_pixels") or edges["longest_edge"],
            **common,
        )
    size = saved["size"] if isinstance(saved["size"], dict) else {"height": saved["size"]}
    if "max_image_tiles" in saved:
        return TilePreparation(
            size=size["height"], max_image_tiles=saved["max_image_tiles"], **common
        )
    edge = size.get("shortest_edge")
    if edge is None:
        if size.get("width", size["height"]) != size["height"]:
            raise ValueError("only squares")
        return Preparation(size=size["height"], stretch=True, **common)
    if "crop_pct" in saved or kind.startswith("ConvNext"):
        if edge >= 384:
            return Preparation(size=edge, stretch=True, **common)
        return Preparation(size=edge, resize=int(edge / saved.get("crop_pct", 224 / 256)), **common)
    crop = saved.get("crop_size", edge)
    crop = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
    if not saved.get("do_center_crop", True) or crop["height"] != crop["width"]:
        raise ValueError("only a square that is cut out")
    return Preparation(size=crop["height"], resize=edge, **common)


def _refuse_large(size: tuple[int, int], max_pixels: int) -> None:
    if not 0 < size[0] * size[1] <= max_pixels:
        raise RecordInvalid(
            "a record holds an image with too many pixels",
            check="images",
            expected=f"at most {max_pixels}",
            hint="raise preparation.max_pixels, or seal smaller images",
        )


def _in_colour(image: Image) -> Image:
    """Three channels of eight bits; sixteen bits lose their lower half, transparency is black."""
    if image.mode in _DEEP:
        import numpy as np
        from PIL import Image

        values = np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        from PIL import Image

        whole = image.convert("RGBA")
        black = Image.new("RGBA", whole.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, whole).convert("RGB")
    return image.convert("RGB")


def _square(image: Image, preparation: Preparation) -> Image:
    from PIL import Image

    side = preparation.size
    resample = Image.Resampling[preparation.resample.upper()]
    if preparation.stretch:
        return image.resize((side, side), resample)
    edge = preparation.resize or side
    width, height = image.size
    short, long = min(width, height), max(width, height)
    longer = int(edge * long / short)
    # A very long image is cut before it is resized: the middle is all that is kept.
    if longer > 4 * edge:
        kept = -(-short * 4 * edge // edge)
        image = _middle(image, min(width, kept), min(height, kept))
        width, height = image.size
        longer = int(edge * max(width, height) / short)
    wanted = (edge, longer) if width <= height else (longer, edge)
    return _middle(image.resize(wanted, resample), side, side)


def _middle(image: Image, width: int, height: int) -> Image:
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))

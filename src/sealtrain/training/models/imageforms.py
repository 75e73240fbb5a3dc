"""How a model takes an image: as tensors beside the text, and as tokens in it.

The libraries of the models do the work (Transformers' image processors over Pillow, without
torchvision), on images that ``training.data.images`` has decoded. Three forms:

* squares (LLaVA, Idefics3): every image has one size, so it takes the same tokens each time;
* a grid (Qwen-VL): an image keeps its shape, and takes a token for every few patches of it;
* tiles (Llama 3.2 Vision): an image is cut into tiles, takes one token, and the language model
  looks at it by cross attention from that token on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.phases.vlm import ARCHITECTURES
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.images import CONFIG_NAME, pixels, preparation_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.images import GridPreparation, Preparation, TilePreparation

_AROUND: Final = ("<fake_token_around_image>", "<global-img>")
_RESAMPLE: Final = ("nearest", "lanczos", "bilinear", "bicubic")

Tensors = dict[str, Any]


class ImageLayout(Protocol):
    """How images stand in a model's input."""

    @property
    def token(self) -> int:
        """Id that stands for a vector of an image, or for the image."""

    @property
    def most(self) -> int:
        """Most tokens that an image takes."""

    def read(self, images: Sequence[Image]) -> tuple[Tensors, list[tuple[int, ...]]]:
        """Tensors of a batch's images, and the ids that take the place of each one's token.

        Raises:
            RecordInvalid: An image has a shape that the model cannot read.
        """

    def image_ids(self, image: Callable[[], Image]) -> tuple[int, ...]:
        """Ids that take the place of an image's token, as ``read`` returns them.

        Args:
            image: Decodes it; called only if its shape matters.
        """

    def bare_image_ids(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Ids of an image where no token of the prompt says where it stands."""

    def of_text(self, ids: Any, tensors: Tensors) -> Tensors:
        """Tensors that depend on the text, too.

        Args:
            ids: int64 (batch, tokens), padded at the right.
            tensors: From ``read``.
        """

    def files(self) -> dict[str, bytes]:
        """The model's file that says how it was trained: name → content."""


@dataclass(frozen=True, slots=True)
class Squares:
    """Images of one size.

    Attributes:
        token: See ``ImageLayout``.
        tokens: Ids of an image, including the tokens that surround it.
        several: The model takes a list of images for each record.
        preparation: Of images.
    """

    token: int
    tokens: tuple[int, ...]
    several: bool
    preparation: Preparation

    @property
    def most(self) -> int:
        """See ``ImageLayout``."""
        return len(self.tokens)

    def read(self, images: Sequence[Image]) -> tuple[Tensors, list[tuple[int, ...]]]:
        """Pixels float32 (batch, …, 3, size, size)."""
        values = pixels(images, self.preparation)
        if self.several:
            # The model would take an image of zeros only for padding.
            empty = (values == 0).flatten(1).all(1)
            values[empty, 0, 0, 0] = 1e-12
            values = values[:, None]
        return {"pixel_values": values}, [self.tokens] * len(images)

    def image_ids(self, image: Callable[[], Image]) -> tuple[int, ...]:
        """The same for each."""
        return self.tokens

    def bare_image_ids(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """The same ids."""
        return image

    def of_text(self, ids: Any, tensors: Tensors) -> Tensors:
        """Nothing."""
        return {}

    def files(self) -> dict[str, bytes]:
        """As CLIP's processor reads it."""
        return preparation_file(self.preparation)


@dataclass(frozen=True, slots=True)
class Grids:
    """Images as grids of patches.

    Attributes:
        token: See ``ImageLayout``.
        most: See ``ImageLayout``.
        around: Ids before and after an image that the prompt does not place.
        merged: Patches that one token stands for.
        processor: Transformers'.
    """

    token: int
    most: int
    around: tuple[tuple[int, ...], tuple[int, ...]]
    merged: int
    processor: Any

    def read(self, images: Sequence[Image]) -> tuple[Tensors, list[tuple[int, ...]]]:
        """Pixels float32 (patches of all images, numbers of a patch), and each image's grid."""
        seen = _process(self.processor, list(images))
        grids = seen["image_grid_thw"]
        rows = [(self.token,) * (int(grid.prod()) // self.merged) for grid in grids]
        return {"pixel_values": seen["pixel_values"], "image_grid_thw": grids}, rows

    def image_ids(self, image: Callable[[], Image]) -> tuple[int, ...]:
        """By its shape, without its pixels."""
        width, height = image().size
        try:
            patches = int(self.processor.get_number_of_image_patches(height, width, {}))
        except ValueError:
            raise _unreadable() from None
        return (self.token,) * (patches // self.merged)

    def bare_image_ids(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Between the tokens that begin and end an image."""
        before, after = self.around
        return (*before, *image, *after)

    def of_text(self, ids: Any, tensors: Tensors) -> Tensors:
        """Which tokens have positions in an image."""
        return {"mm_token_type_ids": (ids == self.token).int()}

    def files(self) -> dict[str, bytes]:
        """As the processor saves itself."""
        return {CONFIG_NAME: self.processor.to_json_string().encode()}


@dataclass(frozen=True, slots=True)
class Tiles:
    """Images in tiles, which the language model looks at by cross attention.

    Attributes:
        token: See ``ImageLayout``.
        processor: Transformers'.
    """

    token: int
    processor: Any

    @property
    def most(self) -> int:
        """See ``ImageLayout``."""
        return 1

    def read(self, images: Sequence[Image]) -> tuple[Tensors, list[tuple[int, ...]]]:
        """Pixels float32 (batch, 1, tiles, 3, size, size), and which tiles each image fills."""
        seen = _process(self.processor, [[image] for image in images])
        names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
        return {name: seen[name] for name in names}, [(self.token,)] * len(images)

    def image_ids(self, image: Callable[[], Image]) -> tuple[int, ...]:
        """One."""
        return (self.token,)

    def bare_image_ids(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """The same ids."""
        return image

    def of_text(self, ids: Any, tensors: Tensors) -> Tensors:
        """Which tokens look at which tiles: those from the image's token on, at all it fills."""
        after = (ids == self.token).cumsum(1).clamp(max=1)
        return {
            "cross_attention_mask": after[:, :, None, None] * tensors["aspect_ratio_mask"][:, None]
        }

    def files(self) -> dict[str, bytes]:
        """As the processor saves itself."""
        return {CONFIG_NAME: self.processor.to_json_string().encode()}


def image_layout(model: Any, tokenizer: PreTrainedTokenizerBase, preparation: Any) -> ImageLayout:
    """How the model takes images.

    Args:
        model: Any of ``ARCHITECTURES``, with the token of an image.
        tokenizer: Knows the tokens around an image.
        preparation: From ``training.data.images.preparation_of``.

    Raises:
        ModelInvalid: The model reads images in another form or size.
    """
    form = ARCHITECTURES[model.config.model_type]
    if preparation.kind != form:
        raise _other("images in another form", preparation.kind, form)
    if form == "grid":
        return _grids(model.config, len(tokenizer), preparation)
    _same("images of another size", preparation.size, model.config.vision_config.image_size)
    if form == "tiles":
        return _tiles(model.config, preparation)
    return _squares(model, tokenizer, preparation)


def _squares(model: Any, tokenizer: PreTrainedTokenizerBase, preparation: Preparation) -> Squares:
    """Tokens that an image takes are found by running the model on an image.

    Of Idefics3 only what merges patches: what comes before it drops images of zeros, which a model
    without numbers (``training.inputs.images``) cannot tell.
    """
    import torch

    size = preparation.size
    several = model.config.model_type == "idefics3"
    training = model.training
    model.eval()
    with torch.no_grad():
        if several:
            seeing = model.config.vision_config
            patches = (1, (size // seeing.patch_size) ** 2, seeing.hidden_size)
            taken = len(model.model.connector(torch.ones(patches, dtype=model.dtype))[0])
        else:
            one = torch.ones((1, 3, size, size), dtype=model.dtype)
            taken = len(model.get_image_features(pixel_values=one).pooler_output[0])
    model.train(training)
    token = model.config.image_token_id
    image = (token,) * taken
    vocabulary = tokenizer.get_vocab()
    if several and all(name in vocabulary for name in _AROUND):
        around, whole = (vocabulary[name] for name in _AROUND)
        image = (around, whole, *image, around)
    return Squares(token, image, several, preparation)


def _grids(config: Any, tokens: int, preparation: GridPreparation) -> Grids:
    from transformers import Qwen2VLImageProcessorPil

    seeing = config.vision_config
    make: Any = Qwen2VLImageProcessorPil
    processor = make(
        **_scale(preparation),
        patch_size=seeing.patch_size,
        temporal_patch_size=seeing.temporal_patch_size,
        merge_size=seeing.spatial_merge_size,
        size={"shortest_edge": preparation.min_area, "longest_edge": preparation.max_area},
    )
    merged = seeing.spatial_merge_size**2
    bounds = (config.vision_start_token_id, config.vision_end_token_id)
    around = tuple((bound,) if bound < tokens else () for bound in bounds)
    # A side is at least one token long, also where that is more than the area allows.
    most = max(1, preparation.max_area // (seeing.patch_size**2 * merged))
    return Grids(config.image_token_id, most, (around[0], around[1]), merged, processor)


def _tiles(config: Any, preparation: TilePreparation) -> Tiles:
    from transformers import MllamaImageProcessorPil
    from transformers.models.mllama.image_processing_pil_mllama import (
        get_all_supported_aspect_ratios,
    )

    seeing, most = config.vision_config, preparation.max_image_tiles
    _same("images in another number of tiles", most, seeing.max_num_tiles)
    ratios = [tuple(ratio) for ratio in seeing.supported_aspect_ratios]
    _same("images of other shapes", get_all_supported_aspect_ratios(most), ratios)
    make: Any = MllamaImageProcessorPil
    size = {"height": preparation.size, "width": preparation.size}
    processor = make(**_scale(preparation), size=size, max_image_tiles=most)
    return Tiles(config.image_token_id, processor)


def _scale(preparation: Any) -> dict[str, Any]:
    return {
        "resample": _RESAMPLE.index(preparation.resample),
        "image_mean": list(preparation.mean),
        "image_std": list(preparation.std),
    }


def _process(processor: Any, images: list[Any]) -> Any:
    try:
        return processor(images, return_tensors="pt")
    except ValueError:  # of a library, whose message may quote the image's shape
        raise _unreadable() from None


def _unreadable() -> RecordInvalid:
    return RecordInvalid(
        "a record holds an image of a shape that the model cannot read",
        check="images",
        expected="sides that differ by no more than 200 times",
    )


def _same(what: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        raise _other(what, got, wanted)


def _other(what: str, got: Any, wanted: Any) -> ModelInvalid:
    return ModelInvalid(
        f"the model reads {what}",
        check="preparation",
        got=got,
        expected=wanted,
        hint="set preparation as the model reads images",
    )

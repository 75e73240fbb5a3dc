"""Preparation of images in a recipe, and augmentation of training records."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import by_key

Share = Annotated[float, Field(ge=0, le=1)]
_Side = Annotated[int, Field(ge=1, le=4096)]
_Area = Annotated[int, Field(ge=1, le=1 << 26)]
_Channels = Annotated[
    tuple[Annotated[float, Field(ge=-1000, le=1000)], ...], Field(min_length=3, max_length=3)
]
_Spreads = Annotated[
    tuple[Annotated[float, Field(gt=0, le=1000)], ...], Field(min_length=3, max_length=3)
]


class _AnyPreparation(StrictModel):
    """What every form of images has."""

    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    mean: _Channels = Field(
        default=(0.5, 0.5, 0.5), description="Of each channel, between 0 and 1."
    )
    std: _Spreads = (0.5, 0.5, 0.5)
    max_pixels: int = Field(
        default=1 << 26, ge=1, le=1 << 30, description="A larger image is refused, not decoded."
    )


class Preparation(_AnyPreparation):
    """From an image to the numbers a model reads: three channels, square."""

    kind: ClassVar[Literal["square"]] = "square"

    size: _Side = Field(description="Height and width that the model reads, in pixels.")
    resize: _Side | None = Field(
        default=None, description="Shortest edge before the middle is cut out; size when null."
    )
    stretch: bool = Field(default=False, description="Resize both edges to size, cut nothing.")

    @model_validator(mode="after")
    def _there_is_enough_to_cut_from(self) -> Self:
        if self.stretch and self.resize is not None:
            raise ValueError("stretch resizes to size: leave resize out")
        if self.resize is not None and self.resize < self.size:
            raise ValueError("resize is smaller than size: there is too little to cut from")
        return self


class GridPreparation(_AnyPreparation):
    """From an image to a grid of patches as large as the image is (Qwen-VL)."""

    kind: ClassVar[Literal["grid"]] = "grid"

    min_area: _Area = Field(description="A smaller image is enlarged to as many pixels.")
    max_area: _Area = Field(description="A larger image is reduced to as many pixels.")
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bicubic"

    @model_validator(mode="after")
    def _least_is_less(self) -> Self:
        if self.min_area > self.max_area:
            raise ValueError("min_area is above max_area")
        return self


class TilePreparation(_AnyPreparation):
    """From an image to several square tiles, arranged in the image's shape (Llama 3.2 Vision)."""

    kind: ClassVar[Literal["tiles"]] = "tiles"

    size: _Side = Field(description="Height and width of a tile, in pixels.")
    max_image_tiles: int = Field(ge=1, le=64, description="Most tiles that an image is cut into.")


AnyPreparation = Annotated[
    Annotated[Preparation, Tag("square")]
    | Annotated[GridPreparation, Tag("grid")]
    | Annotated[TilePreparation, Tag("tiles")],
    Discriminator(by_key("square", min_area="grid", max_area="grid", max_image_tiles="tiles")),
]
"""The form in which a model reads images; the keys decide which."""


class ImageAugmentation(StrictModel):
    """Changes of a training image, drawn anew for each row of the stream from seed and position."""

    kind: ClassVar[Literal["image"]] = "image"

    horizontal_flip: Share = Field(default=0.0, description="Probability.")
    vertical_flip: Share = Field(default=0.0, description="Probability.")
    crop: float | None = Field(
        default=None, gt=0, le=1, description="Least share of the area a random crop keeps."
    )
    crop_ratio: float = Field(
        default=4 / 3, ge=1, le=10, description="Most a crop's shape differs from the image's."
    )
    brightness: Share = Field(default=0.0, description="Factors are drawn from 1 ± this.")
    contrast: Share = 0.0
    saturation: Share = 0.0

    @model_validator(mode="after")
    def _something_changes(self) -> Self:
        shares = (self.horizontal_flip, self.vertical_flip)
        if self.crop is None and not any(
            (*shares, self.brightness, self.contrast, self.saturation)
        ):
            raise ValueError("this augmentation changes nothing; leave it out")
        return self


class TextAugmentation(StrictModel):
    """Changes of a training text's tokens, drawn anew for each row from seed and position."""

    kind: ClassVar[Literal["text"]] = "text"

    token_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Probability that a token is left out."
    )
    span_masking: float = Field(
        default=0.0, ge=0, lt=1, description="Share of tokens in spans that the mask token hides."
    )
    span_length: float = Field(
        default=3.0, ge=1, le=1000, description="Mean length of such a span, in tokens."
    )

    @model_validator(mode="after")
    def _something_changes(self) -> Self:
        if not self.token_dropout and not self.span_masking:
            raise ValueError("this augmentation changes nothing; leave it out")
        return self


Augmentation = Annotated[
    Annotated[ImageAugmentation, Tag("image")] | Annotated[TextAugmentation, Tag("text")],
    Discriminator(by_key("image", **dict.fromkeys(TextAugmentation.model_fields, "text"))),
]
"""Either; which one, the columns decide."""

"""What each record of phase ``vlm`` leaves to learn, found without the weights of its model.

How many tokens an image takes follows from the model's config and, in a grid of patches, from the
image's shape. So the model is made on torch's ``meta`` device: it has shapes and no numbers, costs
no memory and reads no file of weights. A record falls into the parts ``whole`` or ``truncated``;
one whose prompt leaves no room for its answer is refused, as the phase refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.data.images import preparation_of
from sealtrain.training.models.base import build_model
from sealtrain.training.models.imageforms import image_layout
from sealtrain.training.models.imagetext import ImageTextEncoder, name_image_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.inputs.learnable import Judge, Part

_KIND = "AutoModelForImageTextToText"


def image_judge(
    recipe: PhaseRecipe, base: Path, tokenizer: PreTrainedTokenizerBase | None
) -> Judge:
    """The judge of the training records of a recipe of phase ``vlm``.

    Records have the names of the recipe's columns.

    Args:
        base: Folder that its paths start from.
        tokenizer: The recipe's; gets the token of an image, if a model from a config has none.

    Raises:
        ModelInvalid, RecipeInvalid: As the phase, of the same model.
        RecordInvalid: The judge, of a record that the phase would refuse.
    """
    if tokenizer is None:
        raise ModelInvalid("the recipe names no tokenizer", check="tokenizer")
    import torch

    with torch.device("meta"):
        model = _shapes(recipe, base)
        name_image_token(model, tokenizer, fresh=recipe.model.kind == "config")
        preparation = preparation_of(recipe, base)
        layout = image_layout(model, tokenizer, preparation)
    encode = ImageTextEncoder(recipe, tokenizer, layout, preparation.max_pixels)

    def judge(records: Sequence[Any]) -> list[Part]:
        return ["truncated" if encode.cuts(record) else "whole" for record in records]

    return judge


def _shapes(recipe: Any, base: Path) -> Any:
    """The recipe's model without its numbers."""
    if recipe.model.kind != "folder":
        return build_model(recipe, base, _KIND)
    from transformers import AutoConfig, AutoModelForImageTextToText

    try:
        config = AutoConfig.from_pretrained(
            base / recipe.model.path, local_files_only=True, trust_remote_code=False
        )
        kind: Any = AutoModelForImageTextToText
        return kind.from_config(config)
    except Exception as error:  # libraries have errors of their own for a bad config
        raise ModelInvalid(
            "the base model cannot be built",
            check="model",
            got=type(error).__name__,
            hint="check model.path in the recipe",
        ) from error

"""Models that read images: their parts, the place of an image among tokens, records as batches.

This module does the work of Transformers' processors without torchvision. The input has an image as
a repeated token, once for every vector of the vision tower and projector. If a prompt holds that
token once, the image stands there, else at the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import ModelInvalid, RecipeInvalid, RecordInvalid
from sealtrain.recipe.phases.vlm import ARCHITECTURES
from sealtrain.training.data.augmentation import image_changes
from sealtrain.training.data.hugging import ROW
from sealtrain.training.data.images import decode, pixels
from sealtrain.training.models.adapters import adapt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.images import Preparation

__all__ = ["ImageTextEncoder", "image_layout", "name_image_token", "train_parts"]

_PARTS: Final = {
    "llava": {
        "vision": ("model.vision_tower",),
        "projector": ("model.multi_modal_projector",),
        "language": ("model.language_model", "lm_head"),
    },
    "idefics3": {
        "vision": ("model.vision_model",),
        "projector": ("model.connector",),
        "language": ("model.text_model", "lm_head"),
    },
}
_IMAGE: Final = "<image>"
_AROUND: Final = ("<fake_token_around_image>", "<global-img>")
IGNORED: Final = -100

Encoded = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """How an image stands in a model's input.

    Attributes:
        token: Id that stands for one vector of an image.
        tokens: Ids of an image, including the tokens that surround it.
        several: The model takes a list of images for each record.
    """

    token: int
    tokens: tuple[int, ...]
    several: bool


def name_image_token(model: Any, tokenizer: PreTrainedTokenizerBase, *, fresh: bool) -> None:
    """Make model and tokenizer agree on the token of an image.

    Args:
        model: Any of ``ARCHITECTURES``.
        tokenizer: Gets ``<image>`` if it has none and the model is fresh.
        fresh: The model comes from a config, so no token has a meaning yet.

    Raises:
        ModelInvalid: A saved model has another architecture, or its image token is missing from
            the tokenizer.
    """
    if model.config.model_type not in ARCHITECTURES:
        raise ModelInvalid(
            "the model has no image architecture that sealtrain trains",
            check="model",
            got=model.config.model_type,
            expected=" or ".join(ARCHITECTURES),
        )
    if fresh:
        tokenizer.add_special_tokens({"additional_special_tokens": [_IMAGE]})
        model.config.image_token_id = tokenizer.convert_tokens_to_ids(_IMAGE)
    elif model.config.image_token_id >= len(tokenizer):
        raise ModelInvalid("the tokenizer has no image token of the model", check="tokenizer")


def image_layout(
    model: Any, tokenizer: PreTrainedTokenizerBase, preparation: Preparation
) -> ImageLayout:
    """Tokens that an image takes; found by running the model on an image.

    Raises:
        ModelInvalid: The model reads images of another size.
    """
    import torch

    size, wanted = preparation.size, model.config.vision_config.image_size
    if size != wanted:
        raise ModelInvalid(
            "the model reads images of another size",
            check="preparation",
            got=size,
            expected=wanted,
            hint="set preparation.size",
        )
    several = model.config.model_type == "idefics3"
    shape = (1, 1, 3, size, size) if several else (1, 3, size, size)
    training = model.training
    model.eval()
    with torch.no_grad():
        seen = model.get_image_features(pixel_values=torch.ones(shape, dtype=model.dtype))
    model.train(training)
    token = model.config.image_token_id
    image = (token,) * len(seen.pooler_output[0])
    vocabulary = tokenizer.get_vocab()
    if several and all(name in vocabulary for name in _AROUND):
        around, whole = (vocabulary[name] for name in _AROUND)
        image = (around, whole, *image, around)
    return ImageLayout(token, image, several)


def train_parts(recipe: Any, model: Any) -> Any:
    """Freeze the parts that the recipe does not train; put an adapter on the parts that it trains.

    Raises:
        RecipeInvalid: The adapter names no module of these parts.
    """
    import torch

    places = _PARTS[model.config.model_type]
    if recipe.peft is None:
        inside = tuple(f"{place}." for part in recipe.parts for place in places[part])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(inside))
        return model
    adapted = tuple(
        f"{place}." for part in recipe.parts if part != "projector" for place in places[part]
    )
    wanted = recipe.peft.target_modules
    suffixes = () if wanted == "all-linear" else tuple(f".{name}" for name in wanted)
    names = [
        name
        for name, module in model.named_modules()
        if name.startswith(adapted)
        and (isinstance(module, torch.nn.Linear) if not suffixes else name.endswith(suffixes))
    ]
    if not names:
        raise RecipeInvalid(
            "peft.target_modules name no module of the parts that train",
            check="peft.target_modules",
            hint="name modules of the language model, such as q_proj, k_proj, v_proj, o_proj",
        )
    whole = places["projector"] if "projector" in recipe.parts else None
    settings = recipe.peft.model_copy(
        update={"target_modules": tuple(names), "modules_to_save": whole}
    )
    checkpointing = recipe.trainer.activation_checkpointing
    return adapt(model, settings, "CAUSAL_LM", activation_checkpointing=checkpointing)


class ImageTextEncoder:
    """Records as batches: image, prompt and completion, or image and text."""

    def __init__(
        self,
        recipe: Any,
        tokenizer: PreTrainedTokenizerBase,
        layout: ImageLayout,
        preparation: Preparation,
    ) -> None:
        """Read records as the recipe says.

        Raises:
            RecipeInvalid: ``trainer.max_length`` has no room for text beside the image.
        """
        self._columns, self._tokenizer = recipe.columns, tokenizer
        self._layout, self._preparation = layout, preparation
        self._length = recipe.trainer.max_length
        seed, wanted = recipe.trainer.seed, recipe.augmentation
        self._changes = None if wanted is None else image_changes(wanted, seed)
        if self._length <= len(layout.tokens):
            raise RecipeInvalid(
                "trainer.max_length has no room for text",
                check="trainer.max_length",
                got=self._length,
                expected=f"more than the {len(layout.tokens)} tokens of an image",
            )

    def __call__(self, records: Sequence[Encoded]) -> Encoded:
        """Ids, mask and labels int64 (batch, tokens), pixels float32 (batch, …, 3, size, size).

        Labels are -100 at positions without a loss.

        Raises:
            RecordInvalid: An image or text cannot be read, or no room is left for the answer.
        """
        import torch

        images = [
            decode(record[self._columns.image], self._preparation.max_pixels) for record in records
        ]
        if self._changes is not None:
            images = [
                self._changes(record[ROW])(image) if ROW in record else image
                for record, image in zip(records, images, strict=True)
            ]
        rows = [self._tokens(record) for record in records]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((len(rows), longest), self._tokenizer.pad_token_id, dtype=torch.int64)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for number, (tokens, start) in enumerate(rows):
            values = torch.tensor(tokens, dtype=torch.int64)
            ids[number, : len(tokens)] = values
            mask[number, : len(tokens)] = 1
            labels[number, start : len(tokens)] = values[start:]
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": labels,
            "pixel_values": self._pixels(images),
        }

    def _pixels(self, images: Sequence[Any]) -> Any:
        values = pixels(images, self._preparation)
        if not self._layout.several:
            return values
        # The model would take an image of zeros only for padding.
        empty = (values == 0).flatten(1).all(1)
        values[empty, 0, 0, 0] = 1e-12
        return values[:, None]

    def _tokens(self, record: Encoded) -> tuple[list[int], int]:
        """Ids of a record, and the position of the first token to learn."""
        if self._columns.kind == "text":
            prompt, answer = "", record[self._columns.text]
        else:
            prompt, answer = record[self._columns.prompt], record[self._columns.completion]
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise RecordInvalid("a record has no text in its text columns", check="columns")
        before = self._with_image(list(self._tokenizer(prompt)["input_ids"]))
        after = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        if self._layout.token in after:
            raise RecordInvalid("a record's answer holds the token of an image", check="columns")
        whole = [*before, *after, self._tokenizer.eos_token_id][: self._length]
        if len(before) >= len(whole):
            raise RecordInvalid(
                "a record's prompt leaves no room for its answer",
                check="columns",
                hint="raise trainer.max_length, or leave out records of this length",
            )
        return whole, len(before)

    def _with_image(self, prompt: list[int]) -> list[int]:
        layout = self._layout
        found = prompt.count(layout.token)
        if found > 1:
            raise RecordInvalid("a record's prompt holds several images", check="columns")
        if found:
            place = prompt.index(layout.token)
            return [*prompt[:place], *layout.tokens, *prompt[place + 1 :]]
        begins = bool(prompt) and prompt[0] == self._tokenizer.bos_token_id
        return [*prompt[:begins], *layout.tokens, *prompt[begins:]]

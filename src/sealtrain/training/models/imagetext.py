"""Models that read images: their parts, the place of an image among tokens, records as batches.

If a prompt holds the token of an image once, the image stands there, else at the beginning. What
takes its place differs by architecture (``training.models.imageforms``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.phases.vlm import ARCHITECTURES
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.augmentation import image_changes
from sealtrain.training.data.hugging import ROW
from sealtrain.training.data.images import decode
from sealtrain.training.models.adapters import adapt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.training.models.imageforms import ImageLayout

_QWEN: Final = {
    "vision": ("model.visual",),
    "projector": ("model.visual.merger", "model.visual.deepstack_merger_list"),
    "language": ("model.language_model", "lm_head"),
}
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
    "mllama": {
        "vision": ("model.vision_model",),
        "projector": ("model.multi_modal_projector",),
        "language": ("model.language_model", "lm_head"),
    },
    "qwen2_5_vl": _QWEN,
    "qwen2_vl": _QWEN,
    "qwen3_vl": _QWEN,
}
"""Where the parts of a model are; a place inside another one belongs to its own part only."""
_IMAGE: Final = "<image>"
IGNORED: Final = -100

Encoded = dict[str, Any]


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


def train_parts(recipe: Any, model: Any) -> Any:
    """Freeze the parts that the recipe does not train; put an adapter on the parts that it trains.

    Raises:
        RecipeInvalid: The adapter names no module of these parts.
    """
    import torch

    parts = _PARTS[model.config.model_type]
    if recipe.peft is None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(_part_of(name, parts) in recipe.parts)
        return model
    adapted = set(recipe.parts) - {"projector"}
    wanted = recipe.peft.target_modules
    suffixes = () if wanted == "all-linear" else tuple(f".{name}" for name in wanted)
    names = [
        name
        for name, module in model.named_modules()
        if _part_of(name, parts) in adapted
        and (isinstance(module, torch.nn.Linear) if not suffixes else name.endswith(suffixes))
    ]
    if not names:
        raise RecipeInvalid(
            "peft.target_modules name no module of the parts that train",
            check="peft.target_modules",
            hint="name modules of the language model, such as q_proj, k_proj, v_proj, o_proj",
        )
    whole = _modules_at(model, parts["projector"]) if "projector" in recipe.parts else None
    settings = recipe.peft.model_copy(
        update={"target_modules": tuple(names), "modules_to_save": whole}
    )
    checkpointing = recipe.trainer.activation_checkpointing
    return adapt(model, settings, "CAUSAL_LM", activation_checkpointing=checkpointing)


def _part_of(name: str, parts: Mapping[str, Sequence[str]]) -> str | None:
    """The part that a module or parameter belongs to: of the places around it the innermost."""
    around = [
        (len(place), part)
        for part, places in parts.items()
        for place in places
        if f"{name}.".startswith(f"{place}.")
    ]
    return max(around)[1] if around else None


def _modules_at(model: Any, places: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules at these places; of a list its members, which PEFT saves one by one."""
    import torch

    found: list[str] = []
    for name, module in model.named_modules():
        if name in places:
            several = isinstance(module, torch.nn.ModuleList)
            found += [f"{name}.{at}" for at in range(len(module))] if several else [name]
    return tuple(found)


class ImageTextEncoder:
    """Records as batches: image, prompt and completion, or image and text."""

    def __init__(
        self, recipe: Any, tokenizer: PreTrainedTokenizerBase, layout: ImageLayout, max_pixels: int
    ) -> None:
        """Read records as the recipe says.

        Args:
            recipe: Of phase ``vlm``.
            tokenizer: Knows the token of an image.
            layout: How the model takes images.
            max_pixels: A larger image is refused, not decoded.

        Raises:
            RecipeInvalid: ``trainer.max_length`` has no room for text beside the image.
        """
        self._columns, self._tokenizer = recipe.columns, tokenizer
        self._layout, self._max_pixels = layout, max_pixels
        self._length = recipe.trainer.max_length
        seed, wanted = recipe.trainer.seed, recipe.augmentation
        self._changes = None if wanted is None else image_changes(wanted, seed)
        if self._length <= layout.most:
            raise RecipeInvalid(
                "trainer.max_length has no room for text",
                check="trainer.max_length",
                got=self._length,
                expected=f"more than the {layout.most} tokens of an image",
                hint="raise trainer.max_length, or lower preparation.max_area if there is one",
            )

    def __call__(self, records: Sequence[Encoded]) -> Encoded:
        """Ids, mask and labels int64 (batch, tokens), and what the layout makes of the images.

        Labels are -100 at positions without a loss.

        Raises:
            RecordInvalid: An image or text cannot be read, or no room is left for the answer.
        """
        import torch

        images = [decode(record[self._columns.image], self._max_pixels) for record in records]
        if self._changes is not None:
            images = [
                self._changes(record[ROW])(image) if ROW in record else image
                for record, image in zip(records, images, strict=True)
            ]
        tensors, taken = self._layout.read(images)
        rows = [self._tokens(record, image) for record, image in zip(records, taken, strict=True)]
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
            **tensors,
            **self._layout.of_text(ids, tensors),
        }

    def cuts(self, record: Encoded) -> bool:
        """Whether a record, with its image as it was sealed, is longer than what trains of it.

        Raises:
            RecordInvalid: As a call, but for an image whose shape says nothing about its tokens.
        """
        image = record[self._columns.image]
        taken = self._layout.image_ids(lambda: decode(image, self._max_pixels))
        return self._row(record, taken)[2]

    def _tokens(self, record: Encoded, image: tuple[int, ...]) -> tuple[list[int], int]:
        """Ids of a record, and the position of the first token to learn."""
        ids, start, _ = self._row(record, image)
        return ids, start

    def _row(self, record: Encoded, image: tuple[int, ...]) -> tuple[list[int], int, bool]:
        """Ids of a record, the position of the first to learn, and whether some were cut."""
        if self._columns.kind == "text":
            prompt, answer = "", record[self._columns.text]
        else:
            prompt, answer = record[self._columns.prompt], record[self._columns.completion]
        if not isinstance(prompt, str) or not isinstance(answer, str):
            raise RecordInvalid("a record has no text in its text columns", check="columns")
        before = self._with_image(list(self._tokenizer(prompt)["input_ids"]), image)
        after = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        if self._layout.token in after:
            raise RecordInvalid("a record's answer holds the token of an image", check="columns")
        whole = [*before, *after, self._tokenizer.eos_token_id]
        ids = whole[: self._length]
        if len(before) >= len(ids):
            raise RecordInvalid(
                "a record's prompt leaves no room for its answer",
                check="columns",
                hint="raise trainer.max_length, or leave out records of this length",
            )
        return ids, len(before), len(ids) < len(whole)

    def _with_image(self, prompt: list[int], image: tuple[int, ...]) -> list[int]:
        token = self._layout.token
        found = prompt.count(token)
        if found > 1:
            raise RecordInvalid("a record's prompt holds several images", check="columns")
        if found:
            place = prompt.index(token)
            return [*prompt[:place], *image, *prompt[place + 1 :]]
        begins = bool(prompt) and prompt[0] == self._tokenizer.bos_token_id
        return [*prompt[:begins], *self._layout.bare_image_ids(image), *prompt[begins:]]

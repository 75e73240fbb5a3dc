"""Settings of a recipe for an accelerator that travels, and the program they stand for.

There are two programs. ``trainer`` is the recipe's phase itself, with its model, adapter and
trainer (``travelling.trained``). ``loop`` is a loop of its own for a GPT-2 from a config
(``travelling.program``), whose noise may hide sequences. Settings that a program does not follow
must keep their default and are refused otherwise, so that owners approve nothing that does not
happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import OwnerName
from sealtrain.recipe.collaboration import Norm, PartiesSettings, holders_of
from sealtrain.recipe.privacy import SequencePrivacy

_Positive = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]

_NARROW_WORDS: Final = 1 << 16
WORD_BYTES: Final = 4
"""Of a position of a row in the buffer, for the program ``trainer`` (spec/travelling.md §4)."""

_CONFIG: Final = frozenset(
    {"model_type", "n_embd", "n_head", "n_layer", "n_positions", "vocab_size"}
)
_OPTIMIZER: Final = ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm")
_FOLLOWED: Final = frozenset(
    {
        "max_steps",
        "per_device_train_batch_size",
        "learning_rate",
        "lr_scheduler_type",
        *_OPTIMIZER,
        "block_size",
        "append_eos",
        "seed",
        "logging_steps",
        "token_digest",
    }
)


class Travelling(PartiesSettings):
    """One accelerator goes from holder to holder; no data leaves a holder but for its memory."""

    phases: ClassVar[tuple[str, ...]] = ("cpt", "sft")
    party_role: ClassVar[str | None] = "holder"
    summary: ClassVar[str] = (
        "One accelerator went from holder to holder; no data left a holder but for it."
    )
    decrypted: ClassVar[str] = (
        "The measured code decrypts records in the memory of their owners' guests and, chunk by "
        "chunk, an accelerator's only."
    )
    limits: ClassVar[tuple[str, ...]] = ("parties-evidence", "lent-by-software")

    kind: Literal["travelling"]
    program: Literal["loop", "trainer"] = Field(
        default="loop",
        exclude_if=lambda program: program == "loop",
        description="What trains: a loop of its own for a GPT-2 from a config, or the phase's "
        "trainer; left out of locks when it is the loop.",
    )
    buffer_bytes: int = Field(
        ge=2, le=1 << 40, description="Dataset buffer of the accelerator; a trip fills half of it."
    )
    max_tokens: dict[OwnerName, _Positive] | _Positive | None = Field(
        default=None,
        description="Most tokens that are trained on: of each owner by name, or of every owner; "
        "null for all they have.",
    )
    seal_every: int = Field(
        default=8, ge=1, le=1_000_000, description="Trips between two sealed states."
    )
    max_update_norm: Norm | None = Field(
        default=None, description="No chunk moves all weights together further than this, L2."
    )
    sequence_privacy: SequencePrivacy | None = Field(
        default=None,
        description="Noise that hides single sequences; what it costs each holder stands in the "
        "run log.",
    )

    def limit_of(self, owner: str) -> int | None:
        """Most tokens of an owner that are trained on; ``None`` for all."""
        given = self.max_tokens
        return given.get(owner) if isinstance(given, dict) else given

    def parties_needed(self, holders: int) -> int:
        """All of them."""
        return holders

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        named = set(self.max_tokens) if isinstance(self.max_tokens, dict) else set()
        if strangers := sorted(named - set(holders_of(recipe))):
            names = ", ".join(strangers)
            return f"collaboration.max_tokens names {names}, who give no data to train"
        if self.program == "trainer":
            return _untrainable(recipe) or _other_data(recipe)
        if recipe.phase != "cpt":
            return f"collaboration travelling trains phase {recipe.phase} with program: trainer"
        config = getattr(recipe.model, "config", None)
        if recipe.columns.kind != "tokens" or config is None or config["model_type"] != "gpt2":
            return "collaboration travelling needs columns: {tokens: …} and a model.config of gpt2"
        if recipe.peft is not None:
            return "collaboration travelling trains all weights: peft: null"
        return _other_model(recipe, config) or _other_training(recipe) or _other_data(recipe)


def token_bytes(words: int) -> int:
    """Bytes of a token in the buffer, little endian: 2 where a vocabulary fits 16 bits, else 4."""
    return 2 if words <= _NARROW_WORDS else 4


def width_of(program: Mapping[str, Any]) -> int:
    """Bytes of a token in the buffer, by the settings of a program."""
    return WORD_BYTES if "recipe" in program else token_bytes(program["vocab_size"])


def program_of(recipe: Any) -> dict[str, JsonValue]:
    """Settings of the accelerator's program but for its device, as a ``Recipe`` means them."""
    trainer, how = recipe.trainer, recipe.collaboration
    bounds: dict[str, JsonValue] = {}
    if how.program == "trainer":
        if how.max_update_norm is not None:
            bounds["max_update_norm"] = how.max_update_norm
        return {
            "version": 1,
            "phase": recipe.phase,
            "recipe": sha256_hex(canonical_json(recipe.to_dict())),
            "seq_len": _row_words(recipe),
            "batch_size": _rows_a_step(recipe),
            **bounds,
        }
    config = recipe.model.config
    if recipe.model.dtype != "float32":
        bounds["dtype"] = recipe.model.dtype
    if how.sequence_privacy is not None:
        bounds["privacy"] = how.sequence_privacy.to_dict()
    if how.max_update_norm is not None:
        bounds["max_update_norm"] = how.max_update_norm
    return {
        "version": 1,
        "n_layer": config["n_layer"],
        "n_head": config["n_head"],
        "n_embd": config["n_embd"],
        "vocab_size": config["vocab_size"],
        "seq_len": trainer.block_size,
        "batch_size": trainer.per_device_train_batch_size,
        "learning_rate": trainer.learning_rate,
        "seed": recipe.model.init_seed,
        **{name: getattr(trainer, name) for name in _OPTIMIZER},
        **bounds,
    }


def _row_words(recipe: Any) -> int:
    """Positions of a row."""
    trainer = recipe.trainer
    return int(trainer.block_size if recipe.phase == "cpt" else trainer.max_length)


def _rows_a_step(recipe: Any) -> int:
    trainer = recipe.trainer
    return int(trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps)


def _untrainable(recipe: Any) -> str | None:
    """Why program ``trainer`` cannot train a recipe."""
    trainer, how, peft = recipe.trainer, recipe.collaboration, recipe.peft
    refused = {
        "collaboration.sequence_privacy": how.sequence_privacy is not None,
        "peft.quantization": peft is not None and peft.quantization is not None,
        "trainer.fp16": trainer.fp16,
        "trainer.packing": getattr(trainer, "packing", False),
        "trainer.padding_free": getattr(trainer, "padding_free", False),
        "trainer.max_length: null": getattr(trainer, "max_length", 2) is None,
        "trainer.max_length: 1": getattr(trainer, "max_length", 2) == 1,
    }
    for name, wanted in refused.items():
        if wanted:
            return f"collaboration travelling with program: trainer does not follow {name}"
    step = _rows_a_step(recipe) * _row_words(recipe) * WORD_BYTES
    return None if how.buffer_bytes // 2 >= step else _too_small(step)


def _too_small(step: int) -> str:
    return f"collaboration.buffer_bytes: half of it holds less than one step, which is {step} bytes"


def _other_model(recipe: Any, config: dict[str, Any]) -> str | None:
    if unknown := sorted(config.keys() - _CONFIG):
        return f"collaboration travelling knows no model.config.{unknown[0]}"
    for name in sorted(_CONFIG - {"model_type", "n_positions"}):
        size = config.get(name)
        if type(size) is not int or not 1 <= size <= 1 << 20:
            return f"collaboration travelling needs a whole number as model.config.{name}"
    if config["n_embd"] % config["n_head"]:
        return "model.config.n_embd is a multiple of n_head"
    if config.get("n_positions", recipe.trainer.block_size) != recipe.trainer.block_size:
        return "collaboration travelling: model.config.n_positions is trainer.block_size"
    if recipe.model.dtype not in ("float32", "bfloat16") or recipe.model.tokenizer is not None:
        return "collaboration travelling needs model.dtype float32 or bfloat16, and no tokenizer"
    if recipe.model.dtype != "float32" and recipe.collaboration.sequence_privacy is not None:
        return "collaboration.sequence_privacy clips and adds noise in model.dtype float32 alone"
    return None


def _other_training(recipe: Any) -> str | None:
    trainer = recipe.trainer
    if trainer.lr_scheduler_type != "constant":
        return "collaboration travelling needs trainer.lr_scheduler_type: constant"
    if trainer.learning_rate > 1:
        return "collaboration travelling takes a trainer.learning_rate up to 1"
    for name, field in type(trainer).model_fields.items():
        if name not in _FOLLOWED and getattr(trainer, name) != field.default:
            return f"collaboration travelling does not follow trainer.{name}"
    if trainer.append_eos:
        return "collaboration travelling does not follow trainer.append_eos"
    half = recipe.collaboration.buffer_bytes // 2
    width = token_bytes(recipe.model.config["vocab_size"])
    step = trainer.per_device_train_batch_size * trainer.block_size * width
    return _too_small(step) if half < step else None


def _other_data(recipe: Any) -> str | None:
    for dataset in recipe.datasets:
        if dataset.role != "train" or dataset.weight != 1:
            return "collaboration travelling trains on every dataset alike: role train, weight 1"
    return None

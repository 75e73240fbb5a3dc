"""Adapters of ``peft``, under the names PEFT gives their settings.

Two kinds: methods that change weights (LoRA, DoRA, IA³), which can be merged into their base, and
methods that learn what stands before the input (prefix tuning, also called P-tuning v2; P-tuning;
prompt tuning), which cannot.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.models import StrictModel

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,200}$")]
_Modules = Annotated[tuple[ModuleName, ...], Field(min_length=1)]
_Width = Annotated[int, Field(ge=1, le=65_536)]


class Quantization(StrictModel):
    """``transformers.BitsAndBytesConfig``: the frozen base in four bits (QLoRA)."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"


class _AnyAdapter(StrictModel):
    """What every method has.

    Attributes:
        changes_weights: It can be merged into its base.
    """

    changes_weights: ClassVar[bool] = False

    quantization: Quantization | None = Field(
        default=None, description="Hold the frozen base in four bits; null for full precision."
    )


class _WeightAdapter(_AnyAdapter):
    """A method whose result is a change of weights."""

    changes_weights: ClassVar[bool] = True

    target_modules: Literal["all-linear"] | _Modules
    modules_to_save: tuple[ModuleName, ...] | None = None
    merge: bool = Field(
        default=False, description="Hand out the full-precision base with the adapter merged in."
    )


class _LearnedPrompt(_AnyAdapter):
    """A method whose result stands before the input."""

    merge: ClassVar[bool] = False

    num_virtual_tokens: int = Field(ge=1, le=4096)


class Lora(_WeightAdapter):
    """``peft.LoraConfig``; with ``use_dora`` DoRA."""

    method: Literal["lora"]
    r: int = Field(default=8, ge=1, le=4096)
    lora_alpha: int = Field(default=16, ge=1, le=65_536)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    bias: Literal["none", "all", "lora_only"] = "none"
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: bool | Literal["gaussian", "pissa", "olora"] = True
    layers_to_transform: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] | None = None

    @model_validator(mode="after")
    def _start_fits_the_base(self) -> Self:
        if self.init_lora_weights in ("pissa", "olora"):
            if self.quantization is not None:
                raise ValueError(
                    f"init_lora_weights {self.init_lora_weights} splits full-precision weights; "
                    "leave quantization out"
                )
            if self.merge:
                raise ValueError(
                    f"init_lora_weights {self.init_lora_weights} changes the base it starts from; "
                    "merge would add it to another"
                )
        return self

    @property
    def title(self) -> str:
        """What a report calls it."""
        kind = "DoRA" if self.use_dora else "LoRA"
        return f"{kind if self.quantization is None else f'Q{kind}'}, rank {self.r}"


class Ia3(_WeightAdapter):
    """``peft.IA3Config``: a learned factor for every output of the named modules."""

    method: Literal["ia3"]
    feedforward_modules: tuple[ModuleName, ...] = Field(
        default=(), description="Of target_modules, those whose input is scaled instead."
    )

    @model_validator(mode="after")
    def _feedforward_modules_are_targets(self) -> Self:
        if self.target_modules != "all-linear" and not set(self.feedforward_modules) <= set(
            self.target_modules
        ):
            raise ValueError("feedforward_modules name modules that target_modules leave out")
        return self

    @property
    def title(self) -> str:
        """What a report calls it."""
        return "IA³"


class PrefixTuning(_LearnedPrompt):
    """``peft.PrefixTuningConfig`` (P-tuning v2): learned keys and values before every layer's."""

    method: Literal["prefix_tuning"]
    prefix_projection: bool = Field(
        default=False, description="Make the prefix by a small network, as P-tuning v2 does."
    )
    encoder_hidden_size: _Width | None = Field(
        default=None, description="Width of that network; the model's own when null."
    )

    @model_validator(mode="after")
    def _every_setting_counts(self) -> Self:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("encoder_hidden_size does nothing without prefix_projection")
        return self

    @property
    def title(self) -> str:
        """What a report calls it."""
        return f"prefix tuning, {self.num_virtual_tokens} virtual tokens"


class PTuning(_LearnedPrompt):
    """``peft.PromptEncoderConfig`` (P-tuning): a learned prompt, made by a small network."""

    method: Literal["p_tuning"]
    encoder_reparameterization_type: Literal["MLP", "LSTM"] = "MLP"
    encoder_hidden_size: _Width | None = Field(
        default=None, description="Width of that network; the model's own when null."
    )
    encoder_num_layers: int = Field(default=2, ge=1, le=64)
    encoder_dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def title(self) -> str:
        """What a report calls it."""
        return f"P-tuning, {self.num_virtual_tokens} virtual tokens"


class PromptTuning(_LearnedPrompt):
    """``peft.PromptTuningConfig``: a learned prompt."""

    method: Literal["prompt_tuning"]
    prompt_tuning_init: Literal["RANDOM", "SAMPLE_VOCAB"] = "RANDOM"

    @property
    def title(self) -> str:
        """What a report calls it."""
        return f"prompt tuning, {self.num_virtual_tokens} virtual tokens"


Adapter = Annotated[
    Lora | Ia3 | PrefixTuning | PTuning | PromptTuning, Field(discriminator="method")
]
"""Any adapter a recipe can name."""

OURS: Final = frozenset({"method", "quantization", "merge"})
"""Settings that are no arguments of PEFT's configuration."""

"""``dpo``: learning from preferences without a reward model: DPO, IPO, KTO, ORPO.

``trainer.loss_type`` chooses the method, and with it the settings and columns.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.columns import Columns, PreferenceColumns, tools_field
from sealtrain.recipe.fields import ColumnName, by_key
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Length, TrainerArguments

PairLoss = Literal[
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "sigmoid_norm",
]
UnpairedLoss = Literal["kto", "apo_zero_unpaired"]

_SMOOTHED: Final = {"robust", "exo_pair", "aot", "aot_unpaired"}
_DIVERGING: Final = {"sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop"}


class UnpairedColumns(Columns):
    """A prompt, one answer to it, and whether it is a desirable one (true or false)."""

    kind: ClassVar[Literal["unpaired"]] = "unpaired"
    prompt: ColumnName
    completion: ColumnName
    label: ColumnName
    tools: ColumnName | None = tools_field()


DpoColumns = Annotated[
    Annotated[PreferenceColumns, Tag("preference")] | Annotated[UnpairedColumns, Tag("unpaired")],
    Discriminator(by_key("preference", completion="unpaired", label="unpaired")),
]


class _PreferenceArguments(TrainerArguments):
    """What all three of TRL's trainers take.

    Attributes:
        kind: Which of the three.
    """

    kind: ClassVar[Literal["dpo", "kto", "orpo"]]

    learning_rate: float = Field(default=1e-6, gt=0, le=10)
    beta: float = Field(
        default=0.1, gt=0, le=1000, description="Strength of the reference; ORPO's lambda."
    )
    disable_dropout: bool = True

    @model_validator(mode="after")
    def _every_setting_counts(self) -> Self:
        if self.label_smoothing_factor:
            raise ValueError("label_smoothing_factor does nothing here; robust has label_smoothing")
        return self


class DpoArguments(_PreferenceArguments):
    """``trl.DPOConfig``."""

    kind: ClassVar[Literal["dpo"]] = "dpo"
    loss_type: PairLoss | Annotated[tuple[PairLoss, ...], Field(min_length=1, max_length=8)] = (
        "sigmoid"
    )
    loss_weights: tuple[Annotated[float, Field(ge=0, le=1000)], ...] | None = Field(
        default=None, description="One for each of several losses; equal ones when null."
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="Share of preferences taken to be wrong."
    )
    f_divergence_type: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"] = (
        "reverse_kl"
    )
    f_alpha_divergence_coef: float = Field(default=0.5, gt=0, le=100)
    ld_alpha: float | None = Field(default=None, ge=0, le=1)
    discopop_tau: float = Field(default=0.05, gt=0, le=100)
    use_weighting: bool = False
    max_length: Length | None = 1024
    pad_to_multiple_of: int | None = Field(default=None, ge=1, le=65_536)

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the losses that are added up."""
        return (self.loss_type,) if isinstance(self.loss_type, str) else self.loss_type

    @property
    def compares_only(self) -> bool:
        """Whether the loss is of the difference of two answers: equal ones teach nothing."""
        return set(self.losses) <= _DIVERGING

    @model_validator(mode="after")
    def _losses_and_their_settings_agree(self) -> Self:
        losses = set(self.losses)
        if losses == {"sft"}:
            raise ValueError("loss_type sft compares nothing; name a second one")
        if len(losses) != len(self.losses):
            raise ValueError("loss_type names one twice")
        if self.loss_weights is not None and len(self.loss_weights) != len(self.losses):
            raise ValueError("loss_weights need one number for each loss_type")
        if self.label_smoothing and not losses & _SMOOTHED:
            raise ValueError(f"label_smoothing needs a loss_type of {sorted(_SMOOTHED)}")
        if "exo_pair" in losses and not self.label_smoothing:
            raise ValueError("loss_type exo_pair needs label_smoothing above 0, such as 1e-3")
        if self.f_divergence_type != "reverse_kl" and not losses <= _DIVERGING | {"sft"}:
            raise ValueError(f"f_divergence_type needs a loss_type of {sorted(_DIVERGING)}")
        if self.use_weighting and losses & {"aot", "aot_unpaired"}:
            raise ValueError("use_weighting weighs pairs, and aot sorts them apart")
        return self


class KtoArguments(_PreferenceArguments):
    """``trl.KTOConfig``."""

    kind: ClassVar[Literal["kto"]] = "kto"
    loss_type: UnpairedLoss
    desirable_weight: float = Field(default=1.0, gt=0, le=1000)
    undesirable_weight: float = Field(default=1.0, gt=0, le=1000)
    max_length: Length | None = 1024
    pad_to_multiple_of: int | None = Field(default=None, ge=1, le=65_536)

    @model_validator(mode="after")
    def _answers_of_others_are_in_the_batch(self) -> Self:
        if self.loss_type == "kto" and self.per_device_train_batch_size < 2:
            raise ValueError("loss_type kto needs per_device_train_batch_size of at least 2")
        return self


class OrpoArguments(_PreferenceArguments):
    """``trl.experimental.orpo.ORPOConfig``."""

    kind: ClassVar[Literal["orpo"]] = "orpo"
    loss_type: Literal["orpo"]
    max_length: Length = 1024


def _method(value: Any) -> str:
    """The method of a mapping or a model, for the union of the three."""
    is_mapping = isinstance(value, dict)
    loss = value.get("loss_type") if is_mapping else getattr(value, "loss_type", None)
    if loss in ("kto", "apo_zero_unpaired"):
        return "kto"
    return "orpo" if loss == "orpo" else "dpo"


class DpoRecipe(PhaseRecipe):
    """Learning from preferences without a reward model."""

    phase: Literal["dpo"]
    columns: DpoColumns
    trainer: Annotated[
        Annotated[DpoArguments, Tag("dpo")]
        | Annotated[KtoArguments, Tag("kto")]
        | Annotated[OrpoArguments, Tag("orpo")],
        Discriminator(_method),
    ]

    @model_validator(mode="after")
    def _columns_hold_what_the_loss_compares(self) -> Self:
        wanted = "unpaired" if self.trainer.kind == "kto" else "preference"
        if self.columns.kind != wanted:
            fields = "prompt, completion and label" if wanted == "unpaired" else "chosen, rejected"
            raise ValueError(f"loss_type {self.trainer.loss_type} reads columns {fields}")
        return self

    @model_validator(mode="after")
    def _orpo_renders_no_tools(self) -> Self:
        if self.trainer.kind == "orpo" and self.columns.tools is not None:
            raise ValueError("orpo gives a chat template no tools; leave columns.tools out")
        return self

    @model_validator(mode="after")
    def _orpo_finds_its_tokens(self) -> Self:
        method = None if self.peft is None else self.peft.method
        if self.trainer.kind == "orpo" and method in ("p_tuning", "prompt_tuning"):
            raise ValueError(f"orpo reads logits by place, and {method} moves them; take another")
        return self

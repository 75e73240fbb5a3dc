"""The promise of a recipe about single records: none, or differential privacy with its cost.

``epsilon`` limits a single run; ``budgets`` limit an owner's data over all runs, which the broker's
ledger counts (spec/key-release.md §4). A recipe whose settings would break its promise is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AllowInfNan, Field, model_validator

from sealtrain.base.models import OwnerName, StrictModel
from sealtrain.recipe.fields import ColumnName

Epsilon = Annotated[float, AllowInfNan(False), Field(gt=0, le=1000)]
Delta = Annotated[float, AllowInfNan(False), Field(gt=0, le=0.01)]
Bound = Annotated[float, AllowInfNan(False)]

# Computed from training records by the trainer itself; no noise covers them.
_TRAINING_FIGURES = frozenset(
    {"entropy", "grad_norm", "loss", "mean_token_accuracy", "num_tokens", "train_loss"}
)
_SGD_PHASES = ("classify", "sft")
# Dropout, drop path, layer drop, noise on routers, as configs of models name them.
_DRAWS = re.compile("drop|jitter|noise")


class NoPrivacy(StrictModel):
    """Plainly none."""

    dp: Literal["none"] = Field(description="A model trained without it can leak its data.")


class PrivateSgd(StrictModel):
    """DP-SGD: each record's gradient is clipped, and noise hides which records took part."""

    dp: Literal["sgd"]
    target_epsilon: Epsilon = Field(description="All that the run may spend, reserved at release.")
    delta: Delta = Field(description="Well below one over the number of records.")
    noise_multiplier: float | None = Field(
        default=None,
        ge=0.1,
        le=10_000,
        description="Deviation of the noise over max_grad_norm; the smallest that keeps to "
        "target_epsilon when null.",
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, le=1_000_000, description="Each record's gradient is cut to this norm."
    )
    accountant: Literal["prv", "rdp", "gdp"] = Field(
        default="prv", description="prv and rdp bound epsilon; gdp approximates it."
    )
    sampling: Literal["poisson"] = Field(
        default="poisson", description="Every record takes part in a step by a coin of its own."
    )
    unit: Literal["record"] = Field(
        default="record", description="What is hidden: presence of one record of one dataset."
    )
    budgets: dict[OwnerName, Epsilon] = Field(
        default={},
        max_length=256,
        description="Epsilon that an owner's dataset may spend over all runs; others are free.",
    )
    feature_ranges: dict[ColumnName, tuple[Bound, Bound]] | None = Field(
        default=None,
        max_length=4096,
        description="Lowest and highest value of each feature as everyone may know them.",
    )

    @model_validator(mode="after")
    def _ranges_rise(self) -> Self:
        if any(low >= high for low, high in (self.feature_ranges or {}).values()):
            raise ValueError("feature_ranges hold [lowest, highest], lowest first")
        return self


class SequencePrivacy(StrictModel):
    """What hides single sequences of token shards that a training reads once each."""

    noise_multiplier: float = Field(
        ge=0.1,
        le=10_000,
        allow_inf_nan=False,
        description="Deviation of the noise over max_sequence_norm.",
    )
    max_sequence_norm: float = Field(
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Each sequence's gradient is cut to this L2 norm.",
    )
    delta: Delta = Field(description="Well below one over the number of a holder's sequences.")
    accountant: Literal["prv", "rdp"] = Field(default="prv", description="Both bound epsilon.")

    def mechanism(self) -> PrivateSgd:
        """The same mechanism as settings of a training that draws its records."""
        return PrivateSgd(
            dp="sgd",
            target_epsilon=1000.0,  # only planners read it, and no planner runs here
            delta=self.delta,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_sequence_norm,
            accountant=self.accountant,
        )


class PrivateCounts(StrictModel):
    """Counts with noise: every metric of an evaluation is computed from one noisy histogram."""

    dp: Literal["counts"]
    target_epsilon: Epsilon = Field(description="All that the run spends, reserved at release.")
    unit: Literal["record"] = "record"
    budgets: dict[OwnerName, Epsilon] = Field(default={}, max_length=256)


Privacy = Annotated[NoPrivacy | PrivateSgd | PrivateCounts, Field(discriminator="dp")]
"""Differential privacy, or plainly none."""


class Spending(StrictModel):
    """The privacy of a dataset that a run reserves.

    Attributes:
        epsilon: Reserved in full, even if the run spends less.
        delta: Likewise.
        budget: Most epsilon over all runs that this recipe's approval allows; ``None`` without a
            limit.
    """

    owner: OwnerName
    name: OwnerName
    epsilon: Annotated[float, AllowInfNan(False), Field(ge=0)]
    delta: Annotated[float, AllowInfNan(False), Field(ge=0, le=1)]
    budget: Epsilon | None


def spendings(recipe: Any) -> tuple[Spending, ...]:
    """The reservation of a ``Recipe``'s run for each protected dataset, in the recipe's order."""
    privacy = recipe.privacy
    if isinstance(privacy, NoPrivacy):
        return ()
    role = "train" if isinstance(privacy, PrivateSgd) else "test"
    delta = privacy.delta if isinstance(privacy, PrivateSgd) else 0.0
    return tuple(
        Spending(
            owner=dataset.owner,
            name=dataset.name,
            epsilon=privacy.target_epsilon,
            delta=delta,
            budget=privacy.budgets.get(dataset.owner),
        )
        for dataset in recipe.datasets
        if dataset.role == role
    )


def find_broken_promise(recipe: Any) -> str | None:
    """Why the recipe's other settings would break its promise of privacy; ``None`` if they keep it.

    Args:
        recipe: A ``Recipe`` whose fields are valid, each by itself.
    """
    privacy = recipe.privacy
    if isinstance(privacy, NoPrivacy):
        return None
    strangers = set(privacy.budgets) - {spending.owner for spending in spendings(recipe)}
    if strangers:
        return f"privacy.budgets name {', '.join(sorted(strangers))}, who give no data to protect"
    if any(privacy.target_epsilon > budget for budget in privacy.budgets.values()):
        return "privacy.target_epsilon is above an owner's budget, so no run could begin"
    if isinstance(privacy, PrivateCounts):
        return None if recipe.phase == "evaluate" else "privacy dp: counts is for phase evaluate"
    return _training_breaks(recipe, privacy)


def _training_breaks(recipe: Any, privacy: PrivateSgd) -> str | None:
    trainer = recipe.trainer
    if recipe.phase not in _SGD_PHASES:
        return f"privacy dp: sgd is for phases {' and '.join(_SGD_PHASES)}"
    if recipe.scripts:
        return "privacy dp: sgd is not known to hold for a script of your own"
    if recipe.phase == "sft" and recipe.peft is None:
        return "privacy dp: sgd trains adapters in phase sft: name peft.method lora"
    if recipe.peft is not None and not is_plain_lora(recipe.peft):
        return "privacy dp: sgd takes peft.method lora in full precision, without use_dora"
    if any(getattr(dataset, "max_records", None) is not None for dataset in recipe.datasets):
        return "datasets.max_records and privacy dp: sgd do not go together: every record may come"
    if told := list_told_of_training(recipe.release_policy):
        return f"release_policy.metrics name {', '.join(told)}: of training records, without noise"
    unfit: Mapping[str, bool] = {
        "bf16": trainer.bf16,
        "fp16": trainer.fp16,
        "activation_checkpointing": trainer.activation_checkpointing,
        "neftune_noise_alpha": trainer.neftune_noise_alpha is not None,
        "packing": getattr(trainer, "packing", False),
        "padding_free": getattr(trainer, "padding_free", False),
    }
    named = [name for name, wanted in unfit.items() if wanted]
    if named:
        return f"trainer.{named[0]} keeps records' gradients from being told apart: leave it out"
    if drawn := asks_for_draws(recipe):
        return f"privacy dp: sgd trains without dropout and noise of layers: set {drawn} to 0"
    features = getattr(recipe.columns, "features", None)
    if set(privacy.feature_ranges or ()) != set(features or ()):
        return "privacy.feature_ranges gives each feature its range, and nothing else"
    return None


def list_told_of_training(policy: Any) -> list[str]:
    """Metrics that a ``ReleasePolicy`` names and no noise covers, sorted."""
    return sorted(_TRAINING_FIGURES.intersection(policy.metrics))


def asks_for_draws(recipe: Any) -> str | None:
    """Name the first field that asks a layer to draw random numbers; ``None`` without one.

    A model that says nothing of its dropout has that of its architecture, which private training
    switches off (``training.privacy.determinism``). A field that asks for it is refused: it would
    do nothing.

    Args:
        recipe: A ``Recipe`` whose fields are valid, each by itself.
    """
    if getattr(recipe.peft, "lora_dropout", 0):
        return "peft.lora_dropout"
    config = recipe.model.config if recipe.model.kind == "config" else {}
    return next(_draws_in(config, "model.config"), None)


def _draws_in(config: Mapping[str, Any], place: str) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _draws_in(value, f"{place}.{name}")
        elif value and isinstance(value, int | float) and _DRAWS.search(name):
            yield f"{place}.{name}"


def is_plain_lora(adapter: object) -> bool:
    """Whether an adapter has a gradient for each record: plain LoRA only."""
    return (
        getattr(adapter, "method", None) == "lora"
        and not getattr(adapter, "use_dora", False)
        and getattr(adapter, "quantization", None) is None
    )

"""A federation's privacy promise to patients, and its limits on recipes (spec/recipe.md §2.14).

Rounds that hide patients are steps of gradient descent of our own (``federated.private``),
not a trainer of a library. Settings that they do not follow must keep their default and are refused
otherwise, so that owners approve nothing that does not happen.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import ColumnName
from sealtrain.recipe.privacy import (
    Delta,
    Epsilon,
    PrivateSgd,
    asks_for_draws,
    is_plain_lora,
    list_told_of_training,
)

_FOLLOWED: Final = frozenset(
    {
        "max_steps",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "learning_rate",
        "label_smoothing_factor",
        "seed",
        "max_length",
    }
)


class PatientPrivacy(StrictModel):
    """Privacy of everything that one party holds of one patient."""

    patient: ColumnName = Field(
        description="Column that names a record's patient; the model does not read it."
    )
    records_a_patient: int = Field(
        ge=1, le=4096, description="Of one patient so many records train, those first in the data."
    )
    patients_a_round: int = Field(
        ge=1,
        le=(1 << 53) - 1,
        description="Of all parties; each patient takes part by a coin of its own, so many on "
        "average.",
    )
    target_epsilon: Epsilon = Field(description="All that the run may spend of one patient.")
    delta: Delta = Field(description="Well below one over the number of patients.")
    max_patient_norm: float = Field(
        default=1.0,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="The mean gradient of a patient's records is cut to this L2 norm.",
    )
    noise_multiplier: float | None = Field(
        default=None,
        ge=0.1,
        le=10_000,
        allow_inf_nan=False,
        description="Deviation of the noise over max_patient_norm; the smallest that keeps to "
        "target_epsilon when null.",
    )
    accountant: Literal["prv", "rdp"] = Field(default="prv", description="Both bound epsilon.")

    def mechanism(self) -> PrivateSgd:
        """The same in the words of a training that hides records."""
        return PrivateSgd(
            dp="sgd",
            target_epsilon=self.target_epsilon,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_patient_norm,
            accountant=self.accountant,
        )


def patient_privacy_of(recipe: Any) -> PatientPrivacy | None:
    """The promise of a ``Recipe`` to patients; ``None`` without one."""
    promised: PatientPrivacy | None = getattr(recipe.collaboration, "patient_privacy", None)
    return promised


def cannot_hide_patients(recipe: Any, promised: PatientPrivacy) -> str | None:
    """Why a federated ``Recipe`` cannot keep what it promises patients; ``None`` if it can."""
    how, what = recipe.collaboration, "collaboration.patient_privacy"
    if recipe.phase != "classify" or recipe.columns.kind != "text":
        return f"{what} is for phase classify on text"
    if promised.patient in recipe.columns.names:
        return f"{what}.patient is a column that the model does not read"
    if how.aggregation != "ffa" or how.local_steps != 1:
        return f"{what} needs aggregation ffa and local_steps 1: a round is one noised step"
    if how.max_update_norm is not None:
        return f"{what} and max_update_norm do not go together: max_patient_norm is the bound"
    if not is_plain_lora(recipe.peft):
        return f"{what} takes peft.method lora without use_dora"
    if drawn := asks_for_draws(recipe):
        return f"{what} trains without dropout and noise of layers: set {drawn} to 0"
    if told := list_told_of_training(recipe.release_policy):
        return f"release_policy.metrics name {', '.join(told)}: of training records, without noise"
    if recipe.augmentation is not None:
        return f"augmentation and {what} do not go together"
    for name, field in type(recipe.trainer).model_fields.items():
        if name not in _FOLLOWED and getattr(recipe.trainer, name) != field.default:
            return f"{what} does not follow trainer.{name}"
    if any(dataset.weight != 1 for dataset in recipe.datasets):
        return f"{what} draws every patient alike: datasets.weight 1"
    return None

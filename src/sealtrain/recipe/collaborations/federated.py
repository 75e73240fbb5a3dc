"""Settings of a recipe for training in rounds (spec/recipe.md §2.14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from sealtrain.recipe.collaboration import (
    Norm,
    PartiesSettings,
    PrivacyPromise,
    holders_of,
    is_none,
    misfit_of_text_adapter,
)
from sealtrain.recipe.collaborations.pads import PAD_LIMITS, ProductSettings, misfit_of_products
from sealtrain.recipe.collaborations.patients import PatientPrivacy, cannot_hide_patients
from sealtrain.recipe.collaborations.strategies import RULE, FedProx, Strategy

_SECONDS_A_WEEK: Final = 604_800
_SECONDS_A_DAY: Final = 86_400
_SILENT_ROUNDS: Final = 3


class Federated(PartiesSettings):
    """Each party trains an adapter on its own data; an attested aggregator merges them."""

    phases: ClassVar[tuple[str, ...]] = ("classify", "sft")
    party_role: ClassVar[str | None] = "holder"
    summary: ClassVar[str] = (
        "Each party trained on its own data; an attested guest merged their updates."
    )
    limits: ClassVar[tuple[str, ...]] = ("parties-evidence", "updates-merged")

    kind: Literal["federated"]
    rounds: int = Field(ge=1, le=10_000, description="Merges from the first adapter to the last.")
    local_steps: int = Field(
        ge=1, le=1_000_000, description="Optimizer steps of a party in a round."
    )
    min_parties: int = Field(
        ge=2, le=256, description="Updates that a round needs; it fails with fewer."
    )
    round_seconds: int = Field(
        default=600, ge=1, le=_SECONDS_A_WEEK, description="Updates that come later do not count."
    )
    joining_days: int | None = Field(
        default=None,
        ge=1,
        le=90,
        exclude_if=is_none,
        description="How long the lead waits for parties: at the beginning for all, later for "
        "min_parties; null for round_seconds.",
    )
    aggregation: Literal["exact", "ffa", "fedavg", "median", "trimmed-mean", "flower"] = Field(
        description="How updates are merged; flower: by the strategy that is named."
    )
    strategy: Strategy | None = Field(
        default=None,
        exclude_if=is_none,
        description="Of aggregation flower: one of Flower's strategies, by its name, with its "
        "arguments by theirs; left out of locks when there is none.",
    )
    trim: int | None = Field(
        default=None,
        ge=1,
        le=127,
        description="Of trimmed-mean: values left out at either end, for each number of the "
        "update.",
    )
    max_update_norm: Norm | None = Field(
        default=None, description="Updates are cut to this L2 norm before they are merged."
    )
    patient_privacy: PatientPrivacy | None = Field(
        default=None,
        exclude_if=is_none,
        description="Noise that hides single patients; left out of locks when there is none.",
    )
    products: ProductSettings | None = Field(
        default=None,
        exclude_if=is_none,
        description="Products that an untrusted accelerator makes for each party under one-time "
        "pads; left out of locks when each party's guest makes its own.",
    )

    @model_validator(mode="after")
    def _trim_leaves_something(self) -> Self:
        if (self.trim is None) != (self.aggregation != "trimmed-mean"):
            raise ValueError("trim and aggregation trimmed-mean go together")
        if self.trim is not None and 2 * self.trim >= self.min_parties:
            raise ValueError("trim leaves nothing of min_parties updates")
        if (self.strategy is None) != (self.aggregation != RULE):
            raise ValueError("strategy and aggregation flower go together")
        return self

    @classmethod
    def limits_of(cls, written: Mapping[str, Any]) -> tuple[str, ...]:
        """As ``CollaborationSettings``; those of pads besides, where parties use them."""
        return cls.limits if written.get("products") is None else (*cls.limits, *PAD_LIMITS)

    @property
    def helpers(self) -> tuple[str, ...]:
        """Of each party: an accelerator, and a dealer where one makes the pads."""
        return () if self.products is None else self.products.helpers

    @property
    def lead_sees(self) -> str | None:
        """As ``CollaborationSettings``."""
        return "reads each party's update, and releases only the merge"

    @property
    def accelerator_sees(self) -> str | None:
        """As ``CollaborationSettings``."""
        return None if self.products is None else self.products.accelerator_sees

    @property
    def extras(self) -> tuple[str, ...]:
        """Flower itself, where one of its strategies merges."""
        return () if self.strategy is None else ("federated",)

    @property
    def merged_by(self) -> str:
        """The rule, for a report."""
        return self.aggregation if self.strategy is None else f"Flower's {self.strategy.name}"

    @property
    def proximal_mu(self) -> float:
        """Weight of the proximal term in each party's loss; 0 for none."""
        return self.strategy.proximal_mu if isinstance(self.strategy, FedProx) else 0.0

    @property
    def joining_seconds(self) -> int:
        """How long the lead waits for parties."""
        days = self.joining_days
        return self.round_seconds if days is None else days * _SECONDS_A_DAY

    @property
    def party_patience(self) -> int:
        """Seconds for which a party waits for its lead."""
        return max(_SILENT_ROUNDS * self.round_seconds, self.joining_seconds)

    @property
    def privacy_promise(self) -> PrivacyPromise | None:
        """The privacy promise to patients."""
        promised = self.patient_privacy
        if promised is None:
            return None
        text = f"at most epsilon {promised.target_epsilon:g} for one patient of one party"
        return PrivacyPromise("patients", text)

    def parties_needed(self, holders: int) -> int:
        """As the settings say."""
        return self.min_parties

    def misfit(self, recipe: Any) -> str | None:
        """As ``CollaborationSettings.misfit``."""
        methods = ("lora", "prefix_tuning")
        if unfit := misfit_of_text_adapter(recipe, "collaboration federated", methods):
            return unfit
        method = recipe.peft.method
        if self.aggregation in ("exact", "ffa") and method != "lora":
            return f"collaboration.aggregation {self.aggregation} merges peft.method lora"
        if self.min_parties > len(holders_of(recipe)):
            return "collaboration.min_parties is above the number of owners who give data to train"
        if recipe.trainer.max_steps != self.rounds * self.local_steps:
            return "trainer.max_steps is collaboration.rounds times collaboration.local_steps"
        if self.strategy is not None:
            problem = self.strategy.misfit(
                holders=len(holders_of(recipe)),
                min_parties=self.min_parties,
                half_precision=recipe.trainer.fp16,
            )
            if problem is not None:
                return f"collaboration.strategy: {problem}"
        promised = self.patient_privacy
        if self.products is not None:
            if promised is not None:
                return (
                    "collaboration.products shows a machine outside how many rows each round has, "
                    "which patient_privacy hides"
                )
            if unfit := misfit_of_products(recipe, "collaboration.products"):
                return unfit
        return None if promised is None else cannot_hide_patients(recipe, promised)

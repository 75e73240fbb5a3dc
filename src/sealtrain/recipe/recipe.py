"""The common part of every recipe, whatever its phase."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import OwnerName, StrictModel
from sealtrain.recipe.adapters import Adapter
from sealtrain.recipe.audit import find_audit_fault
from sealtrain.recipe.backends import (
    DEFAULT,
    Backend,
    is_default,
    unfit,
    unfit_for_fp16,
)
from sealtrain.recipe.collaboration import is_none, misfit
from sealtrain.recipe.columns import Columns
from sealtrain.recipe.engines import unfit_for_engine
from sealtrain.recipe.epochs import unfit_for_epochs
from sealtrain.recipe.fields import RecipePath, Text
from sealtrain.recipe.kinds import Collaboration
from sealtrain.recipe.modelspec import Model, ModelFromFolder, ModelFromHub
from sealtrain.recipe.monitoring import Monitoring
from sealtrain.recipe.privacy import Privacy, find_broken_promise
from sealtrain.recipe.schedule import Schedule, unfit_to_continue
from sealtrain.recipe.scripts import MAX_PACKAGES, MAX_SCRIPTS, ScriptPackage, find_name_fault
from sealtrain.recipe.templatemarks import find_template_fault
from sealtrain.recipe.terms import Dataset, Hardware, ReleasePolicy
from sealtrain.recipe.trainers import TrainerArguments
from sealtrain.recipe.validation import Validation
from sealtrain.signing.datause import LegalBasis, Purpose

_FROM_SEALED = ("classify", "sft")
"""Phases that train from a sealed model."""


class PhaseRecipe(StrictModel):
    """What every phase has. ``phase``, ``columns`` and ``trainer`` are narrowed by each phase."""

    version: Literal[1]
    name: OwnerName
    description: Text = ""
    purpose: Purpose | None = Field(
        default=None,
        exclude_if=is_none,
        description="Purpose of the processing, as owners read it; left out of locks when not "
        "stated.",
    )
    legal_basis: LegalBasis | None = Field(
        default=None,
        exclude_if=is_none,
        description="Legal basis of the processing; left out of locks when not stated.",
    )
    phase: str
    model: Model
    datasets: tuple[Dataset, ...] = Field(min_length=1, max_length=256)
    columns: Columns
    trainer: TrainerArguments
    peft: Adapter | None = None
    backend: Backend = Field(
        default=DEFAULT,
        exclude_if=is_default,
        description="What trains, and in how many processes; left out of locks when it is the "
        "default.",
    )
    collaboration: Collaboration | None = Field(
        default=None,
        exclude_if=is_none,
        description="How several parties train together; left out of locks when there is none.",
    )
    scripts: tuple[RecipePath, ...] = Field(
        default=(),
        max_length=MAX_SCRIPTS,
        description="Your own training script, run in the guest instead of ours, and the files "
        "it uses.",
    )
    packages: tuple[ScriptPackage, ...] = Field(
        default=(),
        max_length=MAX_PACKAGES,
        description="Further packages that the scripts import, as name==version.",
    )
    validation: Validation | None = Field(
        default=None, description="What the records must keep before training begins."
    )
    privacy: Privacy
    schedule: Schedule | None = Field(
        default=None,
        exclude_if=is_none,
        description="When the recipe is run again without a person asking; left out of locks when "
        "there is none.",
    )
    release_policy: ReleasePolicy
    monitoring: Monitoring | None = None
    hardware: Hardware

    @model_validator(mode="after")
    def _datasets_differ_and_train(self) -> Self:
        pairs = {(dataset.owner, dataset.name) for dataset in self.datasets}
        if len(pairs) != len(self.datasets):
            raise ValueError("datasets name one twice (owner and name)")
        if all(dataset.role != "train" for dataset in self.datasets):
            raise ValueError("datasets need at least one with role train")
        return self

    @model_validator(mode="after")
    def _series_are_for_one_guest(self) -> Self:
        if self.collaboration is not None and any(dataset.series for dataset in self.datasets):
            raise ValueError("datasets name a series, which a collaboration does not read")
        return self

    @model_validator(mode="after")
    def _check_sealed_model(self) -> Self:
        sealed = [dataset.name for dataset in self.datasets if dataset.role == "model"]
        if sealed != ([self.model.sealed] if self.model.kind == "sealed" else []):
            raise ValueError("model.sealed and one dataset of role model go together, by its name")
        if sealed and self.phase != "evaluate":
            if self.phase not in _FROM_SEALED or not self.reads_text:
                raise ValueError("model.sealed is for evaluate, and for sft and classify on text")
            if self.scripts or not (self.collaboration is None or self.collaboration.takes_backend):
                raise ValueError(
                    "training from model.sealed has no scripts, and no collaboration but nodes"
                )
        return self

    @model_validator(mode="after")
    def _evaluation_needs_records(self) -> Self:
        tested = any(dataset.role == "test" for dataset in self.datasets)
        if self.trainer.eval_steps is not None and not tested:
            raise ValueError("trainer.eval_steps needs a dataset with role test")
        return self

    @model_validator(mode="after")
    def _adapter_fits_the_base(self) -> Self:
        if self.peft is None:
            return self
        if self.peft.quantization is not None and self.model.kind != "folder":
            raise ValueError("peft.quantization needs model.path: it holds trained weights")
        if self.peft.method == "prefix_tuning" and self.trainer.activation_checkpointing:
            raise ValueError("prefix_tuning works without activation_checkpointing only")
        return self

    @model_validator(mode="after")
    def _dropout_happens(self) -> Self:
        switched_off = getattr(self.trainer, "disable_dropout", False)
        if switched_off and getattr(self.peft, "lora_dropout", False):
            raise ValueError("lora_dropout needs trainer.disable_dropout: false")
        return self

    @model_validator(mode="after")
    def _text_needs_a_tokenizer(self) -> Self:
        if self.reads_text and self.model.tokenizer is None:
            raise ValueError("model needs a tokenizer: {kind: bytes} or {path: …}")
        return self

    @model_validator(mode="after")
    def _template_writes_conversations(self) -> Self:
        problem = None if self.model.chat_template is None else find_template_fault(self)
        if problem is not None:
            raise ValueError(f"model.chat_template {problem}")
        return self

    @model_validator(mode="after")
    def _audit_is_possible(self) -> Self:
        problem = find_audit_fault(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _scripts_can_be_imported(self) -> Self:
        problem = find_name_fault(self.scripts, self.packages)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _small_range_suffices(self) -> Self:
        problem = unfit_for_fp16(self) if getattr(self.trainer, "fp16", False) else None
        if problem is not None:
            raise ValueError(f"trainer.fp16 {problem}")
        return self

    @model_validator(mode="after")
    def _epochs_have_records(self) -> Self:
        epochs = self.trainer.num_train_epochs
        problem = None if epochs is None else unfit_for_epochs(self)
        if problem is not None:
            raise ValueError(f"trainer.num_train_epochs {problem}")
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        problem = unfit_for_engine(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _backend_fits(self) -> Self:
        problem = unfit(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _parties_can_train_it(self) -> Self:
        problem = misfit(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _model_can_be_handed_on(self) -> Self:
        if self.release_policy.model.handed_on is None:
            return self
        if self.phase == "evaluate":
            raise ValueError("model.handed_on hands a trained model on; evaluate has none")
        if self.collaboration is not None:
            raise ValueError("model.handed_on is for recipes without collaboration")
        if self.peft is not None and not self.peft.merge:
            raise ValueError("model.handed_on hands whole models on: peft needs merge: true")
        if len(self.owners) < 2:
            # One owner with every data key has the run key, which opens the checkpoints.
            raise ValueError("model.handed_on needs the data of two owners at least")
        return self

    @model_validator(mode="after")
    def _one_guest_is_scheduled(self) -> Self:
        if self.schedule is not None and self.collaboration is not None:
            raise ValueError("schedule is for recipes without collaboration: it starts one guest")
        return self

    @model_validator(mode="after")
    def _last_model_can_be_opened(self) -> Self:
        problem = unfit_to_continue(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _privacy_holds(self) -> Self:
        problem = find_broken_promise(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def owners(self) -> tuple[str, ...]:
        """Names of the owners whose data the recipe reads, sorted."""
        return tuple(sorted({dataset.owner for dataset in self.datasets}))

    @property
    def exports_model(self) -> bool:
        """Whether a trained model leaves the guest, sealed."""
        return True

    @property
    def reads_text(self) -> bool:
        """Whether the phase turns text into tokens, so that the model needs a tokenizer."""
        return True

    @property
    def further_models(self) -> dict[str, ModelFromFolder]:
        """Models that training reads besides the base model, by their purpose."""
        return {}

    @property
    def sealed_model(self) -> Dataset | None:
        """The dataset that is the base model, where that is sealed."""
        return next((dataset for dataset in self.datasets if dataset.role == "model"), None)

    @property
    def hub_models(self) -> dict[str, ModelFromHub]:
        """Models of the hub: the base model as ``model``, further ones by their purpose."""
        every = {"model": self.model, **self.further_models}
        return {name: model for name, model in every.items() if isinstance(model, ModelFromHub)}

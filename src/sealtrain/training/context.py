"""The context that ``training.run`` builds for a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from sealtrain.training.data.hugging import Positioned
from sealtrain.training.data.stream import RecordStream

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.checkpoints.run_context import Evaluation, RunContext
    from sealtrain.training.data.feed import Feed
    from sealtrain.training.data.sources import SealedFolder, Source
    from sealtrain.training.distributed.machinery import Machinery
    from sealtrain.training.distributed.shared_model import SharedModel
    from sealtrain.training.models.standins import StandIns
    from sealtrain.training.privacy.accounting import Plan
    from sealtrain.training.privacy.noise import NoiseSource
    from sealtrain.training.schedule_slice import ScheduleSlice

RecipeT_co = TypeVar("RecipeT_co", bound="PhaseRecipe", covariant=True)


class TrainingCounts(Protocol):
    """The counts of a finished training: a callback, a loop or ``phases.evaluate.Evaluated``."""

    @property
    def steps(self) -> int:
        """Optimizer steps, resumed ones included."""

    @property
    def rows(self) -> int:
        """Training rows used for them; of an evaluation, the records measured."""

    @property
    def tokens(self) -> int | None:
        """Tokens without padding; ``None`` where the trainer does not count them."""

    @property
    def last(self) -> Mapping[str, float]:
        """Latest logged values of training."""

    @property
    def tokens_sha256(self) -> str | None:
        """Digest of the tokens trained on, in order; ``None`` where the phase takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """The result of a phase.

    Attributes:
        counts: Steps, rows and tokens.
        metrics: Final metrics on the test split, before the release policy is applied.
        model: The trained model, a PEFT model with an adapter, or its outline where its ranks share
            it out; ``None`` where none was trained, and on every rank but the first.
        tokenizer: The model's tokenizer; ``None`` where it reads numbers or images.
    """

    counts: TrainingCounts
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: Module | None = None
    tokenizer: PreTrainedTokenizerBase | None = None


class BuiltModel(NamedTuple):
    """A model before its first step, its adapter on it, and its tokenizer if it reads text."""

    model: Module
    tokenizer: PreTrainedTokenizerBase | None


@dataclass(slots=True, kw_only=True)
class TrainingContext(Generic[RecipeT_co]):
    """Recipe, data and callbacks of one training, by the class of its recipe.

    Attributes:
        recipe: A recipe of the phase.
        base_dir: Folder that the recipe's paths start from.
        scratch: Empty folder for libraries that insist on a folder.
        train_sources: Sources with role train.
        test_sources: Sources with role test.
        context: The run around the checkpoint callback.
        beside: Files that go with the model's own, name → content.
        noise: Draws that only this run can make; ``None`` outside a guest.
        model: The sealed model of the recipe; ``None`` where it names another kind.
        standins: Layers that replace the model's own while it trains; ``None`` without.
        built: Built already; a phase builds its model itself when ``None``.
        stretch: The steps of the training to do here; ``None`` for all.
        feed: Rows ready for the trainer, in place of the sources'; ``None`` without.
        plan: The plan of private training, once it is known.
        shared: The trained model where its ranks share it out; ``None`` where rank 0 has it.
    """

    recipe: RecipeT_co
    base_dir: Path
    scratch: Path
    train_sources: list[Source]
    test_sources: list[Source]
    context: RunContext
    beside: dict[str, bytes] = field(default_factory=dict)
    noise: NoiseSource | None = None
    model: SealedFolder | None = None
    standins: StandIns | None = None
    built: BuiltModel | None = None
    stretch: ScheduleSlice | None = None
    feed: Feed | None = None
    plan: Plan | None = None
    shared: SharedModel | None = None

    @property
    def machinery(self) -> Machinery:
        """The machinery of the recipe's backend."""
        return self.context.machinery

    @property
    def evaluation(self) -> Evaluation | None:
        """The measurement on the test split, which training also uses as the recipe says."""
        return self.context.evaluation

    @evaluation.setter
    def evaluation(self, measure: Evaluation) -> None:
        self.context.evaluation = measure

    def training_stream(self, names: Mapping[str, str]) -> Positioned:
        """The shuffled training rows, restartable at any step.

        Args:
            names: Column of the data → name it gets in the rows.

        Raises:
            SchemaMismatch: A column is missing or differs between owners.
        """
        trainer = self.recipe.trainer
        seed = trainer.seed if trainer.data_seed is None else trainer.data_seed
        stream = RecordStream(self.train_sources, list(names), seed=seed, names=dict(names))
        positioned = Positioned(stream)
        if self.stretch is not None:
            step = trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps
            positioned.start = self.stretch.first * step
        self.context.stream = positioned
        return positioned

    def test_stream(self, names: Mapping[str, str]) -> Positioned:
        """Every test record once. As ``training_stream``, but neither shuffled nor resumed."""
        stream = RecordStream(self.test_sources, list(names), seed=0, names=dict(names))
        count = sum(sum(source.dataset.batch_rows) for source in self.test_sources)
        return Positioned(stream, stop=count)

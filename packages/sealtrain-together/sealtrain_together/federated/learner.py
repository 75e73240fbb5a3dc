"""A party's side of a federation's mathematics: an adapter goes in, a learned one comes out.

A round trains ``local_steps`` steps of the recipe's own phase, trainer and settings, from the
merged adapter on. What it does follows from the recipe, the party's data, the round's number and
that adapter alone (``training.schedule_slice``): a party that was gone needs nothing but the next
merged adapter. Base model and tokenizer stay in memory from round to round.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.training.basefiles import add_base_files
from sealtrain.training.checkpoints.randomness import seed_of
from sealtrain.training.finite import refuse_not_finite, require_finite_weights
from sealtrain.training.model_files import model_files
from sealtrain.training.schedule_slice import ScheduleSlice
from sealtrain.training.telemetry.metric_gate import MetricGate
from sealtrain_together.federated.proximal import keep_near
from sealtrain_together.federated.update import decode_state, encode_state

if TYPE_CHECKING:
    from torch import Tensor

    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.sources import Source
    from sealtrain.training.models.standins import StandIns

_NO_RUN = "00" * 16
"""Of a training that seals nothing, so that binds nothing to its run."""


class LearnerTerms(Protocol):
    """What a learner has to know of ``collaboration``; ``recipe.collaboration`` itself will do."""

    @property
    def rounds(self) -> int:
        """How often updates are merged."""

    @property
    def local_steps(self) -> int:
        """Optimizer steps of a party in a round."""

    @property
    def aggregation(self) -> str:
        """One of ``merging.RULES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a round gave.

    Attributes:
        state: The adapter, as ``update.encode_state`` writes it.
        records: Of the party's training data: its weight.
        steps: Optimizer steps.
        loss: Mean over the steps after the first, ``None`` where the trainer told none.
    """

    state: bytes
    records: int
    steps: int
    loss: float | None


class Learner:
    """Learns rounds, measures adapters and writes the last one out.

    Args:
        recipe: Of phase ``classify`` or ``sft``, with an adapter.
        base_dir: Folder that the recipe's paths start from.
        sources: The party's own datasets, opened; the lead has none.
        party: Whose; random draws of training differ from party to party.
        terms: ``recipe.collaboration`` when ``None``.
        seed: Of those draws; the recipe's when ``None``.
        standins: Take the place of the model's layers.

    Raises:
        RecipeInvalid: No adapter, or settings that do not go with rounds.
        ModelInvalid: The base cannot be built.
    """

    def __init__(
        self,
        recipe: PhaseRecipe,
        base_dir: Path,
        sources: Sequence[Source],
        *,
        party: str,
        terms: LearnerTerms | None = None,
        seed: int | None = None,
        standins: StandIns | None = None,
    ) -> None:
        named: Any = getattr(recipe, "collaboration", None) if terms is None else terms
        _check(recipe, named)
        self._recipe, self._base_dir, self._sources = recipe, base_dir, tuple(sources)
        self._party, self._terms, self._standins = party, named, standins
        self._seed = recipe.trainer.seed if seed is None else seed
        self._phase = import_module(f"sealtrain.training.phases.{recipe.phase}")
        with self._work(recipe) as work:
            self._built = self._phase.build(work)
        self.model, self.tokenizer = self._built
        if self._terms.aggregation in ("exact", "ffa"):
            _refuse_unpaired(self.model)
        if self._terms.aggregation == "ffa":
            _freeze_start(self.model)
        if standins is not None:
            standins.put_in(self.model)
        self._start = {name: tensor.clone() for name, tensor in self.state().items()}

    @property
    def records(self) -> int:
        """Of the training data."""
        return sum(
            sum(source.dataset.batch_rows) for source in self._sources if source.role == "train"
        )

    @property
    def form(self) -> dict[str, Tensor]:
        """The adapter before the first round: what every other one must look like."""
        return self._start

    def initial(self) -> bytes:
        """The adapter that the first round starts from: equal for all holders of the recipe."""
        return encode_state(self._start)

    def state(self) -> dict[str, Tensor]:
        """The adapter as it is, by parameter name: float32 on the CPU."""
        return {
            name: parameter.detach().float().cpu()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def load(self, state: bytes) -> None:
        """Take an adapter. Raises ``UpdateRefused`` when it is of another form."""
        import torch

        given = decode_state(state, self._start)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in given:
                    parameter.copy_(given[name])

    def learn(self, round_number: int, state: bytes) -> Learned:
        """Train a round.

        Args:
            round_number: From 1.
            state: The merged adapter.

        Raises:
            UsageError: There is no such round, or nothing to train on.
            UpdateRefused: The adapter is of another form.
            RecordInvalid, SchemaMismatch: The data do not fit the recipe.
            TrainingDiverged: The round's loss or weights are not finite numbers.
        """
        terms = self._terms
        if not 1 <= round_number <= terms.rounds:
            raise UsageError("no such round", got=round_number, expected=f"1 to {terms.rounds}")
        if not self.records:
            raise UsageError("there is nothing to train on", hint="only parties with data learn")
        self.load(state)
        steps = terms.local_steps
        stretch = ScheduleSlice(
            first=(round_number - 1) * steps, steps=steps, total=terms.rounds * steps
        )
        near = keep_near(
            self.model,
            getattr(terms, "proximal_mu", 0.0),
            passes=self._recipe.trainer.gradient_accumulation_steps,
        )
        with near, self._work(self._of_round(round_number)) as work:
            work.train_sources = [source for source in self._sources if source.role == "train"]
            work.stretch = stretch
            callback = self._phase.train(work).counts
        self._unwrap()
        require_finite_weights(self.state())
        return Learned(
            state=encode_state(self.state()),
            records=self.records,
            steps=steps,
            loss=callback.last.get("loss"),
        )

    def evaluate(self, state: bytes) -> dict[str, Any]:
        """Count over the party's test records, as JSON; ``pool_counts`` makes metrics of them.

        Args:
            state: The adapter to measure.

        Returns:
            Of a classifier ``histogram`` (``training.privacy.counts``), of a language model
            ``records`` and ``sums`` by metric; nothing without test records.

        Raises:
            TrainingDiverged: The model's answers are not finite numbers.
        """
        import numpy as np

        from sealtrain.training.checkpoints.randomness import pause_training
        from sealtrain.training.privacy.counts import histogram
        from sealtrain.training.scores import softmax

        tested = [source for source in self._sources if source.role == "test"]
        if not tested:
            return {}
        self.load(state)
        with self._work(self._recipe) as work, pause_training(self.model):
            work.test_sources = tested
            if self._recipe.phase == "classify":
                truth, logits = self._phase.answers(work, *self._built)
                counts = histogram(np.asarray(truth), softmax(np.concatenate(logits)))
                return {"histogram": counts.tolist()}
            # The trainer that batches the records wants some to train on; it takes no step.
            work.train_sources = tested
            metrics = self._phase.measure(work)
            refuse_not_finite(0, metrics)
        count = sum(sum(source.dataset.batch_rows) for source in tested)
        sums = {name: value * count for name, value in metrics.items() if name != "majority"}
        return {"records": count, "sums": sums}

    def export(self, state: bytes) -> dict[str, bytes]:
        """The model's files with that adapter, as PEFT writes them: name → content."""
        self.load(state)
        if self._standins is not None:
            self._standins.take_out(self.model)
            self._standins = None
        model, tokenizer = self._built
        files = model_files(model, tokenizer)
        return add_base_files(files, self._recipe, self._base_dir, tokenizer)

    @contextmanager
    def _work(self, recipe: Any) -> Iterator[TrainingContext[PhaseRecipe]]:
        from sealtrain.training.checkpoints.kernels import deterministic
        from sealtrain.training.checkpoints.run_context import RunContext
        from sealtrain.training.context import TrainingContext
        from sealtrain.training.distributed.machinery import machinery_of

        context = RunContext(
            run_id=_NO_RUN,
            store=None,
            gate=MetricGate(recipe.release_policy),
            on_checkpoint=lambda ref: None,
            resume=None,
            arguments=recipe.trainer,
            machinery=machinery_of(recipe),
        )
        with (
            tempfile.TemporaryDirectory(prefix="sealtrain-") as scratch,
            closing(context),
            deterministic(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # as training.run: a warning's text may quote a value
            yield TrainingContext(
                recipe=recipe,
                base_dir=self._base_dir,
                scratch=Path(scratch),
                train_sources=[],
                test_sources=[],
                context=context,
                built=getattr(self, "_built", None),
            )

    def _of_round(self, number: int) -> Any:
        """The recipe of one round: its steps, and draws of its own."""
        trainer, steps = self._recipe.trainer, self._terms.local_steps
        changed = {
            "max_steps": steps,
            "logging_steps": steps,
            "save_steps": steps,
            "seed": seed_of(f"sealtrain/round/v1:{self._seed}/{self._party}/{number}"),
            "data_seed": trainer.seed if trainer.data_seed is None else trainer.data_seed,
        }
        return self._recipe.model_copy(update={"trainer": trainer.model_copy(update=changed)})

    def _unwrap(self) -> None:
        """Take off what the trainer put around the model's forward pass for half precision."""
        from accelerate.utils import extract_model_from_parallel

        extract_model_from_parallel(self.model, keep_fp32_wrapper=False)


def pool_counts(counts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Metrics of a federation from what its parties counted; none without test records.

    Args:
        counts: From ``Learner.evaluate``, one a party, in any order.
    """
    import numpy as np

    from sealtrain.training.privacy.counts import metrics_of

    told = [count for count in counts if count]
    if any("histogram" in answer for answer in told):
        tables = [np.asarray(answer["histogram"], dtype=np.int64) for answer in told]
        return metrics_of(np.stack(tables).sum(axis=0))
    total = sum(answer["records"] for answer in told)
    names = sorted({name for answer in told for name in answer["sums"]})
    return {name: sum(answer["sums"][name] for answer in told) / total for name in names}


def _check(recipe: Any, terms: Any) -> None:
    if terms is None or getattr(terms, "rounds", None) is None:
        raise RecipeInvalid(
            "the recipe is not for a federation", check="collaboration", expected="kind: federated"
        )
    if recipe.phase not in ("classify", "sft") or recipe.peft is None:
        raise RecipeInvalid(
            "a federation trains adapters of classifiers and of phase sft", check="peft"
        )
    trainer = recipe.trainer
    unfit = {
        "trainer.packing": getattr(trainer, "packing", False),
        "trainer.eval_steps": trainer.eval_steps is not None,
        "privacy.dp": recipe.privacy.dp != "none",
    }
    named = [name for name, wanted in unfit.items() if wanted]
    if named:
        raise RecipeInvalid(
            "rounds do not go with a setting of the recipe",
            check=named[0],
            hint="leave it out: parties train between two merges only",
        )


def _refuse_unpaired(model: Any) -> None:
    """See that what the adapter adds to a weight is B A, and nothing that merging would miss."""
    odd = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and ("lora_embedding_" in name or "lora_magnitude_" in name)
    ]
    if odd:
        raise RecipeInvalid(
            "products of factors are not all that this adapter adds",
            check="collaboration.aggregation",
            got=odd[0][:100],
            expected="LoRA of linear layers, without use_dora",
            hint="use aggregation fedavg, or leave that out",
        )


def _freeze_start(model: Any) -> None:
    """Keep A as the recipe's seed made it: then the mean of B is the mean of the products."""
    frozen = [parameter for name, parameter in model.named_parameters() if ".lora_A." in name]
    if not frozen:
        raise RecipeInvalid("aggregation ffa freezes A of LoRA", check="peft", expected="lora")
    for parameter in frozen:
        parameter.requires_grad_(False)

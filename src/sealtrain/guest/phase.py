"""A phase of sealtrain's own in a workload: count the records, train, hand over the model.

The counterpart of ``guest.script``. The phase trains as it does anywhere (``training.run``), over
the workload's stubs of records, base model, checkpoints, lease and measurements. The keeper has the
names and numbers that the manifest takes from training, and judges them (``guest.keeper``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from sealtrain.base.distributions import load
from sealtrain.guest.leasekeeper import Follower
from sealtrain.guest.workload.messages import MOST_TALLIED, RecordParts, Sign, Spent, TallyRecords
from sealtrain.recipe.backends import worlds_of
from sealtrain.recipe.kinds import KINDS
from sealtrain.training.backends.ready import make_ready
from sealtrain.training.run import Checkpoints, Inputs, Reporting, load_phase, train

if TYPE_CHECKING:
    from sealtrain.guest.workload.stubs import WorkloadRun
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.model_files import Trained
    from sealtrain.training.models.standins import StandIns


def load_libraries(recipe: PhaseRecipe) -> None:
    """Import what the recipe's phase uses, before there is anything to train on."""
    make_ready(recipe.backend.name)
    load_phase(recipe.phase)
    _load_stand_ins(recipe)


def run_phase(run: WorkloadRun) -> None:
    """Train the recipe's phase in a workload, as one of its ranks.

    Args:
        run: Its keeper holds the keys.

    Raises:
        SealtrainError: As ``training.run.train``; of records that leave nothing to learn
            ``DataInvalid``.
    """
    recipe, leads = run.recipe, run.lease is not None
    if leads and run.resume is None:
        _tally(run)
    with _stand_ins(run) as standins:
        trained = train(
            recipe,
            run_id=run.run_id,
            inputs=Inputs(
                base_dir=run.base, sources=run.sources, model=run.model, secret=run.secret
            ),
            checkpoints=Checkpoints(
                store=run.store,
                resume=run.resume,
                lease_keeper=Follower() if run.lease is None else run.lease,
                approved_ranks=worlds_of(run.lock.recipe),
            ),
            reporting=Reporting()
            if run.metrics is None
            else Reporting(gate=run.metrics, on_step=run.metrics.step),
            standins=standins,
            deliver=run.store.deliver,
        )
    if leads:
        _hand_over(run, trained)


def _load_stand_ins(
    recipe: PhaseRecipe,
) -> Callable[[WorkloadRun], AbstractContextManager[StandIns]] | None:
    how = recipe.collaboration
    place = None if how is None else KINDS[how.kind].stand_ins
    return None if place is None else load(place)


def _stand_ins(run: WorkloadRun) -> AbstractContextManager[StandIns | None]:
    """Layers whose products helpers make, connected as long as the block; none without helpers."""
    made = _load_stand_ins(run.recipe)
    return nullcontext() if made is None else made(run)


def _tally(run: WorkloadRun) -> None:
    """Tell the keeper what the records leave to learn, which no step comes before."""
    from sealtrain.training.census import census
    from sealtrain.training.inputs.learnable import counts_records

    recipe = run.recipe
    if not counts_records(recipe):
        return

    def tokenizer() -> Any:
        from sealtrain.training.models.base import build_tokenizer

        named = recipe.model.tokenizer
        return None if named is None else build_tokenizer(recipe, run.base, run.model)

    parts = [
        RecordParts(
            whole=tally.whole,
            truncated=tally.truncated,
            filtered=tally.filtered,
            empty=tally.empty,
        )
        for _, tally in census(recipe, run.sources, tokenizer, run.base)
    ]
    for at in range(0, len(parts), MOST_TALLIED):
        run.ask(TallyRecords(datasets=tuple(parts[at : at + MOST_TALLIED])))


def _hand_over(run: WorkloadRun, trained: Trained) -> None:
    """Give the keeper the model's files, each of which this process then lets go, and sign."""
    while trained.files:
        name, content = trained.files.popitem()
        run.store.deliver(name, len(content), (content,))
    run.ask(
        Sign(
            steps=trained.steps,
            samples=trained.samples_seen,
            tokens=trained.tokens,
            metrics=trained.metrics,
            counts=run.tally.counts,
            tokens_sha256=trained.tokens_sha256,
            spent=_read_spent(trained.privacy),
        )
    )


def _read_spent(privacy: dict[str, Any]) -> Spent | None:
    if privacy["dp"] != "sgd":
        return None
    return Spent(
        noise_multiplier=privacy["noise_multiplier"],
        epsilons=tuple(dataset["epsilon"] for dataset in privacy["datasets"]),
    )

"""``dpo``: learning from preferences with TRL's ``DPOTrainer``, ``KTOTrainer``, ``ORPOTrainer``.

Full weights or an adapter. DPO, IPO and KTO compare with a reference: the model as it was before
training, which with an adapter is the model without it. ORPO needs none.

On the sealed test split, by the *implicit reward* of an answer (``beta`` times how much likelier it
became against the reference; with ORPO ``beta`` times its mean log probability):

1. ``reward_accuracy``: share of pairs whose chosen answer has the higher reward. KTO's records are
   no pairs; there it is the share among all pairs of a desirable and an undesirable record.
2. ``reward_margin``: mean reward of chosen answers less that of rejected ones.
3. ``eval_loss``: the loss of training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.inputs.preferences import (
    InOneGo,
    batches,
    leave_equal_pairs_out,
    own_arguments,
    preference_rows,
)
from sealtrain.training.measuring import train_and_measure
from sealtrain.training.models.adapters import adapter_config
from sealtrain.training.models.base import build_causal_model, build_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sealtrain.recipe.phases.dpo import DpoRecipe
    from sealtrain.training.context import TrainingContext

Batch = dict[str, Any]


def train(work: TrainingContext[DpoRecipe]) -> PhaseResult:
    """Train and evaluate."""
    recipe = work.recipe
    tokenizer = build_tokenizer(recipe, work.base_dir)
    rows, test_rows = preference_rows(work, tokenizer)
    callback = RunCallback(work.context)
    method = _METHODS[recipe.trainer.kind]
    trainer = method.build(
        work,
        model=build_causal_model(work.recipe, work.base_dir, tokenizer),
        train_dataset=rows,
        eval_dataset=test_rows,
        processing_class=tokenizer,
        peft_config=None if recipe.peft is None else adapter_config(recipe.peft, "CAUSAL_LM"),
        callbacks=[callback],
    )

    def evaluate(model: Any) -> dict[str, float]:
        if method.fused:
            _fuse_head(model)
        return _measure(trainer, model, method)

    model, metrics = train_and_measure(work, trainer, None if test_rows is None else evaluate)
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=callback)


def _settings(work: TrainingContext[DpoRecipe]) -> dict[str, Any]:
    arguments = work.recipe.trainer
    settings = trainer_arguments(arguments, work.scratch) | own_arguments(arguments)
    return settings | work.machinery.arguments()


def _reference(
    work: TrainingContext[DpoRecipe], tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel | None:
    """The model as it is before training; an adapter can be switched off instead."""
    return (
        None
        if work.recipe.peft is not None
        else build_causal_model(work.recipe, work.base_dir, tokenizer)
    )


def _dpo(work: TrainingContext[DpoRecipe], **given: Any) -> Any:
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    reference = _reference(work, given["processing_class"])
    trainer: Any = work.machinery.trainer(DPOTrainer)(
        args=DPOConfig(**_settings(work)), ref_model=reference, **given
    )
    leave_equal_pairs_out(trainer, work.recipe)
    return trainer


def _kto(work: TrainingContext[DpoRecipe], **given: Any) -> Any:
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.kto_trainer import KTOTrainer

    reference = _reference(work, given["processing_class"])
    trainer = work.machinery.trainer(KTOTrainer)
    return trainer(args=KTOConfig(**_settings(work)), ref_model=reference, **given)


def _orpo(work: TrainingContext[DpoRecipe], **given: Any) -> Any:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    given["train_dataset"] = InOneGo(given["train_dataset"])
    if given["eval_dataset"] is not None:
        given["eval_dataset"] = InOneGo(given["eval_dataset"])
    settings = _settings(work) | {"remove_unused_columns": False}
    del settings["loss_type"]
    trainer: Any = work.machinery.trainer(ORPOTrainer)(args=ORPOConfig(**settings), **given)
    # A prompt that fills max_length leaves no answer, whose mean log probability would be 0 / 0.
    trainer.train_dataset = trainer.train_dataset.rows.filter(_has_answers)
    if trainer.eval_dataset is not None:
        trainer.eval_dataset = trainer.eval_dataset.rows.filter(_has_answers)
    trainer.data_collator = _count_tokens(trainer.data_collator)
    return trainer


def _has_answers(row: Batch) -> bool:
    labels = (row["chosen_labels"], row["rejected_labels"])
    return all(any(token != -100 for token in label) for label in labels)


def _count_tokens(collate: Callable[[list[Batch]], Batch]) -> Callable[[list[Batch]], Batch]:
    """Batches that also carry the field by which the trainer counts tokens."""
    import torch

    def collate_pairs(rows: list[Batch]) -> Batch:
        batch = collate(rows)
        for name in ("input_ids", "attention_mask"):
            pair = [batch[f"{side}_{name}"].flatten() for side in ("chosen", "rejected")]
            batch[name] = torch.cat(pair)
        return batch

    return collate_pairs


def _fuse_head(model: Any) -> None:
    """Add TRL's head, which gives log probabilities, to a model that was put together again."""
    from trl.trainer.utils import add_fused_lm_head

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "forward" not in vars(base):
        outputs = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
        add_fused_lm_head(base, outputs=outputs)


def _measure(trainer: Any, model: Any, method: _Method) -> dict[str, float]:
    import torch

    model = trainer.accelerator.unwrap_model(model)
    count, loss_sum = 0, 0.0
    chosen: list[Any] = []
    rejected: list[Any] = []
    with trainer.compute_loss_context_manager():
        for rows, batch in batches(trainer):
            better, worse = method.rewards(trainer, model, batch)
            chosen.append(better)
            rejected.append(worse)
            loss_sum += rows * float(method.loss(trainer, model, batch))
            count += rows
    if not count:
        return {}
    metrics = {"eval_loss": loss_sum / count}
    good, bad = torch.cat(chosen), torch.cat(rejected)
    if len(good) and len(bad):
        metrics["reward_accuracy"] = method.accuracy(good, bad)
        metrics["reward_margin"] = float(good.mean() - bad.mean())
    return metrics


def _pair_rewards(trainer: Any, model: Any, batch: Batch) -> tuple[Any, Any]:
    chosen, rejected = _implicit_rewards(trainer, model, batch).chunk(2)
    return chosen, rejected


def _reward_labelled(trainer: Any, model: Any, batch: Batch) -> tuple[Any, Any]:
    rewards, desirable = _implicit_rewards(trainer, model, batch), batch["label"].bool()
    return rewards[desirable], rewards[~desirable]


def _odds_rewards(trainer: Any, model: Any, batch: Batch) -> tuple[Any, Any]:
    chosen, rejected = trainer.concatenated_forward(model, batch)[:2]
    return trainer.beta * chosen.float(), trainer.beta * rejected.float()


def _implicit_rewards(trainer: Any, model: Any, batch: Batch) -> Any:
    """``beta`` times the log ratio of model and reference, float32 (answers,)."""
    learned = _log_probability(model, batch)
    if trainer.ref_model is not None:
        before = _log_probability(trainer.ref_model, batch)
    else:
        with model.disable_adapter():
            before = _log_probability(model, batch)
    return trainer.beta * (learned - before)


def _log_probability(model: Any, batch: Batch) -> Any:
    """Log probability of each answer given its prompt, float32 (answers,)."""
    ids = batch["input_ids"]
    logits = model(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False).logits
    # An adapter of virtual tokens puts them before the others.
    logits = logits[:, -ids.shape[1] : -1].float()
    each = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (each * batch["completion_mask"][:, 1:]).sum(1)


def _loss(trainer: Any, model: Any, batch: Batch) -> Any:
    loss = trainer.compute_loss(model, batch)
    trainer._metrics["eval"].clear()  # the trainer collects them for its own log
    return loss


def _odds_loss(trainer: Any, model: Any, batch: Batch) -> Any:
    # compute_loss would count this batch as a training batch.
    return trainer.get_batch_loss_metrics(model, batch, train_eval="eval")[0]


def _share_of_pairs(chosen: Any, rejected: Any) -> float:
    return float((chosen > rejected).float().mean())


def _share_of_all_pairs(desirable: Any, undesirable: Any) -> float:
    import torch

    lower = torch.searchsorted(undesirable.sort().values, desirable)
    return float(lower.double().mean()) / len(undesirable)


class _Method(NamedTuple):
    """A method of learning from preferences."""

    build: Callable[..., Any]
    rewards: Callable[[Any, Any, Batch], tuple[Any, Any]]
    loss: Callable[[Any, Any, Batch], Any]
    accuracy: Callable[[Any, Any], float]
    fused: bool = True


_METHODS = {
    "dpo": _Method(_dpo, _pair_rewards, _loss, _share_of_pairs),
    "kto": _Method(_kto, _reward_labelled, _loss, _share_of_all_pairs),
    "orpo": _Method(_orpo, _odds_rewards, _odds_loss, _share_of_pairs, False),
}

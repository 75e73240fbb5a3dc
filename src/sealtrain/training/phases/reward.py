"""``reward``: a model that scores answers, with TRL's ``RewardTrainer``.

A classifier with one output, trained so that it scores the chosen of two answers higher. The
result loads with Transformers' ``AutoModelForSequenceClassification``; an adapter after it is put
on its base or merged into it.

On the sealed test split: ``reward_accuracy``, the share of pairs whose chosen answer scores higher;
``reward_margin``, the mean difference of the two scores; ``eval_loss``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.inputs.preferences import (
    batches,
    leave_equal_pairs_out,
    own_arguments,
    preference_rows,
)
from sealtrain.training.measuring import train_and_measure
from sealtrain.training.models.adapters import adapter_config
from sealtrain.training.models.base import (
    build_model,
    build_tokenizer,
    check_vocabulary,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.phases.reward import RewardRecipe
    from sealtrain.training.context import TrainingContext


def train(work: TrainingContext[RewardRecipe]) -> PhaseResult:
    """Train and evaluate."""
    import torch
    from accelerate.utils import convert_to_fp32
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    recipe = work.recipe
    tokenizer = build_tokenizer(recipe, work.base_dir)
    _end_with(tokenizer, recipe.trainer.eos_token)
    rows, test_rows = preference_rows(work, tokenizer)
    model = build_model(
        recipe,
        work.base_dir,
        "AutoModelForSequenceClassification",
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    check_vocabulary(model, tokenizer)
    callback = RunCallback(work.context)

    class Trainer(RewardTrainer):
        """Takes differences of scores in float32, whatever a backend computes them in."""

        def compute_loss(self, model: Any, *words: Any, **named: Any) -> Any:
            def scores(**inputs: Any) -> Any:
                return convert_to_fp32(model(**inputs))

            return super().compute_loss(scores, *words, **named)  # type: ignore[no-untyped-call]

    trainer = work.machinery.trainer(Trainer)(
        model=model,
        args=RewardConfig(
            **trainer_arguments(recipe.trainer, work.scratch)
            | own_arguments(recipe.trainer)
            | work.machinery.arguments()
        ),
        train_dataset=rows,
        eval_dataset=test_rows,
        processing_class=tokenizer,
        peft_config=None if recipe.peft is None else adapter_config(recipe.peft, "SEQ_CLS"),
        callbacks=[callback],
    )
    leave_equal_pairs_out(trainer, recipe)

    def evaluate(model: Any) -> dict[str, float]:
        # A model that was shared out comes back without the trainer's wrapping, which computes so.
        with torch.autocast(model.device.type, torch.bfloat16, enabled=recipe.trainer.bf16):
            return _measure(trainer, model)

    trained, metrics = train_and_measure(work, trainer, None if test_rows is None else evaluate)
    return PhaseResult(model=trained, tokenizer=tokenizer, metrics=metrics, counts=callback)


def _end_with(tokenizer: PreTrainedTokenizerBase, token: str | None) -> None:
    """Let texts end with ``token`` if the recipe names it: an encoder's tokenizer has none."""
    if token is None:
        return
    if token not in tokenizer.get_vocab():
        raise ModelInvalid(
            "the tokenizer does not know the recipe's eos_token",
            check="trainer.eos_token",
            got=token,
            hint="name a token of its vocabulary, such as [SEP]",
        )
    tokenizer.eos_token = token


def _measure(trainer: Any, model: Any) -> dict[str, float]:
    import torch

    differences, losses = [], []
    with trainer.compute_loss_context_manager():
        for rows, batch in batches(trainer):
            loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
            trainer._metrics["eval"].clear()  # it collects them for a log of its own
            chosen, rejected = outputs.logits.float().squeeze(-1).chunk(2)
            differences.append(chosen - rejected)
            losses.append(rows * float(loss))
    if not differences:
        return {}
    difference = torch.cat(differences)
    return {
        "reward_accuracy": float((difference > 0).float().mean()),
        "reward_margin": float(difference.mean()),
        "eval_loss": sum(losses) / len(difference),
    }

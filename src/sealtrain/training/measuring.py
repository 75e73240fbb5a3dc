"""The common end of the phases: run the trainer, then measure on the sealed test split.

A metric also stands in the table of ``recipe.metricnames``, or no release policy may name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.conversations import read_rows
from sealtrain.training.basefiles import base_folder
from sealtrain.training.checkpoints.randomness import pause_training
from sealtrain.training.data.stream import read_all
from sealtrain.training.distributed.agreement import by_itself, deal_pieces
from sealtrain.training.distributed.ranks import place
from sealtrain.training.models.adapters import virtual_tokens
from sealtrain.training.models.merging import merges_while_read

if TYPE_CHECKING:
    import torch

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.checkpoints.run_context import Evaluation
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.distributed.shared_model import SharedModel

Records = list[dict[str, Any]]


def train_and_measure(
    work: TrainingContext[PhaseRecipe],
    trainer: Any,
    evaluation: Evaluation | None,
    *,
    goes_on: bool = False,
) -> tuple[Any, dict[str, float]]:
    """Run a Hugging Face trainer to its end.

    Args:
        work: Gets ``evaluation``, for use during training; holds the stand-ins for layers.
        trainer: Ready to train.
        evaluation: Measures on the test split, ``None`` without test records.
        goes_on: The phase reads the model's weights afterwards, so rank 0 gets all of them.

    Returns:
        Trained model without the trainer's wrapping, and its final metrics; where ranks share the
        model out its outline, and its weights stay with them (``work.shared``). Ranks other than
        the first get neither.
    """
    from transformers import PrinterCallback, ProgressCallback

    for prints in (PrinterCallback, ProgressCallback):  # one of them, by ``disable_tqdm``
        trainer.remove_callback(prints)
    if evaluation is not None:
        work.evaluation = evaluation
    if work.standins is not None:
        work.standins.put_in(trainer.model)
    trainer.train()
    reads_parts = work.machinery.shares_out and not goes_on
    if reads_parts and _is_read_in_parts(work, trainer.model):
        work.shared = work.machinery.share_model(trainer)
        return _measure_together(work.shared, evaluation)
    model = work.machinery.whole(trainer)
    if model is not None:
        trainer.model = model  # a loss may also compute with the trainer's, which was shared out
    if evaluation is None or model is None:
        return model, {}
    with by_itself(trainer), pause_training(model):
        return model, evaluation(model)


def _is_read_in_parts(work: TrainingContext[PhaseRecipe], model: Any) -> bool:
    """Whether nothing but the delivery reads the weights once they are measured.

    A merge is made while the weights are read.
    """
    if getattr(work.recipe, "audit", None) is not None or work.standins is not None:
        return False
    peft = work.recipe.peft
    if peft is None or not peft.merge:
        return peft is None or peft.changes_weights
    return merges_while_read(
        model, base_folder(work.recipe, work.base_dir), work.recipe.model.dtype
    )


def _measure_together(
    shared: SharedModel, evaluation: Evaluation | None
) -> tuple[Any, dict[str, float]]:
    """Measure in all ranks at once, as during training: each layer needs the parts of all."""
    measured = {}
    if evaluation is not None:
        with pause_training(shared.model):
            measured = evaluation(shared.model)
    return (shared.outline, measured) if place().leads else (None, {})


def test_records(work: TrainingContext[PhaseRecipe]) -> Iterator[Records]:
    """Every test record once, ``per_device_eval_batch_size`` at a time."""
    size = work.recipe.trainer.per_device_eval_batch_size
    for batch in read_all(work.test_sources, work.recipe.columns.names):
        for at in range(0, batch.num_rows, size):
            yield read_rows(batch.slice(at, size))


def classifier_answers(
    work: TrainingContext[PhaseRecipe],
    model: Any,
    encode: Callable[[Records], dict[str, Any]],
    *,
    together: bool = False,
) -> tuple[list[int], list[Any]]:
    """Label of every test record, and logits float32 (batch, labels) of every batch.

    Args:
        work: Has the records.
        model: In evaluation mode.
        encode: Turns records into tensors, ``labels`` among them.
        together: All ranks are here and share the batches; else this one does all.
    """
    import torch

    def answer(_number: int, records: Records) -> tuple[list[int], Any]:
        batch = encode(records)
        labels: list[int] = batch.pop("labels").tolist()
        inputs = {name: value.to(model.device) for name, value in batch.items()}
        return labels, model(**inputs).logits.float().cpu().numpy()

    with torch.no_grad():
        if together:
            done = deal_pieces(test_records(work), answer)
        else:
            done = [answer(0, records) for records in test_records(work)]
    truth = [label for labels, _ in done for label in labels]
    return truth, [logits for _, logits in done]


def completion_metrics(
    model: Any,
    batches: Iterable[tuple[Mapping[str, torch.Tensor], torch.Tensor, list[str]]],
    *,
    skip: int = 0,
) -> dict[str, float]:
    """How well a model continues prompts, each record weighing the same.

    Args:
        model: A causal language model in evaluation mode.
        batches: Inputs; labels int64 (records, tokens), -100 at positions without a loss; and the
            completions as text, none where only the loss is wanted.
        skip: Positions that an adapter puts before the input.

    Returns:
        ``eval_loss``; with completions also ``accuracy``, the share of records whose every token is
        the model's first choice, and ``majority``, the share of the commonest completion.
    """
    import torch

    right = total = 0
    loss_sum = 0.0
    answers: Counter[str] = Counter()
    with torch.no_grad():
        for inputs, labels, words in batches:
            answers.update(word.strip() for word in words)
            logits = model(**inputs, use_cache=False).logits[:, skip:-1]
            wanted = labels[:, 1:]
            counted = wanted != -100
            right += int(((logits.argmax(-1) == wanted) | ~counted).all(dim=1).sum())
            total += len(labels)
            losses = torch.nn.functional.cross_entropy(
                logits.float().transpose(1, 2), wanted, ignore_index=-100, reduction="none"
            )
            loss_sum += float((losses.sum(1) / counted.sum(1).clamp(min=1)).sum())
    if not total:
        return {}
    if not answers:
        return {"eval_loss": loss_sum / total}
    return {
        "accuracy": right / total,
        "eval_loss": loss_sum / total,
        "majority": answers.most_common(1)[0][1] / total,
    }


def mean_loss(trainer: Any, rows: Iterable[dict[str, Any]], model: Any) -> dict[str, float]:
    """Nats a token over the tokens of test rows that training would learn.

    Args:
        trainer: Batches rows; a Hugging Face trainer of causal language models.
        rows: As its ``eval_dataset`` has them.
        model: In evaluation mode.

    Returns:
        ``eval_loss``; an empty mapping without tokens.
    """
    import torch

    nats, tokens = 0.0, 0
    left = iter(rows)
    with torch.no_grad():
        while chunk := list(islice(left, trainer.args.per_device_eval_batch_size)):
            batch = {
                name: value.to(trainer.args.device)
                for name, value in trainer.data_collator(chunk).items()
                if hasattr(value, "to")
            }
            wanted = batch.pop("labels")[:, 1:]
            logits = model(**batch, use_cache=False).logits[:, virtual_tokens(model) : -1]
            nats += float(
                torch.nn.functional.cross_entropy(
                    logits.float().transpose(1, 2), wanted, ignore_index=-100, reduction="sum"
                )
            )
            tokens += int((wanted != -100).sum())
    return {"eval_loss": nats / tokens} if tokens else {}

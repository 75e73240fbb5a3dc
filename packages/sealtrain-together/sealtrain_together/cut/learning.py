"""How the back of a cut model is trained in the server's guest: a phase like any other.

Records come from clients as activations; the stream orders them, the same for any number of
clients and any time they take. Trained by Hugging Face's ``Trainer`` with the recipe's settings;
on the test split a classifier gets the metrics of phase ``classify``, a language model those of
``sft`` (``training.measuring``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.data.hugging import Positioned, as_iterable_dataset
from sealtrain.training.data.stream import read_all
from sealtrain.training.measuring import completion_metrics, train_and_measure
from sealtrain.training.models.sparse import sparse_files
from sealtrain.training.scores import measure, softmax
from sealtrain_together.cut.activations import COLUMNS, Expected, Row, collate, row_of
from sealtrain_together.cut.back_model import adapt_back, build_back, merge_whole, with_sparse
from sealtrain_together.cut.cut import Back
from sealtrain_together.cut.front import expect_messages

if TYPE_CHECKING:
    from sealtrain.recipe.adapters import Lora
    from sealtrain.recipe.collaborations.cut import Cut
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.context import TrainingContext

PROBE_BATCHES: Final = 4
"""Batches whose gradient says which entries train."""
_TASKS: Final = {"classify": "SEQ_CLS", "sft": "CAUSAL_LM"}
_NAMES: Final = {name: name for name in COLUMNS}


def expect_by_back(recipe: Any, back: Back) -> Expected:
    """What clients' messages must hold for a back."""
    rows = back.model.get_input_embeddings().weight.shape[0]
    return expect_messages(recipe, width=back.width, vocabulary=int(rows))


class Learning:
    """Trains one back. Give ``train`` to ``training.run.train`` in place of the phase's own.

    Attributes:
        expected: What clients' messages must hold.
        entries: How many entries of frozen weights train, once training has begun.

    Args:
        recipe: Of kind ``cut``.
        base_dir: Folder that the recipe's paths start from.

    Raises:
        ModelInvalid: The model cannot be built, or not be cut there.
    """

    def __init__(self, recipe: Any, base_dir: Path) -> None:
        self._back, self._tokenizer = build_back(recipe, base_dir)
        self.expected = expect_by_back(recipe, self._back)
        self.entries = 0

    def train(self, work: TrainingContext[PhaseRecipe]) -> PhaseResult:
        """Train and evaluate.

        Args:
            work: Its sources are datasets of activations (``received.RemoteRecords``).

        Returns:
            The model is the back with its adapter, or with ``peft.merge`` the whole model. Trained
            entries lie beside, as their own file.
        """
        from transformers import Trainer, TrainingArguments

        recipe, back = work.recipe, self._back
        # Recipes of this kind have no others (``Cut.misfit``).
        lora, cut = cast("Lora", recipe.peft), cast("Cut", recipe.collaboration)
        # As every model of this recipe: where a folder's head is new, the seed decided it.
        torch.manual_seed(recipe.trainer.seed)
        model = adapt_back(back, lora, _TASKS[recipe.phase])
        stream = work.training_stream(_NAMES)
        probes = self._probes(work, stream) if work.context.resume is None else ()
        self.entries = with_sparse(model, back, cut.spf_share, batches=probes)
        callback = RunCallback(work.context)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                **trainer_arguments(recipe.trainer, work.scratch)
                | {"include_num_input_tokens_seen": "no", "remove_unused_columns": False}
            ),
            train_dataset=as_iterable_dataset(stream),
            data_collator=self._batch,
            callbacks=[callback],
        )
        model, metrics = train_and_measure(
            work, trainer, (lambda model: self._measure(work, model)) if _has_tests(work) else None
        )
        if lora.merge:
            model = merge_whole(model, back)
        else:
            work.beside |= sparse_files(model)
        return PhaseResult(model=model, tokenizer=self._tokenizer, metrics=metrics, counts=callback)

    def _probes(
        self, work: TrainingContext[PhaseRecipe], stream: Positioned
    ) -> Iterator[dict[str, torch.Tensor]]:
        size = work.recipe.trainer.per_device_train_batch_size
        rows = list(stream.stream.rows(0, PROBE_BATCHES * size))
        for start in range(0, len(rows), size):
            yield self._place(self._batch(rows[start : start + size]))

    def _batch(self, records: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        dtype = next(self._back.model.parameters()).dtype
        rows: list[Row] = [row_of(record, self.expected) for record in records]
        return collate(rows, dtype)

    def _place(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        device = next(self._back.model.parameters()).device
        return {name: value.to(device) for name, value in batch.items()}

    def _test_batches(
        self, work: TrainingContext[PhaseRecipe]
    ) -> Iterator[dict[str, torch.Tensor]]:
        size = work.recipe.trainer.per_device_eval_batch_size
        for batch in read_all(work.test_sources, COLUMNS):
            for at in range(0, batch.num_rows, size):
                yield self._place(self._batch(batch.slice(at, size).to_pylist()))

    def _measure(self, work: TrainingContext[PhaseRecipe], model: Any) -> dict[str, float]:
        if self.expected.per_token:
            return completion_metrics(model, self._answers(work))
        import numpy as np

        truth: list[int] = []
        logits: list[Any] = []
        with torch.no_grad():
            for batch in self._test_batches(work):
                truth += batch.pop("labels").tolist()
                logits.append(model(**batch).logits.float().cpu().numpy())
        return measure(np.asarray(truth), softmax(np.concatenate(logits)))

    def _answers(
        self, work: TrainingContext[PhaseRecipe]
    ) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor, list[str]]]:
        paired = work.recipe.columns.kind == "prompt-completion"
        for batch in self._test_batches(work):
            labels = batch.pop("labels")
            words = [self._describe(row) for row in labels] if paired else []
            yield batch, labels, words

    def _describe(self, labels: torch.Tensor) -> str:
        text = self._tokenizer.decode(labels[labels >= 0], skip_special_tokens=True)
        return text if isinstance(text, str) else text[0]


def _has_tests(work: TrainingContext[PhaseRecipe]) -> bool:
    return bool(work.test_sources)

"""``embed``: contrastive training of a text encoder with Sentence Transformers.

Every other positive of a batch is a negative of an anchor; hard negatives can be given besides.
Several ranks gather their embeddings, so that a batch is that of all ranks together.

On the sealed test split, where every distinct positive and negative is a candidate for each anchor:
``recall_at_1``, ``mrr_at_10`` (mean of 1 / rank of the first right one, 0 beyond the tenth) and
``cosine_margin`` (mean difference between the anchor's similarity to its own positive and to the
nearest wrong candidate).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.sealing.errors import SchemaMismatch
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.data.hugging import as_iterable_dataset
from sealtrain.training.data.stream import read_all
from sealtrain.training.distributed.ranks import place
from sealtrain.training.finite import require_finite_answers
from sealtrain.training.inputs.learnable import has_texts
from sealtrain.training.measuring import train_and_measure
from sealtrain.training.models.adapters import adapt
from sealtrain.training.models.base import build_model, build_tokenizer, check_vocabulary
from sealtrain.training.models.encoders import build_encoder, encoder_files

if TYPE_CHECKING:
    import pyarrow as pa
    from sentence_transformers import SentenceTransformer

    from sealtrain.recipe.phases.embed import EmbedRecipe
    from sealtrain.training.context import TrainingContext

_ANCHORS_AT_A_TIME = 1024


def train(work: TrainingContext[EmbedRecipe]) -> PhaseResult:
    """Train and evaluate.

    ``work.beside`` gets the files that make the model an encoder.

    Raises:
        SchemaMismatch: A column holds no text.
    """
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    class QuietEmbeddingTrainer(SentenceTransformerTrainer):
        """Writes no model card: it would collect training texts and put them into a README."""

        def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
            """Leave the callback out."""

        def create_model_card(self, *args: Any, **settings: Any) -> None:
            """Write none."""

    recipe = work.recipe
    tokenizer = build_tokenizer(recipe, work.base_dir)
    model: Any = build_model(recipe, work.base_dir, "AutoModel")
    check_vocabulary(model, tokenizer)
    tokenizer.model_max_length = recipe.trainer.max_length
    if recipe.peft is not None:
        model = adapt(
            model,
            recipe.peft,
            "FEATURE_EXTRACTION",
            activation_checkpointing=recipe.trainer.activation_checkpointing,
        )
    encoder = build_encoder(recipe, work.base_dir, model, tokenizer)
    columns = recipe.columns
    # The loss takes columns by their order, not by their names.
    order = [getattr(columns, name) for name in type(columns).model_fields]
    positioned = work.training_stream({name: name for name in order if name is not None})
    _refuse_other_than_text(positioned.stream.schema)
    callback = RunCallback(work.context)
    trainer = work.machinery.trainer(QuietEmbeddingTrainer)(
        model=encoder,
        args=SentenceTransformerTrainingArguments(
            **trainer_arguments(recipe.trainer, work.scratch)
            | {"include_num_input_tokens_seen": "no"}
            | work.machinery.arguments()
        ),
        train_dataset=as_iterable_dataset(positioned).filter(
            partial(has_texts, names=tuple(positioned.stream.schema.names))
        ),
        loss=_loss(encoder, recipe.trainer),
        callbacks=[callback],
    )

    def evaluate(encoder: Any) -> dict[str, float]:
        return _evaluate(work, encoder)

    measure = evaluate if work.test_sources else None
    encoder, metrics = train_and_measure(work, trainer, measure, goes_on=True)
    if encoder is None:
        return PhaseResult(tokenizer=tokenizer, metrics=metrics, counts=callback)
    work.beside |= encoder_files(encoder)
    return PhaseResult(
        model=encoder[0].model, tokenizer=tokenizer, metrics=metrics, counts=callback
    )


def _refuse_other_than_text(schema: pa.Schema) -> None:
    import pyarrow as pa

    for field in schema:
        if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            raise SchemaMismatch(
                f"column {field.name} holds no text",
                check="columns",
                column=field.name,
                got=field.type,
                expected="text",
            )


def _loss(encoder: SentenceTransformer, arguments: Any) -> Any:
    from sentence_transformers.sentence_transformer import losses

    gather = place().world > 1
    if arguments.mini_batch_size is None:
        loss: Any = losses.MultipleNegativesRankingLoss(
            encoder, scale=arguments.scale, gather_across_devices=gather
        )
    else:
        loss = losses.CachedMultipleNegativesRankingLoss(
            encoder,
            scale=arguments.scale,
            mini_batch_size=arguments.mini_batch_size,
            gather_across_devices=gather,
        )
    if arguments.matryoshka_dims is None:
        return loss
    return losses.MatryoshkaLoss(encoder, loss, list(arguments.matryoshka_dims))


def _evaluate(work: TrainingContext[EmbedRecipe], encoder: SentenceTransformer) -> dict[str, float]:
    import torch

    anchors: list[str] = []
    right: dict[str, set[int]] = {}
    own: list[int] = []
    candidates: dict[str, int] = {}
    columns = work.recipe.columns
    for batch in read_all(work.test_sources, columns.names):
        for record in batch.to_pylist():
            anchor, positive = record[columns.anchor], record[columns.positive]
            place = candidates.setdefault(positive, len(candidates))
            if columns.negative is not None:
                candidates.setdefault(record[columns.negative], len(candidates))
            anchors.append(anchor)
            own.append(place)
            right.setdefault(anchor, set()).add(place)
    if not anchors or len(candidates) < 2:
        return {}
    size = work.recipe.trainer.per_device_eval_batch_size
    corpus = _encode(encoder, list(candidates), size)
    ranks, margins = [], []
    for at in range(0, len(anchors), _ANCHORS_AT_A_TIME):
        some = anchors[at : at + _ANCHORS_AT_A_TIME]
        near = _encode(encoder, some, size) @ corpus.T
        for row, anchor, place in zip(near, some, own[at:], strict=False):
            wrong = torch.ones(len(candidates), dtype=torch.bool)
            wrong[list(right[anchor])] = False
            if not wrong.any():
                continue
            best, nearest = row[~wrong].max(), row[wrong].max()
            ranks.append(1 + int((row[wrong] >= best).sum()))
            margins.append(float(row[place] - nearest))
    if not ranks:
        return {}
    return {
        "recall_at_1": sum(rank == 1 for rank in ranks) / len(ranks),
        "mrr_at_10": sum(1 / rank for rank in ranks if rank <= 10) / len(ranks),
        "cosine_margin": sum(margins) / len(margins),
    }


def _encode(encoder: SentenceTransformer, texts: list[str], size: int) -> Any:
    """Embeddings of length 1, float32 (texts, width), on the CPU. Raises ``TrainingDiverged``."""
    import torch

    found = []
    with torch.no_grad():
        for at in range(0, len(texts), size):
            batch = encoder.preprocess(texts[at : at + size])
            features = {
                name: value.to(encoder.device) if hasattr(value, "to") else value
                for name, value in batch.items()
            }
            embedded = encoder(features)["sentence_embedding"].float()
            require_finite_answers(embedded, "embeddings")
            found.append(torch.nn.functional.normalize(embedded, dim=-1).cpu())
    return torch.cat(found)

"""``cpt``: continued pre-training of a causal language model on blocks full of tokens.

Text is turned into tokens here, in the guest; token shards arrive as tokens. Documents follow one
another with the end token between them, and attention sees all of a block, as in pre-training.

On the sealed test split, read in order: ``eval_loss`` in nats a token, ``perplexity``, and for text
``bits_per_byte``, which can be compared between tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.context import PhaseResult
from sealtrain.training.data.hugging import once
from sealtrain.training.data.packing import (
    PackedStream,
    text_encoder,
    token_encoder,
    windows,
)
from sealtrain.training.data.stream import read_all
from sealtrain.training.distributed.dealing import share_rows
from sealtrain.training.distributed.ranks import place
from sealtrain.training.measuring import train_and_measure
from sealtrain.training.models.adapters import adapt, virtual_tokens
from sealtrain.training.models.base import (
    adopt_tokens,
    build_model,
    build_tokenizer,
    check_vocabulary,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.phases.cpt import CptRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.packing import Encoder

_COLUMN = "input"


def train(work: TrainingContext[CptRecipe]) -> PhaseResult:
    """Train and evaluate.

    Raises:
        SchemaMismatch, RecordInvalid, DataInvalid: The records hold no tokens of this vocabulary.
        ModelInvalid: The recipe appends an end token that the tokenizer does not have.
    """
    from transformers import Trainer, TrainingArguments

    recipe = work.recipe
    tokenizer = None if recipe.model.tokenizer is None else build_tokenizer(recipe, work.base_dir)
    model: Any = build_model(recipe, work.base_dir, "AutoModelForCausalLM")
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
        adopt_tokens(model, tokenizer)
    config = model.config
    cached, config.use_cache = config.use_cache, False
    packed: Any = work.feed
    encode: Encoder | None = None
    if packed is None:
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        packed, encode = _pack(work, vocabulary, tokenizer)
    if recipe.peft is not None:
        model = adapt(
            model,
            recipe.peft,
            "CAUSAL_LM",
            activation_checkpointing=recipe.trainer.activation_checkpointing,
        )
    work.context.stream = packed
    callback = RunCallback(work.context)
    trainer = work.machinery.trainer(Trainer)(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(recipe.trainer, work.scratch)
            | {"include_num_input_tokens_seen": "all", "remove_unused_columns": False}
            | work.machinery.arguments()
        ),
        train_dataset=packed,
        data_collator=_stack,
        callbacks=[callback],
    )

    evaluate = None if encode is None or not work.test_sources else partial(_evaluate, work, encode)
    model, metrics = train_and_measure(work, trainer, evaluate)
    config.use_cache = cached
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=callback)


def prepare_blocks(
    work: TrainingContext[CptRecipe], vocabulary: int, tokenizer: PreTrainedTokenizerBase | None
) -> Iterator[dict[str, Any]]:
    """Every whole block of one epoch, as the trainer collates it: ``input_ids``.

    Args:
        work: Of which no model is built.
        vocabulary: Tokens lie below.
        tokenizer: The recipe's; ``None`` where it names none.

    Raises:
        SchemaMismatch, RecordInvalid, ModelInvalid: As ``train``.
    """
    packed, _ = _pack(work, vocabulary, tokenizer)
    once(packed)
    return iter(packed)


def _pack(
    work: TrainingContext[CptRecipe], vocabulary: int, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PackedStream, Encoder]:
    """The training rows, and what makes tokens of a column."""
    (column,) = work.recipe.columns.names
    positioned = work.training_stream({column: _COLUMN})
    stream, trainer = positioned.stream, work.recipe.trainer
    encode = _encoder(work, stream.schema, vocabulary, tokenizer)
    packed = PackedStream(
        stream,
        _COLUMN,
        encode,
        trainer.block_size,
        digest=trainer.token_digest,
        together=share_rows if place().world > 1 else None,
    )
    return packed, encode


def _encoder(
    work: TrainingContext[CptRecipe],
    schema: pa.Schema,
    vocabulary: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Encoder:
    recipe = work.recipe
    end = None
    if recipe.appends_eos and tokenizer is not None:
        end = tokenizer.eos_token_id
        if end is None:
            raise ModelInvalid(
                "the tokenizer has no end token to put between records",
                check="tokenizer",
                hint="set tokenizer.eos_token and save it, or trainer.append_eos: false",
            )
    if recipe.columns.kind == "text":
        if tokenizer is None:
            raise ModelInvalid("the recipe names no tokenizer", check="tokenizer")
        return text_encoder(tokenizer, append_eos=recipe.appends_eos)
    return token_encoder(
        schema.field(_COLUMN).type,
        vocabulary=vocabulary,
        eos=end,
    )


def _stack(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Ids and labels int64 (batch, block_size)."""
    import numpy as np
    import torch

    ids = torch.from_numpy(np.stack([block["input_ids"] for block in blocks]))
    return {"input_ids": ids, "labels": ids.clone()}


def _evaluate(work: TrainingContext[CptRecipe], encode: Encoder, model: Any) -> dict[str, float]:
    import numpy as np
    import pyarrow.compute as pc
    import torch

    recipe = work.recipe
    (column,) = recipe.columns.names
    text = recipe.columns.kind == "text"
    nats, tokens, size = 0.0, 0, 0

    def documents() -> Iterator[Any]:
        nonlocal size
        for batch in read_all(work.test_sources, [column]):
            values = batch.column(column)
            size += int(pc.sum(pc.binary_length(values)).as_py() or 0) if text else 0
            yield from encode(values)

    with torch.no_grad():
        # All windows but the last have one length.
        for _, alike in groupby(windows(documents(), recipe.trainer.block_size), key=len):
            while batch := list(islice(alike, recipe.trainer.per_device_eval_batch_size)):
                ids = torch.from_numpy(np.stack(batch)).to(model.device)
                outputs = model(input_ids=ids, use_cache=False)
                logits = outputs.logits[:, virtual_tokens(model) : -1].float()
                wanted = ids[:, 1:]
                nats += float(
                    torch.nn.functional.cross_entropy(
                        logits.transpose(1, 2), wanted, reduction="sum"
                    )
                )
                tokens += wanted.numel()
    if not tokens:
        return {}
    metrics = {"eval_loss": nats / tokens, "perplexity": math.exp(min(nats / tokens, 700.0))}
    return metrics | ({"bits_per_byte": nats / math.log(2) / size} if size else {})

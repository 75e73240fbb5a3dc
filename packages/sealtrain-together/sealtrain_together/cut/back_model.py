"""The server's side of a cut model: the back half with what trains in it.

half, tokenizer = build_back(recipe, base_dir)
model = adapt_back(half, recipe.peft, "SEQ_CLS")
with_sparse(model, half, 0.02, batches=first_batches)
model(**collate(rows)).loss.backward()
files = back_files(model, tokenizer)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.model_files import model_files
from sealtrain.training.models.adapters import adapter_config
from sealtrain.training.models.base import build_causal_model, build_model, build_tokenizer
from sealtrain.training.models.sparse import fold, sparse_files
from sealtrain_together.cut.cut import Back
from sealtrain_together.cut.spf import Rule, back_linears, sparsify

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.adapters import Lora
    from sealtrain.recipe.schema import PhaseRecipe


def build_back(recipe: PhaseRecipe, base_dir: Path) -> tuple[Back, PreTrainedTokenizerBase]:
    """The back of a recipe's model, and the tokenizer that goes with the result.

    Args:
        recipe: Of kind ``cut``.
        base_dir: Folder that the recipe's paths start from.

    Raises:
        ModelInvalid: The model cannot be built, or not be cut there.
    """
    settings: Any = recipe.collaboration
    tokenizer = build_tokenizer(recipe, base_dir)
    if recipe.phase == "sft":
        model = build_causal_model(recipe, base_dir, tokenizer)
    else:
        labels: Any = recipe
        named: dict[str, Any] = {"num_labels": labels.num_labels}
        if labels.labels is not None:
            named["id2label"] = dict(enumerate(labels.labels))
            named["label2id"] = {name: number for number, name in enumerate(labels.labels)}
        model = build_model(
            recipe,
            base_dir,
            "AutoModelForSequenceClassification",
            pad_token_id=tokenizer.pad_token_id,
            **named,
        )
    return Back(model, settings.layers), tokenizer


def adapt_back(back: Back, lora: Lora, task_type: str) -> Any:
    """The back's model with a fresh adapter on the layers behind the cut.

    Args:
        lora: The recipe's ``peft``.
        task_type: PEFT's name of the task: ``CAUSAL_LM``, ``SEQ_CLS``.

    Raises:
        ModelInvalid: The adapter is for layers in front of the cut.
    """
    from peft import get_peft_model

    named = lora.layers_to_transform
    layers = back.numbers if named is None else list(named)
    if not set(layers) <= set(back.numbers):
        raise ModelInvalid(
            "the adapter is for layers that clients have",
            check="peft.layers_to_transform",
            got=sorted(set(layers) - set(back.numbers))[0],
            expected=f"{back.numbers[0]} to {back.numbers[-1]}",
        )
    config = adapter_config(lora, task_type)
    config.layers_to_transform = layers
    return get_peft_model(back.model, config)


def with_sparse(
    model: Any,
    back: Back,
    share: float,
    *,
    by: Rule = "gradient",
    batches: Iterable[Mapping[str, torch.Tensor]] = (),
) -> int:
    """Let a share of the entries of the back's frozen linear layers train beside the adapter.

    Args:
        model: From ``adapt_back``, or ``back.model``; its other weights in the layers then freeze.
        share: Of each layer's entries; 0 for none.
        by: Which ones (``spf.sparsify``).
        batches: Inputs with labels that decide it.

    Returns:
        How many entries train.
    """
    if not share:
        return 0
    if model is back.model:
        model.base_model.requires_grad_(False)
    return sparsify(model, back_linears(model, back), share, by=by, batches=batches)


def back_files(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, bytes]:
    """Files of what was trained: the adapter as PEFT writes it, and trained entries if any.

    The adapter loads onto the whole model; entries go into it with ``models.sparse.put_on``.
    """
    return model_files(model, tokenizer) | sparse_files(model)


def merge_whole(model: Any, back: Back) -> Any:
    """The whole model, front included, with adapter and entries merged in. Both are used up."""
    fold(model)
    if hasattr(model, "merge_and_unload"):
        model.merge_and_unload(safe_merge=True)
    return back.whole()

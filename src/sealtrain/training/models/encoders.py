"""Text encoders: a model from the recipe inside a ``SentenceTransformer``, and back into files.

Sentence Transformers loads models from folders that it finds by itself, and whenever it saves it
writes texts of the training data into a README. Here the model is built like any other, and its
files are built in memory; ``SentenceTransformer(folder)`` loads the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sentence_transformers.base.modules import InputModule

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.basefiles import base_folder
from sealtrain.training.devices import compute_device

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.phases.embed import EmbedRecipe

_KNOWN: Final = ("Transformer", "Pooling", "Normalize")
_OLD_MODES: Final = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
_NAMESPACE: Final = "sentence_transformers."


class TokenEncoder(InputModule):
    """First module of an encoder: from texts to an embedding of each token."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """Wrap a model.

        Args:
            model: A Transformers encoder or decoder without a head, or a PEFT model around it.
            tokenizer: Its tokenizer, which must have a padding token.
            max_length: Tokens read from a text.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_length

    def preprocess(self, inputs: Any, prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Ids and mask, int64 (texts, tokens)."""
        texts = [prompt + text for text in inputs] if prompt else list(inputs)
        tokenize: Any = self.tokenizer
        batch = tokenize(
            texts,
            padding=True,
            truncation=True,
            max_length=self.max_seq_length,
            return_tensors="pt",
        )
        return dict(batch)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add ``token_embeddings``, float (texts, tokens, width)."""
        read = ("input_ids", "attention_mask", "token_type_ids")
        outputs = self.model(**{name: features[name] for name in read if name in features})
        return {**features, "token_embeddings": outputs.last_hidden_state}

    def get_embedding_dimension(self) -> int:
        """Width of a token's embedding."""
        return int(self.model.config.hidden_size)

    def save(self, output_path: str, *args: Any, **_: Any) -> None:
        """Refuse to write the encoder in the clear."""
        raise ModelInvalid("an encoder in training is not written to a folder", check="model")


def build_encoder(
    recipe: EmbedRecipe, base_dir: Path, model: Any, tokenizer: PreTrainedTokenizerBase
) -> SentenceTransformer:
    """The whole encoder: tokens, pooling, and normalisation if wanted.

    Args:
        recipe: Says how to pool, or leaves it to the model folder.
        base_dir: Folder that the recipe's paths start from.
        model: The base, with its adapter if there is one.

    Raises:
        ModelInvalid: The folder has modules that are not known.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    found_pooling, found_normalize = _read_pooling(base_folder(recipe, base_dir))
    pooling = recipe.pooling or found_pooling or "mean"
    normalize = found_normalize if recipe.normalize is None else recipe.normalize
    tokens = TokenEncoder(model, tokenizer, recipe.trainer.max_length)
    modules = [tokens, Pooling(tokens.get_embedding_dimension(), pooling_mode=pooling)]
    if normalize is not False:
        modules.append(Normalize())
    return SentenceTransformer(
        modules=modules, device=compute_device(), similarity_fn_name="cosine"
    )


def encoder_files(encoder: SentenceTransformer) -> dict[str, bytes]:
    """Files that turn a folder with the model's own files into a ``SentenceTransformer``."""
    names = [type(module).__name__ for module in encoder]
    listed = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" if index else "",
            "type": f"{_NAMESPACE}models.{name if index else 'Transformer'}",
        }
        for index, name in enumerate(names)
    ]
    tokens: Any = encoder[0]
    pooling: Any = encoder[1]
    return {
        "modules.json": _json(listed),
        "sentence_bert_config.json": _json(
            {"max_seq_length": tokens.max_seq_length, "do_lower_case": False}
        ),
        "config_sentence_transformers.json": _json({"similarity_fn_name": "cosine"}),
        f"{listed[1]['path']}/config.json": _json(pooling.get_config_dict()),
    }


def _read_pooling(folder: Path | None) -> tuple[str | None, bool | None]:
    """Pooling and normalisation of a folder, ``None`` if it does not set them."""
    if folder is None or not (folder / "modules.json").is_file():
        return None, None
    listed = json.loads((folder / "modules.json").read_bytes())
    kinds = [str(module["type"]) for module in listed]
    names = [kind.rsplit(".", 1)[-1] for kind in kinds]
    if any(not kind.startswith(_NAMESPACE) for kind in kinds) or not set(names) <= set(_KNOWN):
        raise ModelInvalid(
            "the encoder has modules that are not known",
            check="modules.json",
            got=", ".join(names)[:200],
            expected=", ".join(_KNOWN),
        )
    if "Pooling" not in names:
        return None, "Normalize" in names
    path = folder / str(listed[names.index("Pooling")]["path"]) / "config.json"
    settings = json.loads(path.read_bytes())
    modes = [mode for key, mode in _OLD_MODES.items() if settings.get(key)]
    mode = settings.get("pooling_mode", modes[0] if len(modes) == 1 else None)
    if mode not in _OLD_MODES.values():
        raise ModelInvalid(
            "the encoder has an unknown pooling",
            check="modules.json",
            expected=", ".join(_OLD_MODES.values()),
            hint="set pooling in the recipe and leave modules.json out",
        )
    return mode, "Normalize" in names


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()

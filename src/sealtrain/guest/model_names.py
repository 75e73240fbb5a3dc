"""The names that files of a workload's model may have: a closed list (spec/workload-channel.md §6).

The manifest names every file, and so does the broker's public ledger. A name of the right form
could hold a record. So a workload chooses among names that owners know before they approve:

1. those that libraries of models write, as they stand in ``_FILES`` below ``_FOLDERS``;
2. those of the recipe's base model, of which licences go along;
3. those that stand in a script of the recipe as a text of its own.

Weights in parts are whole: their numbers say how many parts there are, and nothing else.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.filenames import clash, is_vocabulary, may_carry_code, portable_name
from sealtrain.sealing.trainedmodel import MAX_FILES
from sealtrain.training.errors import ModelNotReloaded

_WEIGHTS: Final = (
    r"model|adapter_model|pytorch_model|diffusion_pytorch_model|pytorch_lora_weights"
    r"|open_clip_model|sparse|head|value_head"
)
_SETTINGS: Final = (
    r"config|generation_config|adapter_config|base_files|modules|sentence_bert_config"
    r"|config_sentence_transformers|tokenizer|tokenizer_config|special_tokens_map|added_tokens"
    r"|vocab|chat_template|preprocessor_config|processor_config|video_preprocessor_config"
    r"|feature_extractor_config|open_clip_config|model_index|scheduler_config|config_head"
    r"|metrics|calibration"
)
_TEXTS: Final = (
    r"vocab\.txt|merges\.txt|tokenizer\.model|spiece\.model|sentencepiece\.bpe\.model|qwen\.tiktoken"
    r"|README\.md"
)
_FILES: Final = (
    rf"({_WEIGHTS})(-[0-9]{{5}}-of-[0-9]{{5}})?\.safetensors"
    rf"|({_WEIGHTS})\.safetensors\.index\.json|({_SETTINGS})\.json|{_TEXTS}"
)
_FOLDERS: Final = (
    r"[0-9]_(Transformer|Pooling|Normalize|Dense|LayerNorm|Dropout|CNN|LSTM|BoW|WordEmbeddings"
    r"|WordWeights|WeightedLayerPooling|StaticEmbedding|CLIPModel|Router|SpladePooling"
    r"|MLMTransformer|SparseAutoEncoder|SparseStaticEmbedding)"
    r"|unet|vae|transformer|text_encoder|text_encoder_2|tokenizer|tokenizer_2|scheduler"
    r"|feature_extractor|image_encoder|draft|teacher|student|default|reference"
)
_KNOWN: Final = re.compile(rf"(({_FOLDERS})/)?({_FILES})")
_PART: Final = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})(\.[a-z]+)")


class ModelNames:
    """What a workload's model may name its files."""

    def __init__(self, scripts: Mapping[str, str], base: Iterable[str] = ()) -> None:
        """Read the scripts.

        Args:
            scripts: Text of each script of the recipe, by path.
            base: Names of the files of the recipe's base model.
        """
        self._names = {*base}
        for path, text in scripts.items():
            if path.endswith(".py"):
                self._names.update(_texts_in(text))

    def has(self, name: str) -> bool:
        """Whether a file may have this name."""
        return name in self._names or _KNOWN.fullmatch(name) is not None

    def require(self, names: Iterable[str]) -> None:
        """Return if files may have these names.

        Raises:
            ModelNotReloaded: One may not. It is not quoted: it could hold a record.
        """
        if not all(map(self.has, names)):
            raise ModelNotReloaded(
                "a file of the model has a name that neither a library of models nor the recipe "
                "gives",
                check="file name",
                expected="a name that stands in a script as a text of its own",
                hint="write the file's name in the script, as it lies in the model's folder",
            )

    def are_whole(self, names: Iterable[str]) -> bool:
        """Whether all parts of weights are there, under the numbers of one count."""
        parts: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for name in names:
            found = None if name in self._names else _PART.fullmatch(name)
            if found is not None:
                stem, number, count, suffix = found.groups()
                parts[stem, suffix].append((int(number), int(count)))
        return all(
            sorted(found) == [(number, len(found)) for number in range(1, len(found) + 1)]
            for found in parts.values()
        )


def _texts_in(script: str) -> Iterable[str]:
    """Names among the texts of a script, also those behind a folder: ``f"{folder}/head.json"``."""
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.removeprefix("/")
            try:
                yield portable_name(name)
            except ValueError:
                continue


def problem_of_file(name: str, content: bytes, others: Collection[str]) -> str | None:
    """Why recipients would not open a file, or it has no place among the others.

    Args:
        content: What it holds; empty for weights.
        others: Names of the model's files so far.

    Returns:
        Words for a refusal, ``None`` for a good file.
    """
    from sealtrain.recipe.modelspec import refuse_foreign_code

    try:
        portable_name(name)
        if may_carry_code(name):
            return "can run code where a library loads it"
        if name.endswith(".json") and not is_vocabulary(name):
            refuse_foreign_code(parse_foreign(content))
    except ValueError:
        return "is not a plain file of a model"
    if len(others) >= MAX_FILES or name in others or clash([*others, name]) is not None:
        return "is one too many"
    return None

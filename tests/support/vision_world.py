"""Scikit-learn's handwritten digits as sealed images, and tiny recipes that learn from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sealing_world import sealed_folder
from training_world import LLAMA, OWNERS, TRAINER, document, releasing

from sealtrain.recipe.schema import PhaseRecipe, parse_recipe

LABELS = [str(number) for number in range(10)]
PROMPTS = ("Which digit?\n", "Read it: ")
RESNET = {
    "model_type": "resnet",
    "num_channels": 3,
    "embedding_size": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "layer_type": "basic",
    "downsample_in_first_stage": False,
}
TEXT = LLAMA | {"vocab_size": 264, "hidden_size": 32, "intermediate_size": 64}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
LLAVA = {
    "model_type": "llava",
    "vision_config": VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
    "text_config": TEXT,
    "vision_feature_select_strategy": "default",
    "vision_feature_layer": -2,
    "tie_word_embeddings": True,
}
IDEFICS = {
    "model_type": "idefics3",
    "vision_config": VISION,
    "text_config": TEXT,
    "scale_factor": 2,
    "tie_word_embeddings": True,
}
QWEN_TEXT = TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
GRID = {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN2 = {
    "model_type": "qwen2_vl",
    "vision_config": GRID
    | {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2},
    "text_config": QWEN_TEXT | {"model_type": "qwen2_vl_text"},
    "tie_word_embeddings": True,
}
QWEN25 = {
    "model_type": "qwen2_5_vl",
    "vision_config": GRID
    | {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}
    | {"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]},
    "text_config": QWEN_TEXT | {"model_type": "qwen2_5_vl_text"},
    "tie_word_embeddings": True,
}
QWEN3 = {
    "model_type": "qwen3_vl",
    "vision_config": GRID
    | {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}
    | {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    "text_config": QWEN_TEXT | {"model_type": "qwen3_vl_text", "head_dim": 16},
    "tie_word_embeddings": True,
}
AREA = {"min_area": 64, "max_area": 512}
MLLAMA = {
    "model_type": "mllama",
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
        "max_num_tiles": 2,
        "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        "intermediate_layers_indices": [1],
        "vision_output_dim": 64,
    },
    "text_config": TEXT
    | {"model_type": "mllama_text_model", "num_hidden_layers": 2, "cross_attention_layers": [1]}
    | {"pad_token_id": 0},
}
TILES = {"size": 16, "max_image_tiles": 2}
LORA = {"method": "lora", "r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}


def write_digits(folder: Path, first: int, count: int) -> Path:
    """A folder of images with metadata: label, prompt, completion and a caption."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    folder.mkdir(parents=True)
    rows = []
    for number in range(first, first + count):
        name = f"{number:04}.png"
        values = (digits.images[number] * 16).clip(0, 255).astype(np.uint8)
        Image.fromarray(values).save(folder / name)
        label = str(digits.target[number])
        prompt = PROMPTS[number % 2]
        rows.append(
            {"file_name": name, "label": label, "prompt": prompt, "completion": label}
            | {"caption": f"A handwritten {label}."}
        )
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metadata.jsonl").write_text(lines, "utf-8")
    return folder


def seal_digits(folder: Path, count: int = 60) -> dict[str, Any]:
    """Two owners' training images and one's test images, sealed and opened, by ``owner.name``."""
    opened, first = {}, 0
    for owner, name, size in (
        (OWNERS[0], "records", count),
        (OWNERS[1], "records", count),
        (OWNERS[0], "held-out", max(20, count // 2)),
    ):
        key = f"{owner}.{name}"
        source = write_digits(folder / key, first, size)
        opened[key] = sealed_folder(
            source, folder / f"{key}.sealed", form="images", salt=key
        ).open()
        first += size
    return opened


def image_classifier(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """A tiny ResNet on the digits, with changes."""
    settings = {
        "phase": "classify",
        "model": {"config": RESNET, "init_seed": 1},
        "columns": {"image": "image", "label": "label"},
        "labels": LABELS,
        "preparation": {"size": 16},
        "release_policy": releasing(
            "loss", "accuracy", "majority", "f1", "auroc", "ece", "brier", "temperature"
        ),
    }
    return parse_recipe(document(trainer=TRAINER | (trainer or {}), **(settings | changed)))


def image_reader(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """A tiny LLaVA on the digits, with changes."""
    settings = {
        "phase": "vlm",
        "model": {"config": LLAVA, "init_seed": 1, "tokenizer": {"kind": "bytes"}},
        "columns": {"image": "image", "prompt": "prompt", "completion": "completion"},
        "preparation": {"size": 16},
        "release_policy": releasing("loss", "accuracy", "majority", "eval_loss"),
    }
    own = TRAINER | {"max_length": 64} | (trainer or {})
    return parse_recipe(document(trainer=own, **(settings | changed)))


def reading(config: dict[str, Any]) -> dict[str, Any]:
    """Model and preparation of an image reader of any architecture."""
    forms = {"mllama": TILES, "llava": {"size": 16}, "idefics3": {"size": 16}}
    return {
        "model": {"config": config, "init_seed": 1, "tokenizer": {"kind": "bytes"}},
        "preparation": forms.get(config["model_type"], AREA),
    }

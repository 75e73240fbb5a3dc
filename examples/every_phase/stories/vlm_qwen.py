"""Pieces of two real photographs in several shapes, and a Qwen2-VL that starts from nothing."""

from __future__ import annotations

from pathlib import Path

from making import PICTURES, pictures

TRAINER = {
    "max_steps": 120,
    "save_steps": 60,
    "max_length": 64,
    "learning_rate": 0.01,
}
RECIPE = {"preparation": {"min_area": 16 * 16, "max_area": 32 * 32}}
SEAL_AS = PICTURES


def prepare(folder: Path) -> dict[str, Path]:
    """Write pictures and the model."""
    _model(folder / "models" / "qwen-vl")
    return pictures(folder, shapes=((96, 96), (128, 64), (64, 160)))


def _model(folder: Path) -> None:
    """Two vision layers, one language layer; tokens are bytes."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    marks = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    tokenizer.save_pretrained(folder)
    begin, end, image, video = tokenizer.convert_tokens_to_ids(list(marks))
    torch.manual_seed(0)
    config = Qwen2VLConfig(
        vision_config={
            **{"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2},
            **{"depth": 2, "embed_dim": 32, "num_heads": 2},
            **{"hidden_size": 32, "mlp_ratio": 2, "initializer_range": 0.2},
        },
        text_config={
            **{"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64},
            **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
            **{"max_position_embeddings": 128, "initializer_range": 0.2},
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
            **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=begin,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    Qwen2VLForConditionalGeneration(config).save_pretrained(folder)

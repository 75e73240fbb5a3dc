"""Pieces of two real photographs, a temple and a flower, and a LLaVA that starts from nothing."""

from __future__ import annotations

from pathlib import Path

from making import PICTURES, pictures

TRAINER = {
    "max_steps": 120,
    "save_steps": 60,
    "max_length": 64,
    "learning_rate": 0.01,
}
SEAL_AS = PICTURES


def prepare(folder: Path) -> dict[str, Path]:
    """Write pictures and the model."""
    _model(folder / "models" / "llava")
    return pictures(folder)


def _model(folder: Path) -> None:
    """Two vision layers, one language layer; tokens are bytes."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    from sealtrain.recipe.images import Preparation
    from sealtrain.training.data.images import preparation_file
    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    layer = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = Llava(
        LlavaConfig(
            vision_config=CLIPVisionConfig(
                **layer, num_hidden_layers=2, image_size=32, patch_size=8, initializer_factor=10.0
            ),
            text_config=LlamaConfig(
                **layer,
                vocab_size=len(tokenizer),
                num_hidden_layers=1,
                max_position_embeddings=128,
                initializer_range=0.2,
            ),
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(folder)
    for name, data in preparation_file(Preparation(size=32)).items():
        (folder / name).write_bytes(data)

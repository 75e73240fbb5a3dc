"""Pieces of two real photographs in several shapes, and a small model like Llama 3.2 Vision."""

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
    _model(folder / "models" / "llama-vision")
    return pictures(folder, shapes=((96, 96), (128, 64), (64, 160)))


def _model(folder: Path) -> None:
    """Two vision layers, two language layers of which the second looks at images."""
    import torch
    from transformers import MllamaConfig, MllamaForConditionalGeneration
    from transformers import MllamaImageProcessorPil as Processor

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    words = len(tokenizer)  # the head has no row for an image's token, as in the real model
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    tokenizer.save_pretrained(folder)
    layer = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.2}
    torch.manual_seed(0)
    config = MllamaConfig(
        vision_config={
            **layer,
            **{"num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2},
            **{"image_size": 16, "patch_size": 4, "max_num_tiles": 4},
            **{"intermediate_layers_indices": [1], "vision_output_dim": 64},
        },
        text_config={
            **layer,
            **{"vocab_size": words, "num_hidden_layers": 2, "cross_attention_layers": [1]},
            **{"num_attention_heads": 2, "num_key_value_heads": 2},
            **{"max_position_embeddings": 128, "tie_word_embeddings": False},
            **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        },
        image_token_index=words,
    )
    model = MllamaForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("gate", "cross_attn_attn_gate", "cross_attn_mlp_gate")):
            torch.nn.init.ones_(parameter)  # fresh gates are closed, and an adapter leaves them so
    model.save_pretrained(folder)
    processor = Processor(size={"height": 16, "width": 16}, max_image_tiles=4)
    (folder / "preprocessor_config.json").write_text(processor.to_json_string())

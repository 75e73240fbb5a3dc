"""Weights are delivered under the names, and in the parts, that ``save_pretrained`` gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.recipe.basemodel import base_facts
from sealtrain.recipe.modelspec import ModelFromFolder
from sealtrain.training.model_files import weight_files

if not COLLECTING:
    import torch
    import transformers
    from safetensors.torch import load, load_file

pytestmark = pytest.mark.claim("C702")

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TEXT = SMALL | {"vocab_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
PICTURE = SMALL | {"image_size": 32, "patch_size": 16}


def mixtral() -> Any:
    config = transformers.MixtralConfig(**TEXT, num_local_experts=4)
    return transformers.MixtralForCausalLM(config)


def qwen_of_experts() -> Any:
    config = transformers.Qwen3MoeConfig(
        **TEXT, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=8
    )
    return transformers.Qwen3MoeForCausalLM(config)


def qwen_tied() -> Any:
    config = transformers.Qwen2Config(**TEXT, tie_word_embeddings=True)
    return transformers.Qwen2ForCausalLM(config)


def vit() -> Any:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**PICTURE))


def llava() -> Any:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**PICTURE),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=63,
    )
    return transformers.LlavaForConditionalGeneration(config)


def bert() -> Any:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SMALL, vocab_size=64)
    )


MODELS: dict[str, Callable[[], Any]] = {
    "mixtral": mixtral,
    "qwen3_moe": qwen_of_experts,
    "qwen2, tied": qwen_tied,
    "vit": vit,
    "llava": llava,
    "bert": bert,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("published", [False, True])
def test_weights_have_the_names_that_the_library_gives(
    name: str, published: bool, tmp_path: Path
) -> None:
    model = MODELS[name]()
    if published:  # a base from a folder has the names of that folder
        model.save_pretrained(tmp_path / "base")
        model = type(model).from_pretrained(tmp_path / "base")
    files = weight_files(model)
    model.save_pretrained(tmp_path / "library")
    theirs = load_file(tmp_path / "library" / "model.safetensors")
    ours = load(files["model.safetensors"])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    again = type(model).from_pretrained(
        None, config=model.config, state_dict={key: tensor.clone() for key, tensor in ours.items()}
    )
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor)


def test_an_adapter_is_judged_by_the_names_that_training_finds(tmp_path: Path) -> None:
    model = vit()
    model.save_pretrained(tmp_path / "base")
    facts = base_facts(ModelFromFolder(path="base"), tmp_path)
    inner = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.LayerNorm)
    held = {
        name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, inner)
    }
    assert facts.modules is not None
    assert held <= facts.modules
    assert not facts.modules & {"query", "key", "value", "dense"}

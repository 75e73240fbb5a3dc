"""A base that training held in four bits is read anew a tensor at a time, and merged with its bits.

What ranks share out stands here as tensors of one process; they are read by name all the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from language_world import WEIGHT_ADAPTERS, write_base
from training_world import LLAMA, sft

from sealtrain.training.errors import TrainingDiverged

if not COLLECTING:
    import torch
    from peft import get_peft_model
    from safetensors.torch import load_file, save_file
    from tensor_bytes import TensorBytes

    from sealtrain.training.model_files import plan_files
    from sealtrain.training.models.adapters import adapter_config
    from sealtrain.training.models.base import build_model
    from sealtrain.training.models.base_read_anew import MergeWithBase, merge_with_base
    from sealtrain.training.models.merging import merge_adapter, merges_while_read
    from sealtrain.training.weight_file import HeldWeights

# PEFT reads an attribute of models that Transformers renames.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
FOUR_BITS = {"quantization": {"bnb_4bit_quant_type": "nf4"}}


class Shared:
    """Of ``SharedModel`` what the first rank asks for; it notes the names."""

    def __init__(self, model: Any) -> None:
        self.tensors = model.state_dict()
        self.asked: list[str] = []

    def lead(self, order: Sequence[str]) -> HeldWeights:
        self.asked = list(order)
        return HeldWeights({name: self.tensors[name] for name in order})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    pytest.importorskip("bitsandbytes")
    return write_base(tmp_path / "base", LLAMA | {"tie_word_embeddings": False})


def trained(base: Path, adapter: dict[str, Any], **changed: Any) -> Any:
    """An adapter of some size on its base in four bits."""
    recipe = sft(model={"path": base.name} | changed, peft=adapter | FOUR_BITS)
    torch.manual_seed(2)
    model = get_peft_model(
        build_model(recipe, base.parent, "AutoModelForCausalLM"),
        adapter_config(recipe.peft, "CAUSAL_LM"),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def delivered(merge: MergeWithBase, shared: Shared) -> tuple[str, bytes]:
    made = plan_files(merge.merged, None, merge)
    source = merge.read_with(shared.lead, made.weights.order)
    return made.weights.name, b"".join(made.weights.blocks(source))


HEAD = {"modules_to_save": ["lm_head"]}
ADAPTERS = {name: WEIGHT_ADAPTERS[name] for name in ("lora", "dora", "ia3")}
ADAPTERS["a head that learns whole"] = WEIGHT_ADAPTERS["lora"] | HEAD


@pytest.mark.claim("C773")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_the_merge_has_the_bits_of_one_into_a_loaded_base(
    name: str, dtype: str, base: Path
) -> None:
    model = trained(base, ADAPTERS[name], dtype=dtype)
    merge = merge_with_base(model, base, dtype)
    assert merge is not None
    shared = Shared(model)
    file, content = delivered(merge, shared)
    whole = plan_files(merge_adapter(model, base, dtype), None).in_memory()
    assert content == whole[file]
    # Nothing of the base is asked of the ranks, which hold it in four bits.
    learned = {each for each, tensor in model.named_parameters() if tensor.requires_grad}
    assert set(shared.asked) == learned


@pytest.mark.claim("C771")
def test_of_the_base_one_matrix_is_held(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    config = LLAMA | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6}
    base = write_base(tmp_path / "base", config)
    model = trained(base, WEIGHT_ADAPTERS["lora"])
    merge = merge_with_base(model, base, "float32")
    assert merge is not None
    shared = Shared(model)
    made = plan_files(merge.merged, None, merge).weights
    matrices = [math.prod(each.shape) for each in merge.tensors.values()]
    with TensorBytes() as counted:
        for _ in made.blocks(merge.read_with(shared.lead, made.order)):
            pass
    assert counted.most < 6 * 4 * max(matrices) < made.size / 2


def test_a_base_in_several_files_is_found_by_its_index(base: Path) -> None:
    model = trained(base, WEIGHT_ADAPTERS["lora"])
    one = merge_with_base(model, base, "float32")
    whole = base / "model.safetensors"
    tensors, listed = load_file(whole), {}
    for at, name in enumerate(sorted(tensors)):
        listed[name] = f"model-{at % 2}.safetensors"
    for file in set(listed.values()):
        save_file({name: tensors[name] for name in tensors if listed[name] == file}, base / file)
    first = None if one is None else delivered(one, Shared(model))
    whole.unlink()
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    several = merge_with_base(model, base, "float32")
    assert several is not None
    assert delivered(several, Shared(model)) == first
    outside = {name: f"../base/{file}" for name, file in listed.items()}
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": outside}))
    assert merge_with_base(model, base, "float32") is None


def test_where_the_folder_has_other_names_or_shapes_the_base_is_loaded_whole(base: Path) -> None:
    model = trained(base, WEIGHT_ADAPTERS["lora"])
    assert merges_while_read(model, base, "float32")
    whole = base / "model.safetensors"
    tensors = load_file(whole)
    name = "model.layers.0.self_attn.q_proj.weight"
    for changed in (
        {each: tensor for each, tensor in tensors.items() if each != name},
        tensors | {name: tensors[name][:-1].contiguous()},
    ):
        save_file(changed, whole)
        assert not merges_while_read(model, base, "float32")
    whole.unlink()
    assert not merges_while_read(model, base, "float32")


@pytest.mark.claim("C773")
def test_a_base_that_is_not_finite_ends_the_delivery(base: Path) -> None:
    model = trained(base, WEIGHT_ADAPTERS["lora"])
    whole = base / "model.safetensors"
    tensors = load_file(whole)
    tensors["model.embed_tokens.weight"][3, 3] = math.nan  # the adapter leaves it as it is
    save_file(tensors, whole)
    merge = merge_with_base(model, base, "float32")
    assert merge is not None
    with pytest.raises(TrainingDiverged) as caught:
        delivered(merge, Shared(model))
    assert caught.value.check == "weights"

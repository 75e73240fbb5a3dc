from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from ranks_world import JUDGE, write_judge
from training_world import LLAMA, LORA, classify, sft

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.training.model_files import model_files
from sealtrain.training.models.adapters import adapter_config
from sealtrain.training.models.base import (
    BYTE_VOCABULARY,
    build_model,
    build_tokenizer,
    byte_tokenizer,
    check_vocabulary,
)

if not COLLECTING:
    import torch


def built(recipe: PhaseRecipe, base_dir: Path = Path()) -> Any:
    return build_model(recipe, base_dir, "AutoModelForCausalLM")


def digest(model: Any) -> str:
    return hashlib.sha256(model_files(model, None)["model.safetensors"]).hexdigest()


def written(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_the_byte_tokenizer_has_one_token_for_each_byte() -> None:
    tokenizer = byte_tokenizer()
    text = "Größe 3 µm, “ok” 🙂\n\x00 end"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == BYTE_VOCABULARY == 259
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_random_weights_are_a_function_of_config_and_seed() -> None:
    torch.manual_seed(1)
    first = digest(built(sft()))
    torch.manual_seed(2)
    assert digest(built(sft())) == first
    other = sft(model={"config": LLAMA, "init_seed": 8, "tokenizer": {"kind": "bytes"}})
    assert digest(built(other)) != first


def test_a_trained_model_loads_from_its_files(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = built(sft())
    folder = written(model_files(model, byte_tokenizer()), tmp_path / "model")
    again = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer("aé")["input_ids"] == byte_tokenizer()("aé")["input_ids"]
    assert tokenizer.eos_token_id == 2


def test_a_base_model_comes_from_a_folder(tmp_path: Path) -> None:
    model = built(sft())
    written(model_files(model, byte_tokenizer()), tmp_path / "base")
    recipe = sft(model={"path": "base"})
    assert digest(built(recipe, tmp_path)) == digest(model)
    assert len(build_tokenizer(recipe, tmp_path)) == BYTE_VOCABULARY


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_loads_onto_its_base_and_names_no_folder(tmp_path: Path) -> None:
    from peft import PeftModel, get_peft_model

    recipe = sft(peft={"method": "lora", "r": 2, "target_modules": ["q_proj"]})
    assert recipe.peft is not None
    model = get_peft_model(built(recipe), adapter_config(recipe.peft, "CAUSAL_LM"))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                tensor.fill_(0.5)
    files = model_files(model, None)
    assert set(files) == {"adapter_model.safetensors", "adapter_config.json", "config.json"}
    assert b'"base_model_name_or_path": null' in files["adapter_config.json"]
    folder = written(files, tmp_path / "adapter")
    again = PeftModel.from_pretrained(built(recipe), folder)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        model.eval(), again.eval()
        assert torch.equal(model(ids).logits, again(ids).logits)


def test_a_tabular_classifier_loads_from_its_files(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    import sealtrain.training.models.tabular  # noqa: F401 - registers the architecture

    recipe = classify()
    model: Any = build_model(
        recipe, Path(), "AutoModelForSequenceClassification", num_labels=2, num_features=2
    )
    model.standardise(torch.tensor([500.0, 0.0]), torch.tensor([90.0, 0.0]))
    folder = written(model_files(model, None), tmp_path / "model")
    again = AutoModelForSequenceClassification.from_pretrained(folder)
    features = torch.tensor([[600.0, 0.1], [400.0, -0.1]])
    model.eval()
    assert torch.equal(again(features=features).logits, model(features=features).logits)
    assert torch.isfinite(model(features=features).logits).all()


# PEFT reads an attribute of models that Transformers renames.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_head_of_an_encoder_beside_four_bits_can_be_trained(tmp_path: Path) -> None:
    """Transformers finds heads without a bias only, and would pack this one."""
    from peft import get_peft_model

    write_judge(tmp_path)
    adapter = LORA | {"target_modules": ["query", "value"], "quantization": {}}
    columns = {"text": "text", "label": "finding"}
    recipe = classify(model=JUDGE, columns=columns, peft=adapter)
    base = build_model(recipe, tmp_path, "AutoModelForSequenceClassification", num_labels=2)
    assert base.bert.encoder.layer[0].attention.self.query.weight.dtype == torch.uint8
    model = get_peft_model(base, adapter_config(recipe.peft, "SEQ_CLS"))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.rpartition(".")[2] for name in trained if "classifier" in name} == {
        "weight",
        "bias",
    }
    assert model.get_parameter(
        next(name for name in trained if "classifier" in name)
    ).is_floating_point()


def test_a_model_with_fewer_tokens_than_its_tokenizer_is_refused() -> None:
    small = sft(
        model={
            "config": {**LLAMA, "vocab_size": 100},
            "init_seed": 7,
            "tokenizer": {"kind": "bytes"},
        }
    )
    with pytest.raises(ModelInvalid, check=carries(check="model", got="vocab_size 100")):
        check_vocabulary(built(small), byte_tokenizer())


@pytest.mark.parametrize(
    "config", [{"model_type": "no-such-model"}, {**LLAMA, "num_attention_heads": "many"}]
)
def test_a_model_that_cannot_be_built_is_refused(config: dict[str, Any]) -> None:
    recipe = sft(model={"config": config, "init_seed": 7, "tokenizer": {"kind": "bytes"}})
    with pytest.raises(ModelInvalid):
        built(recipe)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    recipe = sft(model={"path": "absent"})
    with pytest.raises(ModelInvalid):
        built(recipe, tmp_path)
    with pytest.raises(ModelInvalid):
        build_tokenizer(recipe, tmp_path)

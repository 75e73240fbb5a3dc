"""A merged model answers as its adapter did: in the guest, by the command, never in four bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from language_world import PROMPT_ADAPTERS, WEIGHT_ADAPTERS, embed, write_base, write_files
from training_world import (
    CANARY,
    LLAMA,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from typer.testing import CliRunner

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.model_files import model_files
from sealtrain.training.models.adapters import adapter_config
from sealtrain.training.models.base import build_model
from sealtrain.training.models.merging import merge_adapter, merge_folder

# PEFT reads an attribute of models that Transformers renames.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

BASE = {"path": "base"}
# Sums of float32 products in another order; weights are of the size of one tenth.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base")
    return folder


def trained(adapter: dict[str, Any], base_dir: Path, **changed: Any) -> Any:
    """An adapter of some size, as training would leave it, on its base."""
    import torch
    from peft import get_peft_model

    recipe = sft(model=BASE | changed, peft=adapter)
    model = get_peft_model(
        build_model(recipe, base_dir, "AutoModelForCausalLM"),
        adapter_config(recipe.peft, "CAUSAL_LM"),
    )
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def logits(model: Any) -> Any:
    import torch

    ids = torch.arange(3, 40, device=model.device)[None]  # four bits are loaded onto a GPU
    with torch.no_grad():
        return model(input_ids=ids).logits.float().cpu()


def far(one: Any, other: Any) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("name", ["lora", "dora", "ia3"])
def test_merged_logits_are_the_adapters(name: str, base_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = trained(WEIGHT_ADAPTERS[name], base_dir)
    before = logits(model)
    plain = build_model(sft(model=BASE), base_dir, "AutoModelForCausalLM").eval()
    assert far(before, logits(plain)) > 100 * TOLERANCE
    opened = write_files(tmp_path / "opened", model_files(model, None))
    by_command = write_files(tmp_path / "merged", merge_folder(opened, base_dir / "base"))
    assert not (by_command / "adapter_config.json").exists()
    loaded = AutoModelForCausalLM.from_pretrained(by_command).eval()
    assert far(logits(loaded), before) < TOLERANCE
    assert far(logits(merge_adapter(model, base_dir / "base", "float32")), before) < TOLERANCE


@pytest.mark.parametrize("name", ["qlora", "qdora"])
def test_a_base_in_four_bits_is_left_behind(name: str, base_dir: Path) -> None:
    import torch
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

    model = trained(WEIGHT_ADAPTERS[name], base_dir)
    assert any(parameter.dtype == torch.uint8 for parameter in model.parameters())
    full = build_model(sft(model=BASE), base_dir, "AutoModelForCausalLM")
    beside = PeftModel(full, model.active_peft_config)
    set_peft_model_state_dict(beside, get_peft_model_state_dict(model))
    wanted = logits(beside.eval())
    quantised = logits(model)
    whole = merge_adapter(model, base_dir / "base", "float32").eval()
    assert far(logits(whole), wanted) < TOLERANCE
    assert far(quantised, wanted) > 100 * TOLERANCE  # four bits do round
    assert {parameter.dtype for parameter in whole.parameters()} == {torch.float32}
    files = model_files(whole, None)
    assert "quantization_config" not in json.loads(files["config.json"])


def test_a_base_in_four_bits_has_a_gradient_through_it_after_an_evaluation_on_any_processor(
    base_dir: Path,
) -> None:
    import torch

    recipe = sft(model=BASE, peft=WEIGHT_ADAPTERS["qlora"])
    model: Any = build_model(recipe, base_dir, "AutoModelForCausalLM")
    rearranged = [getattr(module, "support_avx512bf16_for_cpu", None) for module in model.modules()]
    assert set(rearranged) == {None, False}
    logits(model.eval())
    ids = torch.arange(3, 40, device=model.device)[None]
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    model.train()(inputs_embeds=embedded).logits.sum().backward()
    assert embedded.grad is not None


def test_the_guest_merges_before_it_hands_out(base_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    paths = write_records(tmp_path)
    sealed = dict(seal_records(paths, tmp_path))
    ran = {}
    for merge in (False, True):
        recipe = sft(model=BASE, peft=WEIGHT_ADAPTERS["qlora"] | {"merge": merge})
        store = checkpoint_store(tmp_path / str(merge))
        ran[merge] = run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir).trained
    assert ran[True].metrics == ran[False].metrics
    assert set(ran[True].files) == {
        "base_files.json",
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    opened = write_files(tmp_path / "opened", ran[False].files)
    at_home = write_files(tmp_path / "home", merge_folder(opened, base_dir / "base"))
    in_guest = write_files(tmp_path / "guest", ran[True].files)
    models = [AutoModelForCausalLM.from_pretrained(value).eval() for value in (at_home, in_guest)]
    assert far(logits(models[0]), logits(models[1])) == 0
    assert (at_home / "tokenizer.json").read_bytes() == ran[True].files["tokenizer.json"]


@pytest.mark.nightly
def test_a_model_that_began_from_a_config_is_merged_too(tmp_path: Path) -> None:
    sealed = dict(seal_records(write_records(tmp_path), tmp_path))
    for recipe in (
        sft(peft=WEIGHT_ADAPTERS["lora"] | {"merge": True}),
        classify(
            peft=WEIGHT_ADAPTERS["dora"] | {"merge": True},
            model=sft().to_dict()["model"],
            columns={"text": "text", "label": "finding"},
        ),
        embed(peft={"method": "lora", "target_modules": ["query"], "merge": True}),
    ):
        store = checkpoint_store(tmp_path / recipe.phase)
        files = run(recipe, sources_of(recipe, sealed), store).trained.files
        assert "model.safetensors" in files
        assert not any(name.startswith("adapter") for name in files)
        assert b"lora" not in files["model.safetensors"]
        assert not any(CANARY.encode() in data for data in files.values())


@pytest.mark.parametrize("name", PROMPT_ADAPTERS)
def test_learned_prompts_are_refused(name: str, base_dir: Path, tmp_path: Path) -> None:
    model = trained(PROMPT_ADAPTERS[name], base_dir)
    method = str(PROMPT_ADAPTERS[name]["method"])
    with pytest.raises(UsageError, check=carries(got=method)):
        merge_adapter(model, base_dir / "base", "float32")
    opened = write_files(tmp_path / "opened", model_files(model, None))
    with pytest.raises(UsageError, check=carries(got=method)):
        merge_folder(opened, base_dir / "base")


def test_another_base_is_refused(base_dir: Path, tmp_path: Path) -> None:
    opened = write_files(
        tmp_path / "opened", model_files(trained(WEIGHT_ADAPTERS["lora"], base_dir), None)
    )
    wider = write_base(tmp_path / "wider", LLAMA | {"hidden_size": 32})
    deeper = write_base(tmp_path / "deeper", LLAMA | {"num_hidden_layers": 2})
    (opened / "config.json").unlink()
    for base in (wider, deeper):
        with pytest.raises(ModelInvalid, check=carries(check="adapter")):
            merge_folder(opened, base)


def test_a_folder_that_is_no_adapter_is_refused(base_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match="adapter_config"):
        merge_folder(base_dir / "base", base_dir / "base")
    opened = write_files(
        tmp_path / "opened", model_files(trained(WEIGHT_ADAPTERS["lora"], base_dir), None)
    )
    (opened / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataInvalid, check=carries(got="SafetensorError")):
        merge_folder(opened, base_dir / "base")
    with pytest.raises(DataInvalid, match=r"config\.json"):
        merge_folder(opened, tmp_path)


@pytest.mark.claim("C111")
@pytest.mark.parametrize(
    "name", ["modeling_x.py", "pytorch_model.bin", "inner/chat_template.jinja"]
)
def test_code_beside_an_adapter_does_not_come_along(
    name: str, base_dir: Path, tmp_path: Path
) -> None:
    files = model_files(trained(WEIGHT_ADAPTERS["lora"], base_dir), None)
    opened = write_files(tmp_path / "opened", files | {name: b"import os"})
    with pytest.raises(ModelInvalid):
        merge_folder(opened, base_dir / "base")


@pytest.mark.claim("C111")
def test_nothing_behind_a_link_is_merged(base_dir: Path, tmp_path: Path) -> None:
    files = model_files(trained(WEIGHT_ADAPTERS["lora"], base_dir), None)
    opened = write_files(tmp_path / "opened", files)
    (opened / "secret.txt").symlink_to(base_dir / "base" / "config.json")
    with pytest.raises(ModelInvalid):
        merge_folder(opened, base_dir / "base")


def test_the_command_writes_a_folder_that_loads(base_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from sealtrain.cli import app

    model = trained(WEIGHT_ADAPTERS["dora"], base_dir)
    opened = write_files(tmp_path / "opened", model_files(model, None))
    words = [
        "merge",
        str(opened),
        "--base-model",
        str(base_dir / "base"),
        "--out",
        str(tmp_path / "m"),
    ]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"] == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert far(logits(loaded), logits(model)) < TOLERANCE
    assert CliRunner().invoke(app, words).exit_code != 0  # the folder is there already

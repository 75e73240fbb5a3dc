"""A recipe that could not work is refused before it is locked, with all that is wrong with it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.fitness import misfits, require_fitness
from sealtrain.recipe.schema import load_recipe, parse_recipe

READY = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))


def saved(folder: Path, config: dict[str, Any], *tensors: str) -> Path:
    """A model folder with a config and the header of a weights file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header = {name: {"dtype": "F32", "shape": [], "data_offsets": [0, 0]} for name in tensors}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder


def changed(sft: dict[str, Any], **parts: Any) -> Any:
    return parse_recipe(sft | parts)


def members(recipe: Any) -> list[str]:
    return [*recipe.owners, *recipe.release_policy.model.recipients]


def test_owners_and_recipients_are_of_the_consortium(sft: dict[str, Any], tmp_path: Path) -> None:
    recipe = parse_recipe(sft)
    assert misfits(recipe, tmp_path, members(recipe)) == []
    found = misfits(recipe, tmp_path, ["hospital-z"])
    assert [misfit.field for misfit in found] == ["datasets", "release_policy.model.recipients"]
    assert found[0].expected == "of hospital-z"


def test_everything_that_is_wrong_is_named_at_once(sft: dict[str, Any], tmp_path: Path) -> None:
    recipe = changed(sft, release_policy=sft["release_policy"] | {"metrics": ["acuracy", "lss"]})
    with pytest.raises(RecipeInvalid) as caught:
        require_fitness(recipe, tmp_path, [])
    assert str(caught.value.check).split(", ") == [
        "datasets",
        "release_policy.model.recipients",
        "release_policy.metrics",
    ]
    assert caught.value.field == "datasets"


def test_a_misspelt_metric_is_refused_with_the_one_that_was_meant(
    sft: dict[str, Any], tmp_path: Path
) -> None:
    recipe = changed(sft, release_policy=sft["release_policy"] | {"metrics": ["los"]})
    with pytest.raises(RecipeInvalid, check=carries(got="los", expected="loss")):
        require_fitness(recipe, tmp_path, members(recipe))


def test_what_a_script_measures_and_reads_is_not_judged(
    sft: dict[str, Any], tmp_path: Path
) -> None:
    saved(tmp_path / "base", {"model_type": "llama", "max_position_embeddings": 8})
    recipe = changed(
        sft,
        scripts=["mine.py"],
        model={"path": "base"},
        release_policy=sft["release_policy"] | {"metrics": ["my_figure"]},
    )
    require_fitness(recipe, tmp_path, members(recipe))
    assert [misfit.field for misfit in misfits(recipe, tmp_path, [])] == [
        "datasets", "release_policy.model.recipients",
    ]  # fmt: skip


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_ready_recipes_name_metrics_that_are_measured(path: Path) -> None:
    from sealtrain.recipe.metricnames import find_unmeasured

    assert find_unmeasured(load_recipe(path)) == []


@pytest.mark.parametrize(
    ("peft", "field"),
    [
        ({"target_modules": ["q_proj", "c_attn"]}, "peft.target_modules"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["head"]}, "peft.modules_to_save"),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0, 2]}, "peft.layers_to_transform"),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "config"])
def test_an_adapter_names_modules_of_the_base_model(
    sft: dict[str, Any], tmp_path: Path, peft: dict[str, Any], field: str, kind: str
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 4096}
    saved(tmp_path / "base", config, "model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
    model: dict[str, Any] = {"path": "base"}
    if kind == "config":
        model = {"config": config, "init_seed": 1, "tokenizer": {"kind": "bytes"}}
    recipe = changed(sft, model=model, peft={"method": "lora"} | peft)
    assert [misfit.field for misfit in misfits(recipe, tmp_path, members(recipe))] == [field]
    fine = changed(sft, model=model, peft={"method": "lora", "target_modules": ["q_proj"]})
    assert misfits(fine, tmp_path, members(fine)) == []
    whole = changed(sft, model=model, peft={"method": "lora", "target_modules": "all-linear"})
    assert misfits(whole, tmp_path, members(whole)) == []


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_type": "llama", "max_position_embeddings": 128}, 128),
        ({"model_type": "gpt2", "n_positions": 64}, 64),
        ({"model_type": "roberta", "max_position_embeddings": 130, "pad_token_id": 1}, 128),
        (
            {
                "model_type": "llama",
                "max_position_embeddings": 32,
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
            128,
        ),
        ({"model_type": "llava", "text_config": {"max_position_embeddings": 96}}, 96),
        ({"model_type": "bloom"}, None),
    ],
    ids=["llama", "gpt2", "roberta", "scaled", "inner", "without"],
)
def test_records_are_no_longer_than_the_models_positions(
    sft: dict[str, Any], tmp_path: Path, config: dict[str, Any], most: int | None
) -> None:
    saved(tmp_path / "base", config)
    steps = {"max_steps": 1}

    def lengths(**changes: Any) -> list[str]:
        recipe = changed(sft, **{"model": {"path": "base"}, "peft": None} | changes)
        return [misfit.expected for misfit in misfits(recipe, tmp_path, members(recipe))]

    if most is None:
        assert lengths(trainer=steps | {"max_length": 4_000_000}) == []
        return
    assert lengths(trainer=steps | {"max_length": most}) == []
    assert lengths(trainer=steps | {"max_length": None}) == []
    assert lengths(trainer=steps | {"max_length": most + 1}) == [f"at most {most}"]
    assert lengths(trainer=steps) == [f"at most {most}"]  # the default counts, too
    learned = {"method": "prompt_tuning", "num_virtual_tokens": 8}
    assert lengths(trainer=steps | {"max_length": most}, peft=learned) == [f"at most {most - 8}"]


@pytest.mark.parametrize(
    "header", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 2) + b"[]"]
)
def test_a_damaged_weights_file_is_refused(
    sft: dict[str, Any], tmp_path: Path, header: bytes
) -> None:
    folder = saved(tmp_path / "base", {"model_type": "llama"})
    (folder / "model.safetensors").write_bytes(header)
    recipe = changed(sft, model={"path": "base"})
    with pytest.raises(ModelInvalid):
        misfits(recipe, tmp_path, members(recipe))


def test_a_pipe_among_the_weights_is_not_waited_for(sft: dict[str, Any], tmp_path: Path) -> None:
    folder = saved(tmp_path / "base", {"model_type": "llama"})
    os.mkfifo(folder / "more.safetensors")
    with pytest.raises(ModelInvalid):
        misfits(changed(sft, model={"path": "base"}), tmp_path, [])


def test_a_missing_field_is_named(sft: dict[str, Any]) -> None:
    less = {name: part for name, part in sft.items() if name not in ("privacy", "hardware")}
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="privacy")):
        parse_recipe(less)
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="hardware")):
        parse_recipe(less | {"privacy": sft["privacy"]})


def test_hardware_needs_no_more_than_its_platforms(sft: dict[str, Any]) -> None:
    found = changed(sft, hardware={"platforms": ["simulator"], "tier": "processor"}).hardware
    assert (found.image, found.key_provider, found.key_provider_id) == (None, "none", None)
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="hardware")):
        changed(sft, hardware={"platforms": ["tdx"], "tier": "processor"})


NITRO: dict[str, Any] = {
    "platforms": ["nitro"],
    "tier": "cloud",
    "image": f"registry.example/x@sha256:{'0' * 64}",
}


@pytest.mark.claim("C671")
def test_an_enclave_is_started_as_its_recipe_says(sft: dict[str, Any]) -> None:
    size = {"processors": 2, "memory_mib": 4096}
    found = changed(sft, hardware=NITRO | {"enclave": size}).hardware.enclave
    assert found is not None
    assert (found.processors, found.memory_mib, found.mode) == (2, 4096, "production")
    assert changed(sft, hardware=NITRO).hardware.enclave is None
    for wrong in (
        {"mode": "debug"},
        {"mode": "Production"},
        {"processors": 0},
        {"processors": "2"},
        {"memory_mib": 63},
        {"memory_mib": 1 << 25},
        {"memory_mib": 4096.5},
        {"debug": True},
    ):
        with pytest.raises(RecipeInvalid):
            changed(sft, hardware=NITRO | {"enclave": size | wrong})
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="hardware")):
        changed(sft, hardware=NITRO | {"platforms": ["snp"], "enclave": size})


def tokenizer(
    folder: Path, *, words: int = 4, added: tuple[str, ...] = (), **settings: Any
) -> Path:
    """A saved tokenizer's own files."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {f"w{number}": number for number in range(words)}
    tokens = [{"id": words + at, "content": text} for at, text in enumerate(added)]
    whole = {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    chosen = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w0"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(chosen))
    return folder


def fields(recipe: Any, base: Path) -> list[str]:
    return [misfit.field for misfit in misfits(recipe, base, members(recipe))]


@pytest.mark.claim("C575")
def test_a_tokenizer_without_an_end_is_refused_where_answers_end(
    sft: dict[str, Any], tmp_path: Path
) -> None:
    saved(tmp_path / "base", {"model_type": "llama", "vocab_size": 4})
    recipe = changed(sft, model={"path": "base"}, peft=None)
    tokenizer(tmp_path / "base", eos_token=None)
    assert fields(recipe, tmp_path) == ["model.tokenizer"]
    # A class with an end token of its own needs none in its files.
    tokenizer(tmp_path / "base", eos_token=None, tokenizer_class="LlamaTokenizer")
    assert fields(recipe, tmp_path) == []
    trainer = sft["trainer"] | {"eos_token": "w1"}
    tokenizer(tmp_path / "base", eos_token=None)
    named = changed(sft, model={"path": "base"}, peft=None, trainer=trainer)
    assert fields(named, tmp_path) == []


@pytest.mark.claim("C575")
@pytest.mark.parametrize(
    ("added", "settings", "fits"),
    [
        ((), {}, True),
        (("w1",), {}, True),
        (("<new>",), {}, False),
        ((), {"pad_token": "<pad>"}, False),
        ((), {"pad_token": {"content": "<pad>"}}, False),
        ((), {"additional_special_tokens": ["<a>"]}, False),
        ((), {"added_tokens_decoder": {"4": {"content": "<b>"}}}, False),
    ],
)
def test_tokens_beyond_the_embedding_are_refused(
    sft: dict[str, Any], tmp_path: Path, added: tuple[str, ...], settings: Any, fits: bool
) -> None:
    saved(tmp_path / "base", {"model_type": "llama", "vocab_size": 4})
    tokenizer(tmp_path / "base", added=added, **settings)
    recipe = changed(sft, model={"path": "base"}, peft=None)
    assert fields(recipe, tmp_path) == ([] if fits else ["model"])


@pytest.mark.claim("C575")
def test_a_metric_of_test_records_needs_some(sft: dict[str, Any], tmp_path: Path) -> None:
    released = sft["release_policy"] | {"metrics": ["loss", "accuracy", "eval_loss"]}
    tested = changed(sft, release_policy=released)
    assert "test" in {dataset.role for dataset in tested.datasets}
    assert misfits(tested, tmp_path, members(tested)) == []
    trained = [dataset for dataset in sft["datasets"] if dataset["role"] != "test"]
    recipe = changed(sft, release_policy=released, datasets=trained)
    (misfit,) = misfits(recipe, tmp_path, members(recipe))
    assert (misfit.field, misfit.got) == ("release_policy.metrics", "accuracy, eval_loss")
    # Texts have no answer to compare.
    texts = changed(sft, release_policy=released, columns={"text": "text"})
    (misfit,) = misfits(texts, tmp_path, members(texts))
    assert misfit.got == "accuracy"

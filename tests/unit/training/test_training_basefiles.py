"""The list of a base's files is read strictly: a recipient gets it from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.errors import DataInvalid
from sealtrain.training.basefiles import (
    BaseFiles,
    files_in,
    merge_files,
    read_list,
    with_base_files,
)

if not COLLECTING:
    import torch

ENTRY = {"state": "kept", "reason": "unchanged"}


def test_a_list_is_read_by_name() -> None:
    data = json.dumps({"files": {"LICENSE": ENTRY, "a/b.json": ENTRY}}).encode()
    assert read_list(data) == {"LICENSE": ENTRY, "a/b.json": ENTRY}


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"files": []},
        {"files": {}, "more": 1},
        {"files": {"LICENSE": "kept"}},
        {"files": {"LICENSE": {"state": "kept"}}},
        {"files": {"LICENSE": ENTRY | {"more": 1}}},
        {"files": {"LICENSE": ENTRY | {"state": "lost"}}},
        {"files": {"LICENSE": ENTRY | {"state": ["kept"]}}},
    ],
    ids=str,
)
def test_a_list_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(DataInvalid) as refused:
        read_list(json.dumps(value).encode())
    assert refused.value.code == "data-invalid"


def test_a_list_that_is_no_json_is_refused() -> None:
    with pytest.raises(DataInvalid):
        read_list(b"{")


def test_files_of_download_tools_are_no_files_of_the_base(tmp_path: Path) -> None:
    for name in ("config.json", ".cache/lock", ".gitattributes", "1_Pooling/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    assert files_in(tmp_path).names == ("1_Pooling/config.json", "config.json")


def test_an_adapter_without_a_list_is_merged_with_the_generation_settings_of_its_base(
    tmp_path: Path,
) -> None:
    (tmp_path / "generation_config.json").write_bytes(b'{"temperature": 0.6, "do_sample": true}')
    weights = {"model.safetensors": b""}
    weights["generation_config.json"] = b'{"do_sample": true, "temperature": 0.6}'
    merged = merge_files({"tokenizer.json": b"{}"}, weights, files_in(tmp_path))
    assert merged["generation_config.json"] == (tmp_path / "generation_config.json").read_bytes()
    assert set(merged) == {"tokenizer.json", *weights}


@pytest.mark.claim("C702")
@pytest.mark.parametrize(("task", "kept"), [("CAUSAL_LM", True), (None, True), ("SEQ_CLS", False)])
def test_an_adapter_that_does_not_generate_has_no_settings_for_it(
    task: str | None, kept: bool
) -> None:
    base = BaseFiles(names=("generation_config.json",), read=lambda _name: b"{}")
    recipe: Any = SimpleNamespace(model=SimpleNamespace(kind="folder", path="a", tokenizer=None))
    files = {"adapter_config.json": json.dumps({"task_type": task}).encode()}
    whole = with_base_files(files, base, recipe, None)
    assert ("generation_config.json" in whole) == kept
    state = read_list(whole["base_files.json"])["generation_config.json"]["state"]
    assert state == ("kept" if kept else "left-out")


@pytest.mark.claim("C702")
def test_another_tokenizer_keeps_its_sides_and_its_further_tokens(tmp_path: Path) -> None:
    import transformers

    from sealtrain.training.model_files import model_files
    from sealtrain.training.models.base import byte_tokenizer

    tokenizer: Any = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<a>", "<b>"]})
    tokenizer.padding_side = tokenizer.truncation_side = "left"
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    for name, data in model_files(torch.nn.Linear(1, 1), tokenizer).items():
        (tmp_path / name).write_bytes(data)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for name in (
        *("padding_side", "truncation_side", "model_input_names", "all_special_tokens"),
        *("clean_up_tokenization_spaces", "special_tokens_map", "model_max_length"),
    ):
        assert getattr(found, name) == getattr(tokenizer, name), name

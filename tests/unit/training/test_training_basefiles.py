"""The list of a base's files is read strictly: a recipient gets it from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sealtrain.errors import DataInvalid
from sealtrain.training.basefiles import files_in, merge_files, read_list

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

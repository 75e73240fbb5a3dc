"""Which names mean the same file everywhere, and which may carry code."""

from __future__ import annotations

import pytest

from sealtrain.base.filenames import clash, is_vocabulary, may_carry_code, portable_name


@pytest.mark.parametrize(
    "name", ["a", "config.json", "1_Pooling/config.json", "a-b_c.D", "x" * 128, "_/_/_", "con-1"]
)
def test_a_portable_name_is_taken_as_it_is(name: str) -> None:
    assert portable_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        ".hidden",
        "a/.hidden",
        "-rf",
        "a\\b",
        "a:b",
        "a b",
        "a\n",
        "a\x1b[2J",
        "caf\u00e9",
        "a.",
        "a./b",
        "x" * 129,
        "/".join(["x" * 100] * 3),
        "con",
        "NUL.json",
        "a/Com1.txt",
        "lpt9",
        "aux.tar.gz",
    ],
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        portable_name(name)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["a", "b", "a.json", "c/a", "c/b"], None),
        (["a", "a"], "a"),
        (["a.json", "A.JSON"], "A.JSON"),
        (["a", "a/b"], "a/b"),
        (["a/b", "a"], "a"),
        (["a/b/c", "A/B"], "A/B"),
    ],
)
def test_what_one_folder_cannot_hold_is_named(names: list[str], found: str | None) -> None:
    assert clash(names) == found


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "1_Pooling/config.json",
        "vocab.txt",
        "spiece.model",
        "qwen.tiktoken",
        "README.md",
        "LICENSE",
        "licence.txt",
        "events.out.tfevents.1790000000.sealtrain",
    ],
)
def test_data_carries_no_code(name: str) -> None:
    assert not may_carry_code(name)


@pytest.mark.parametrize(
    "name",
    [
        "modeling_x.py",
        "pytorch_model.bin",
        "training_args.bin",
        "model.pt",
        "model.pkl",
        "model.joblib",
        "lib.so",
        "chat_template.jinja",
        "README.py",
        "LICENSE.pkl",
        "config.json.py",
        "json",
        "CONFIG.JSON",
        "a.safetensors/b.py",
    ],
)
def test_any_other_file_may_carry_code(name: str) -> None:
    assert may_carry_code(name)


def test_vocabularies_are_told_by_their_last_part() -> None:
    assert is_vocabulary("inner/tokenizer.json")
    assert not is_vocabulary("tokenizer.json/config.json")
    assert not is_vocabulary("tokenizer_config.json")

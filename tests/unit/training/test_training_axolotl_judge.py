"""Records are counted by the strategy that Axolotl trains with, and by its filter.

A stand-in has the functions of Axolotl that are used. ``attack/test_tuners_leave_nothing.py`` asks
the library itself where it is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import sft

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.inputs.learnable import counts_records

if not COLLECTING:
    from training_world import seal_records, sources_of, write_records

    from sealtrain.training.census import census
    from sealtrain.training.models.base import byte_tokenizer

pytestmark = pytest.mark.claim("C617")

LONGEST = 16
LOADED: list[Any] = []
FIT = {"prompt": "a?", "completion": " yes"}
CUT_OFF = {"prompt": "a?", "completion": " yes" * 9}
FULL = {"prompt": "?" * LONGEST, "completion": " yes"}
NOTHING = {"prompt": "", "completion": ""}
REFUSED = {"prompt": "refused", "completion": " yes"}


class Config(dict[str, Any]):
    """``axolotl.utils.dict.DictDefault`` as far as it is used."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class Strategy:
    """Masks the prompt and cuts it and the completion, each by itself."""

    supports_batched = False

    def __init__(self, length: int) -> None:
        self._length = length

    def tokenize_prompt(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["prompt"] == "refused":
            raise ValueError(row)
        asked = list(row["prompt"].encode())[: self._length]
        answer = [*row["completion"].encode(), 0][: self._length]
        if not row["completion"]:
            return {}
        return {"input_ids": asked + answer, "labels": [-100] * len(asked) + answer}


def load(_kind: str, _tokenizer: Any, config: Any, _named: Any) -> Strategy:
    LOADED.append(config.sequence_len)
    return Strategy(config.sequence_len)


@pytest.fixture
def axolotl(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Any] = {
        "axolotl": {},
        "axolotl.utils": {},
        "axolotl.utils.config": {
            "validate_config": lambda wanted, *_facts: wanted,
            "normalize_config": lambda _config: None,
        },
        "axolotl.utils.dict": {"DictDefault": Config},
        "axolotl.prompt_strategies": {"load": load},
    }
    for name, attributes in parts.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    LOADED.clear()


def recipe() -> Any:
    return sft(backend={"name": "axolotl"}, model={"path": "base"}, trainer={"max_length": LONGEST})


def counted(folder: Path, records: list[dict[str, Any]]) -> list[dict[str, int]]:
    paths = write_records(folder, made=lambda _count, _label: records)
    sources = sources_of(recipe(), dict(seal_records(paths, folder)))
    return [tally.to_dict() for _, tally in census(recipe(), sources, byte_tokenizer, folder)]


@pytest.mark.usefixtures("axolotl")
def test_each_record_is_in_the_part_that_axolotl_trains_it_in(tmp_path: Path) -> None:
    assert counts_records(recipe())
    found = counted(tmp_path, [FIT, CUT_OFF, FULL, NOTHING])
    assert found
    assert all(
        value == {"records": 4, "whole": 1, "truncated": 1, "filtered": 0, "empty": 2}
        for value in found
    )
    assert LOADED[0] == LONGEST < LOADED[1]


@pytest.mark.usefixtures("axolotl")
def test_a_dataset_of_which_axolotl_trains_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid) as caught:
        counted(tmp_path, [FULL, NOTHING])
    assert caught.value.check == "records"


@pytest.mark.usefixtures("axolotl")
def test_a_record_that_axolotl_cannot_read_is_refused_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(RecordInvalid) as caught:
        counted(tmp_path, [FIT, REFUSED])
    assert caught.value.__cause__ is None
    assert "refused" not in str(caught.value)

"""An owner's client leaves out the training records that teach nothing, and counts them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid

if not COLLECTING:
    import pyarrow as pa
    from cut_world import cut_recipe

    from sealtrain.training.privacy.audit import InMemory
    from sealtrain_together.cut.front import RecordEncoding
    from sealtrain_together.cut.sending import OwnDataset, records_of

pytestmark = [pytest.mark.claim("C616"), pytest.mark.usefixtures("one_thread")]

LONGEST = 16
FIT = {"prompt": "a?", "completion": " yes"}
CUT_OFF = {"prompt": "a?", "completion": " yes" * 9}
FULL = {"prompt": "?" * LONGEST, "completion": " yes"}
LAST = {"prompt": "?" * (LONGEST - 1), "completion": " yes"}


def read(
    recipe: Any, records: list[dict[str, Any]], /, *, role: str = "train", **stated: Any
) -> Any:
    values = {"owner": "hospital-a", "name": "visits", "records": len(records)} | stated
    found: Any = SimpleNamespace(role=role, manifest=SimpleNamespace(**values), envelope={})
    return OwnDataset.read(
        found, pa.Table.from_pylist(records), recipe, RecordEncoding.of(recipe, Path())
    )


def public(phase: str, **changed: Any) -> Any:
    recipe = cut_recipe(phase, trainer={"max_length": LONGEST}, **changed)
    policy = recipe.release_policy.model_copy(update={"logs": "structured"})
    return recipe.model_copy(update={"release_policy": policy})


def test_what_is_sent_has_a_token_to_learn_and_what_is_left_out_has_none() -> None:
    recipe = public("sft")
    records = [FIT, FULL, CUT_OFF, LAST, {"prompt": "", "completion": ""}]
    own = read(recipe, records)
    assert own.records.to_pylist() == [FIT, CUT_OFF, LAST]
    assert own.counts == {"records": 5, "whole": 1, "truncated": 2, "filtered": 0, "empty": 2}
    encode = RecordEncoding.of(recipe, Path()).encode
    learned = [int((encode([record])["labels"][0, 1:] != -100).sum()) for record in records]
    assert [count > 0 for count in learned] == [True, False, True, True, False]


def test_a_blank_text_is_left_out_and_a_test_split_whole() -> None:
    recipe = public("classify")
    rows = [{"text": text, "finding": 0} for text in ("a lump", " ", "a lump " * 9)]
    own = read(recipe, rows)
    assert own.records.num_rows == 2
    assert own.counts == {"records": 3, "whole": 1, "truncated": 1, "filtered": 0, "empty": 1}
    tested = read(recipe, rows, role="test")
    assert (tested.records.num_rows, tested.counted, tested.counts) == (3, False, None)
    with pytest.raises(RecordInvalid):
        read(recipe, [{"text": 7, "finding": 0}])


@pytest.mark.claim("C626")
def test_a_gap_means_what_the_recipe_says_on_an_owners_machine_too() -> None:
    rows = [{"text": text, "finding": 0} for text in ("a lump", None)]
    manifest = SimpleNamespace(owner="hospital-a", name="visits")
    found: Any = SimpleNamespace(role="train", manifest=manifest, weight=1.0, columns={})
    opened = InMemory(pa.RecordBatch.from_pylist(rows))
    recipe = public("classify", missing={"text": {"constant": "not written"}})
    assert records_of(found, opened, recipe).to_pylist() == [
        rows[0], {"text": "not written", "finding": 0},
    ]  # fmt: skip
    with pytest.raises(RecordInvalid):
        records_of(found, opened, public("classify"))


def test_no_exact_count_leaves_an_owner_that_keeps_the_number_or_the_log_closed() -> None:
    own = read(cut_recipe("sft", trainer={"max_length": LONGEST}), [FIT, FULL])
    assert (own.records.num_rows, own.counted, own.counts) == (1, True, None)
    assert own.tally.to_dict()["empty"] == 1  # on the owner's machine
    assert read(public("sft"), [FIT, FULL], records=None).counts is None


def test_an_owner_whose_records_all_teach_nothing_sends_none() -> None:
    with pytest.raises(DataInvalid) as caught:
        read(public("sft"), [FULL, FULL])
    assert (caught.value.check, caught.value.owner, caught.value.dataset) == (
        "records", "hospital-a", "visits",
    )  # fmt: skip

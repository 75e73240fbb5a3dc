"""What a ledger tells of a dataset; where it comes from is ``attack/test_withdrawals.py``."""

from __future__ import annotations

from typing import Any

import pytest

from sealtrain.ledger.uses import MAX_OUTPUTS, Uses, outputs_entry

DATASET, OTHER = "d1" * 16, "d2" * 16
RUN, OWNER_ID = "ab" * 16, "0a" * 32


def release(run: str = RUN, *datasets: str, until: str = "2026-01-01T01:00:00Z") -> dict[str, Any]:
    return {
        "run_id": run,
        "recipe_hash": "0c" * 32,
        "compose_hash": "0b" * 32,
        "datasets": [
            {"owner_id": OWNER_ID, "dataset_id": dataset, "root": "11" * 32} for dataset in datasets
        ],
        "not_after": until,
    }


def told(*entries: tuple[str, dict[str, Any]], of: str = DATASET) -> dict[str, Any]:
    uses = Uses([of])
    for index, (kind, body) in enumerate(entries):
        uses.entry(index, {"kind": kind, "at": f"2026-01-01T00:00:{index:02}Z", "body": body})
    (found,) = uses.list_uses()
    return found.to_dict()


def test_a_resumed_run_is_one_run_with_its_last_lease() -> None:
    later = "2026-01-02T01:00:00Z"
    (run,) = told(
        ("release", release(RUN, DATASET)), ("release", release(RUN, DATASET, until=later))
    )["runs"]
    assert (run["released_at"], run["leased_until"]) == ("2026-01-01T00:00:00Z", later)


def test_a_run_that_got_it_only_when_it_resumed_is_told() -> None:
    found = told(("release", release(RUN, OTHER)), ("release", release(RUN, OTHER, DATASET)))
    assert [run["run_id"] for run in found["runs"]] == [RUN]


def test_runs_of_other_data_are_not() -> None:
    manifest = {"run_id": RUN, "manifest_digest": "ab" * 32, "outputs": []}
    assert told(("release", release(RUN, OTHER)), ("manifest", manifest))["runs"] == []


def test_the_first_of_two_withdrawals_is_told() -> None:
    entry = {"owner": "ada", "owner_id": OWNER_ID, "datasets": [DATASET]}
    found = told(("withdrawal", entry), ("withdrawal", entry))
    assert (found["withdrawn_at"], found["owner"]) == ("2026-01-01T00:00:00Z", "ada")


@pytest.mark.parametrize(
    "body", [{}, {"datasets": None}, {"datasets": [3]}, {"datasets": [{}]}, {"run_id": []}], ids=str
)
def test_what_has_not_the_form_of_its_kind_is_left_to_an_audit(body: dict[str, Any]) -> None:
    kinds = ("dataset", "withdrawal", "release", "renewal", "manifest")
    found = told(*((kind, body) for kind in kinds), ("release", release(RUN, DATASET)))
    assert len(found["runs"]) == 1


def test_more_files_than_an_entry_holds_are_left_to_the_manifest() -> None:
    files = [(f"model/{number}", "ab" * 32) for number in range(MAX_OUTPUTS)]
    assert outputs_entry(files) is not None
    assert outputs_entry([*files, ("model/more", "ab" * 32)]) is None
    assert outputs_entry([("x" * 200_000, "ab" * 32)]) is None

"""What the keeper states by itself: of datasets to a workload, of a training to a manifest."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealtrain.errors import DataInvalid
from sealtrain.guest.stated_data import (
    ServedRows,
    accelerators_here,
    environment_here,
    record_served,
)


def run_of(recorded: list[Any], *, logs: str = "structured", count: int = 2) -> Any:
    def found(number: int, role: str, records: int | None) -> SimpleNamespace:
        manifest = SimpleNamespace(dataset_id=f"{number:032x}", records=records)
        return SimpleNamespace(role=role, manifest=manifest)

    return SimpleNamespace(
        sealed_datasets=[
            found(0, "model", None),
            *(found(number, "train", 9) for number in range(1, count)),
            found(count, "test", None),
        ],
        recipe=SimpleNamespace(
            collaboration=None,
            privacy=SimpleNamespace(dp="none"),
            release_policy=SimpleNamespace(logs=logs),
        ),
        record=lambda event, fields: recorded.append((event, fields)),
    )


@pytest.mark.claim("C557")
def test_rows_are_recorded_where_they_are_public_and_no_model_is_named() -> None:
    recorded: list[Any] = []
    record_served(run_of(recorded), {"1".zfill(32): 12, "2".zfill(32): 7})
    assert recorded == [("rows.served", {"1".zfill(32): 12, "2".zfill(32): None})]
    recorded.clear()
    record_served(run_of(recorded, logs="none"), {})
    assert recorded == [("rows.served", {"1".zfill(32): None, "2".zfill(32): None})]


def test_an_entry_names_no_more_datasets_than_a_log_takes() -> None:
    recorded: list[Any] = []
    record_served(run_of(recorded, count=300), {})
    assert [len(fields) for _, fields in recorded] == [256, 44]


def test_a_resumed_run_goes_on_counting() -> None:
    kept = {"a": 5}
    served = ServedRows(kept)
    with served.serving("a", 3), served.serving("b", 1):
        assert kept == {"a": 8, "b": 1}
    with suppress(DataInvalid), served.serving("b", 7):
        raise DataInvalid("damaged")
    assert kept == {"a": 8, "b": 1}


def test_the_machine_is_read_without_a_training_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2\n\x1b[31m" + "x" * 400)
    facts = environment_here(3)
    assert facts["world_size"] == "3"
    assert len(facts["mkl_cbwr"]) == 300
    assert all(text.isprintable() for text in facts.values())
    gpus, nodes = tmp_path / "gpus", tmp_path / "nodes"
    assert accelerators_here(gpus, nodes) == ()
    for name, text in (("0000:01:00.0", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n"), ("0b", "")):
        (gpus / name).mkdir(parents=True)
        (gpus / name / "information").write_text(text)
    for name, number in (("0", "0"), ("1", "4711")):
        (nodes / name).mkdir(parents=True)
        (nodes / name / "gpu_id").write_text(number + "\n")
        (nodes / name / "name").write_text("gfx942\n")
    assert accelerators_here(gpus, nodes) == ("NVIDIA H100 80GB HBM3", "unknown", "AMD gfx942")


def test_a_keeper_has_what_it_states(tmp_path: Path) -> None:
    assert cast("Any", environment_here(1))["torch"] != "absent"

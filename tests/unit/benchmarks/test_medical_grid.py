"""The medical benchmark: splits that do not leak, one budget, cells that follow their settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING

from medical import Grid, Wanted, choosing, chosen, keep, read_cells
from medical_sets import Rows, found_in
from medical_split import divided, shares

if not COLLECTING:
    from scipy.stats import ttest_rel

    import medical_task
    from medical_beside import page as beside
    from medical_page import interval, page, paired, results_of
    from medical_task import FEWEST, RATES, SERVER_RATES, Settings
    from medical_ways import WAYS, chooser_of


def rows(count: int, first: int = 0, kinds: int = 4) -> Rows:
    """Of patients with two records each, whose labels differ from one patient to the next."""
    return [
        {
            "text": f"record {first + number}",
            "label": f"kind {(number // 2) % kinds}",
            "patient": f"patient {(first + number) // 2}",
        }
        for number in range(count)
    ]


def patients(of: Rows) -> set[str]:
    return {row["patient"] for row in of}


@pytest.mark.claim("C241")
def test_no_patient_is_in_two_splits() -> None:
    records = divided(lambda: (rows(400), rows(60, first=1000)))
    parts = [records.train, records.validation, records.test]
    assert all(parts)
    for number, part in enumerate(parts):
        for other in parts[number + 1 :]:
            assert not patients(part) & patients(other)
    assert len(records.train) + len(records.validation) == 400


@pytest.mark.claim("C241")
def test_no_text_is_in_two_splits() -> None:
    """Of other patients, word for word."""
    train = [row | {"text": f"text {number % 90}"} for number, row in enumerate(rows(400))]
    tested = [row | {"text": f"text {number}"} for number, row in enumerate(rows(30, first=1000))]
    records = divided(lambda: (train, tested))
    parts = [records.train, records.validation, records.test]
    texts = [{row["text"] for row in part} for part in parts]
    assert all(parts)
    assert len(records.test) == 30
    assert not (texts[0] & texts[1])
    assert not ((texts[0] | texts[1]) & texts[2])


def test_a_collection_whose_test_patients_train_is_refused() -> None:
    with pytest.raises(ValueError, match="1 patients"):
        divided(lambda: (rows(40), rows(2)))


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
@pytest.mark.parametrize("parties", [3, 10])
def test_shares_are_the_training_records_and_no_others(partition: Any, parties: int) -> None:
    records = divided(lambda: (rows(800), rows(60, first=1000)))
    parts = shares(records.train, partition, parties, 1)
    assert sorted(row["text"] for part in parts for row in part) == sorted(
        row["text"] for row in records.train
    )
    assert sum(len(patients(part)) for part in parts) == len(patients(records.train))
    assert all(parts)


def test_dirichlet_parties_differ_more_than_even_ones() -> None:
    train = divided(lambda: (rows(800), rows(60, first=1000))).train

    def largest_share(partition: Any) -> float:
        found = []
        for part in shares(train, partition, 3, 1):
            labels = [row["label"] for row in part]
            found.append(max(labels.count(label) for label in set(labels)) / len(labels))
        return max(found)

    assert largest_share("dirichlet") > largest_share("iid") + 0.1


def test_too_many_parties_for_the_records_are_refused() -> None:
    with pytest.raises(ValueError, match="30 parties"):
        shares(rows(20), "iid", 30, 1)


@pytest.mark.claim("C241")
def test_every_way_has_the_same_budget() -> None:
    whole = Settings(length=16, rounds=5, local_steps=7, batch=8)
    assert whole.shared_by(FEWEST) == whole
    for parties in (3, 10, 30):
        settings = whole.shared_by(parties)
        assert settings.pooled_steps(parties) * settings.batch == settings.records(parties)
        assert settings.records(parties) == parties * settings.steps * settings.batch
        # As many records as three parties see, and less than one more batch for each in a round.
        more = settings.records(parties) - whole.records(FEWEST)
        assert 0 <= more < parties * settings.rounds * settings.batch


def test_sealed_ways_take_the_rate_of_the_algorithm_in_the_clear() -> None:
    for how in WAYS.values():
        if how.sealed:
            assert how.twin is not None
            assert not WAYS[how.twin].sealed
    for way in WAYS:
        assert chooser_of(chooser_of(way)) == chooser_of(way)
        assert not WAYS[chooser_of(way)].sealed


NOTES = {"notes": "5c" * 32}


def told(one: Wanted, validation: float = 0.5, accuracy: float = 0.6) -> dict[str, Any]:
    metrics = {"accuracy": accuracy, "f1": 0.4, "validation": validation, "stopped": 4}
    return {
        "cell": {name: getattr(one, name) for name in one.__slots__},
        "digest": one.digest,
        "records": NOTES["notes"],
        "at_steps": metrics,
        "at_records": metrics,
        "cpu": 1.0,
        "measuring": 0.5,
        "bytes": 10,
        "steps": 4,
        "states": "aa",
    }


def wanted(**changed: Any) -> Wanted:
    fields: dict[str, Any] = {
        "collection": "notes",
        "partition": "iid",
        "parties": 3,
        "way": "fedavg",
        "rate": RATES[0],
        "seed": 1,
    }
    return Wanted(**fields | changed)


@pytest.mark.claim("C241")
def test_a_changed_setting_invalidates_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, one = tmp_path / "cells.jsonl", wanted()
    keep(path, told(one))
    assert read_cells(path, NOTES).keys() == {one.key}
    monkeypatch.setitem(
        medical_task.SETTINGS, "notes", Settings(length=64, rounds=1, local_steps=1)
    )
    assert read_cells(path, NOTES) == {}
    keep(path, told(one))
    assert read_cells(path, NOTES).keys() == {one.key}
    assert read_cells(path, {"notes": "00" * 32}) == {}  # other records under the same name
    assert read_cells(path, {}) == {}
    monkeypatch.setattr(medical_task, "LORA", medical_task.LORA | {"r": 4})
    assert read_cells(path, NOTES) == {}


def test_a_cell_is_written_once_and_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    keep(path, told(wanted(), accuracy=0.6))
    with path.open("a") as file:
        file.write(json.dumps(told(wanted(seed=2)))[:40])
    keep(path, told(wanted(seed=3)))
    keep(path, told(wanted(), accuracy=0.9))
    cells = read_cells(path, NOTES)
    assert {key.rpartition("/")[2] for key in cells} == {"1", "3"}
    assert cells[wanted().key]["at_records"]["accuracy"] == 0.6


@pytest.mark.claim("C241")
def test_rates_are_chosen_on_validation_alone() -> None:
    # The rate with the best test accuracy has the worst validation accuracy.
    validation, accuracy = (0.7, 0.7, 0.6, 0.5, 0.5), (0.1, 0.2, 0.3, 0.9, 0.8)
    cells = {
        cell.key: told(cell, validation=score, accuracy=hidden)
        for cell, score, hidden in zip(
            choosing("notes", 3, "fedavg"), validation, accuracy, strict=True
        )
    }
    best = chosen(cells, "notes", 3, "fedavg-sealed")
    assert best is not None
    assert (best.rate, best.server) == (RATES[0], None)
    cells.popitem()
    assert chosen(cells, "notes", 3, "fedavg-sealed") is None


def test_each_number_of_parties_chooses_its_own_rate() -> None:
    cells = {
        cell.key: told(cell, validation=0.9 if cell.rate == best else 0.5)
        for parties, best in ((3, RATES[1]), (10, RATES[3]))
        for cell in choosing("notes", parties, "fedavg")
    }
    found = [chosen(cells, "notes", parties, "fedavg") for parties in (3, 10, 30)]
    assert [item and item.rate for item in found] == [RATES[1], RATES[3], None]


def test_a_central_way_is_measured_once_for_both_partitions() -> None:
    grid = Grid(collections=["notes"], partitions=["iid", "dirichlet"], parties=[3],
                ways=["pooled", "int8", "cut", "fedavg"], seeds=1)  # fmt: skip
    cells: dict[str, Any] = {}
    for cell in grid.wanted(cells):
        cells.setdefault(cell.key, told(cell))
    assert {cell["cell"]["way"] for cell in cells.values()} == set(grid.ways)
    assert {
        cell["cell"]["way"] for cell in cells.values() if cell["cell"]["partition"] == "dirichlet"
    } == {"fedavg"}


def test_a_way_whose_merge_has_a_rate_chooses_both() -> None:
    candidates = choosing("notes", 3, "fedadam")
    assert len({candidate.key for candidate in candidates}) == len(RATES) * len(SERVER_RATES)
    wins = candidates[7]
    cells = {
        candidate.key: told(candidate, validation=0.9 if candidate == wins else 0.5)
        for candidate in candidates
    }
    assert chosen(cells, "notes", 3, "fedadam") == wins


def test_a_resumed_grid_wants_only_what_is_missing() -> None:
    grid = Grid(
        collections=["notes"],
        partitions=["iid", "dirichlet"],
        parties=[3],
        ways=["tfidf", "fedavg", "fedavg-sealed"],
        seeds=2,
    )
    cells: dict[str, Any] = {}
    order = []
    for cell in grid.wanted(cells):
        if cell.key not in cells:
            order.append(cell)
            cells[cell.key] = told(cell)
    # Linear model; all rates; the chosen one's further seed; sealed seeds; and both elsewhere.
    assert len(order) == 1 + len(RATES) + 1 + 2 + 4
    assert [cell for cell in grid.wanted(cells) if cell.key not in cells] == []


def test_cells_of_another_base_are_never_read_for_this_one(tmp_path: Path) -> None:
    grids = {
        base: Grid(collections=["notes"], partitions=["iid"], parties=[3], ways=["fedavg"],
                   seeds=1, base=base)
        for base in ("minilm", "random")
    }  # fmt: skip
    path = tmp_path / "cells.jsonl"
    for base, grid in grids.items():
        for cell in choosing("notes", 3, "fedavg"):
            keep(path, told(replace(cell, base=base), accuracy=0.6 if base == "minilm" else 0.3))
        cells = read_cells(path, NOTES, base)
        assert {cell["cell"]["base"] for cell in cells.values()} == {base}
        assert [cell for cell in grid.wanted(cells) if cell.key not in cells] == []
    lines = path.read_text("utf-8").splitlines()
    lied = [json.loads(line) for line in lines if '"random"' in line]
    for line in lied:
        line["cell"]["base"] = "minilm"
    path.write_text("".join(json.dumps(line) + "\n" for line in lied), "utf-8")
    assert read_cells(path, NOTES, "minilm") == {}


def collected(folder: Path) -> dict[str, Any]:
    """A folder of one collection."""
    place = folder / "notes"
    place.mkdir()
    for name, part in (("train", rows(100)), ("test", rows(20, first=1000))):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (place / f"{name}.jsonl").write_text(lines, "utf-8")
    return found_in(folder)


def test_records_that_name_no_patient_are_of_a_patient_each(tmp_path: Path) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    for name in ("train", "test"):
        row = json.dumps({"text": "a cough", "label": "cold"})
        (place / f"{name}.jsonl").write_text(f"{row}\n{row}\n", "utf-8")
    train, test = found_in(tmp_path)["plain"]()
    assert len({row["patient"] for row in (*train, *test)}) == 4


def test_the_page_counts_what_is_missing(tmp_path: Path) -> None:
    reads = collected(tmp_path)
    grid = Grid(collections=["notes"], partitions=["iid"], parties=[3], ways=["fedavg"], seeds=3)
    cells = {cell.key: told(cell) for cell in choosing("notes", 3, "fedavg")}
    results = results_of(grid, cells, reads)
    assert [line["ways"] for line in results["missing"]] == [{"fedavg": 2}]
    assert [row["seeds"] for place in results["places"] for row in place["rows"]] == [1]


def test_ways_from_random_weights_stand_beside_the_same_seeds_of_the_encoder() -> None:
    grid = Grid(collections=["notes"], partitions=["iid"], parties=[3], ways=["fedavg"], seeds=2)
    pretrained: dict[str, Any] = {}
    for cell in grid.wanted(pretrained):
        pretrained.setdefault(cell.key, told(cell, accuracy=0.5 + cell.seed / 10))
    rates = [replace(cell, base="random") for cell in choosing("notes", 3, "fedavg")]
    cells = {rate.key: told(rate, accuracy=0.25) for rate in rates}
    whole = beside(grid, cells, pretrained, [])
    assert "| `notes` | iid | 3 | FedAvg, LoRA, in the clear | 5 of 5 | 1 | 25.0 | 60.0 |" in whole
    some = beside(grid, dict(list(cells.items())[:2]), pretrained, [])
    assert "| 2 of 5 | 1 | 25.0 | 60.0 |" in some
    assert "25.0" not in beside(grid, {}, pretrained, [])


def test_a_table_of_dirichlet_parties_tests_only_what_was_dealt_out(tmp_path: Path) -> None:
    reads = collected(tmp_path)
    ways = ["pooled", "int8", "split1", "fedavg", "fedavg-sealed", "ffa"]
    grid = Grid(collections=["notes"], partitions=["iid", "dirichlet"], parties=[3], ways=ways,
                seeds=2)  # fmt: skip
    cells: dict[str, Any] = {}
    for cell in grid.wanted(cells):
        accuracy = 0.6 + 0.01 * cell.seed + 0.001 * len(cell.way)
        own = {"states": f"{WAYS[cell.way].rule}{cell.partition}{cell.seed}"}
        cells.setdefault(cell.key, told(cell, accuracy=accuracy) | own)
    even, dealt = results_of(grid, cells, reads)["places"]
    assert (even["partition"], dealt["partition"]) == ("iid", "dirichlet")
    assert [row["way"] for row in dealt["rows"]] == [row["way"] for row in even["rows"]]
    assert {twin["way"] for twin in even["twins"]} == {"split1", "fedavg-sealed"}
    assert {twin["way"] for twin in dealt["twins"]} == {"fedavg-sealed"}
    # A sealed way that equals its twin is not tested a second time.
    assert {line["way"] for line in dealt["compared"]} == {"fedavg", "ffa"}
    assert "fedavg-sealed" not in {line["way"] for line in even["compared"]}


def test_the_page_names_every_sealed_way_that_stays_below_where_pooling_does_not(
    tmp_path: Path,
) -> None:
    reads = collected(tmp_path)
    reached = {"pooled": 0.8, "fedavg": 0.9, "fedavg-sealed": 0.7996, "ffa-sealed": 0.8, "ffa": 0.1}

    def shown(pooled: float) -> str:
        grid = Grid(collections=["notes"], partitions=["iid"], parties=[3], ways=list(reached),
                    seeds=2)  # fmt: skip
        cells: dict[str, Any] = {}
        for cell in grid.wanted(cells):
            accuracy = (reached | {"pooled": pooled})[cell.way]
            cells.setdefault(cell.key, told(cell, accuracy=accuracy))
        return page(results_of(grid, cells, reads))

    found = shown(0.8)
    assert "In 1 tables pooled LoRA reaches 80% after equal records; there 1 of\n2 rows" in found
    assert "| `notes`, 3 parties, IID | FedAvg, LoRA, sealed 80.0 |" in found
    assert "pooled LoRA reaches" not in shown(0.79)


def test_a_place_with_central_ways_alone_is_no_table_of_dirichlet_parties(tmp_path: Path) -> None:
    grid = Grid(collections=["notes"], partitions=["iid", "dirichlet"], parties=[3],
                ways=["pooled"], seeds=1)  # fmt: skip
    cells: dict[str, Any] = {}
    for cell in grid.wanted(cells):
        cells.setdefault(cell.key, told(cell))
    places = results_of(grid, cells, collected(tmp_path))["places"]
    assert [place["partition"] for place in places] == ["iid"]


def test_paired_tests_are_those_of_scipy() -> None:
    ours, others = [0.61, 0.64, 0.6, 0.66, 0.63], [0.6, 0.6, 0.61, 0.62, 0.6]
    assert paired(ours, others) == pytest.approx(float(ttest_rel(ours, others).pvalue))
    assert paired(ours, ours) is None
    assert interval([0.5]) is None

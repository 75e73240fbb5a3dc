"""The page of ``medical.py --base random``: the same ways from random weights, beside MiniLM."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medical import Cells, Grid, choosing, chosen, words_of
from medical_page import interval, lacking, results_of, seeds_of, shown
from medical_sets import Read
from medical_ways import WAYS, chooser_of
from sealtrain.base.files import atomic_write

NAME = "medical-random.md"
Row = tuple[str, str, dict[int, dict[str, Any]], dict[int, dict[str, Any]]]


def write(grid: Grid, random: Cells, pretrained: Cells, reads: dict[str, Read], out: Path) -> None:
    """Write the page of the cells that are there.

    Args:
        grid: All that can be measured.
        random: Cells from random weights.
        pretrained: Cells of MiniLM.
        reads: Readers of the grid's collections.
        out: Folder of the page.
    """
    missing = results_of(grid, random, reads)["missing"]
    atomic_write(out / NAME, page(grid, random, pretrained, missing).encode(), overwrite=True)


def page(grid: Grid, random: Cells, pretrained: Cells, missing: list[dict[str, Any]]) -> str:
    """The page; rows whose learning rate is chosen among fewer rates than all say so."""
    seconds = sum(cell["cpu"] + cell.get("measuring", 0) for cell in random.values())
    parts = [
        "# The medical table from random weights\n",
        "What pretraining gives: the ways of [the medical table](medical.md), with the same "
        "records, settings and tokenizer, from random\nweights of MiniLM's shape, beside the same "
        "seeds from MiniLM. Accuracy after equal records, in percent.\n",
        "Made by `python benchmarks/medical.py --base random --no-run --write` from "
        f"{len(random)} cells; measuring these took\n{seconds:.0f} s of processor time. "
        "[How we measured](medical-method.md) says the rest.\n",
        "| collection | partition | parties | way | learning rates tried | seeds "
        "| random weights | MiniLM |",
        "|---|---|---:|---|---|---:|---:|---:|",
    ]
    for place, title, mine, beside in _rows(grid, random, pretrained):
        parts.append(
            f"| {place} | {title} | {len(mine)} | {_accuracy(mine)} | {_accuracy(beside)} |"
        )
    parts += ["", *lacking(missing, more="--base random ")]
    return "\n".join(parts).rstrip("\n") + "\n"


def _rows(grid: Grid, random: Cells, pretrained: Cells) -> Iterator[Row]:
    for name in grid.collections:
        words = words_of(name).key
        if words in random and words in pretrained:
            alone = ({1: random[words]}, {1: pretrained[words]})
            yield (f"`{name}` | - | -", f"{WAYS['tfidf'].title}, no encoder | -", *alone)
        for partition in grid.partitions:
            for parties in grid.parties:
                for way in grid.ways:
                    place = (name, partition, parties)
                    mine, tried = _measured(random, place, way)
                    theirs = seeds_of(pretrained, place, way)
                    beside = {seed: theirs[seed] for seed in mine if seed in theirs}
                    if mine:
                        yield (
                            f"`{name}` | {partition} | {parties}",
                            f"{WAYS[way].title} | {tried}",
                            mine,
                            beside,
                        )


def _measured(cells: Cells, place: tuple[str, Any, int], way: str) -> tuple[dict[int, Any], str]:
    """Cells of a way by seed, and how many rates its rate was chosen among."""
    name, partition, parties = place
    if WAYS[way].kind == "words":
        return {}, ""
    candidates = choosing(name, parties, chooser_of(way))
    tried = [candidate for candidate in candidates if candidate.key in cells]
    said = f"{len(tried)} of {len(candidates)}"
    if chosen(cells, name, parties, way) is not None:
        return seeds_of(cells, place, way), said
    if chooser_of(way) != way or partition != "iid" or not tried:
        return {}, said
    best = max(tried, key=lambda one: cells[one.key]["at_records"]["validation"])
    return {best.seed: cells[best.key]}, said


def _accuracy(seeds: dict[int, dict[str, Any]]) -> str:
    values = [cell["at_records"]["accuracy"] for cell in seeds.values()]
    return shown([statistics.fmean(values), interval(values)]) if values else "-"

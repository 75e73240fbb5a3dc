"""How fast a broker releases keys: full releases over HTTP, every check of both sides included.

    python benchmarks/release.py [--json] [--postgres] [--releases 320] [--guests 16] [--folder DIR]

A broker is a process of its own with its database and ledger on a disk, in SQLite, and with
``--postgres`` then in a PostgreSQL that is started for it. Three owners sealed,
registered and approved; each release is a new run that asks for the three datasets. Guests are
simulated, so quotes are verified as those of hardware, under another root.

==============  ==================================================================================
``one guest``   from asking for a challenge until the keys are checked and in hand: challenge,
                evidence, release, receipt, ledger proof, one guest at a time
``release``     of that, the request for the release alone: what a guest waits for the broker
``rate``        full releases a second with many guests at once. They go in step: all ask for
                challenges, all make evidence, all ask for keys, all check. The clock runs while
                the broker has something to do, not while guests work for themselves
``broker cpu``  processor time of the broker for a full release (challenge and release)
``guests cpu``  the same of the guests: request, evidence, checks of the answer
``memory``      what the broker holds after the first tenth of the releases and after the last
``peer``        a key-value store: the same HTTP server and client, one read from SQLite, no checks
==============  ==================================================================================
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from asyncio import run
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response

from measured_on import give_up, machine
from sealtrain.base.canonical import canonical_json
from sealtrain.base.models import Hex64, StrictModel
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.http.server import serve_app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.grant import Grant, KeyRequest, obtain
from sealtrain.client.transport import Transport
from sealtrain.release.messages import Challenge, ReleaseAnswer, ReleaseRequest

REPOSITORY = Path(__file__).resolve().parents[1]
WORLDS = REPOSITORY / "tests" / "support"  # a consortium whose owners sealed and approved
P50_MS = 50.0
PER_SECOND = 100.0
MEMORY_MIB = 16.0
"""A broker grows by less between the first tenth of the releases and the last one."""
SINGLE = 40
READS = 400
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Steps:
    """Guests that go in step, and how long the broker was what they waited for."""

    guests: int
    busy: float = 0.0
    releases: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = 0.0
        self._start = threading.Barrier(self.guests, action=self._begin)
        self._end = threading.Barrier(self.guests, action=self._stop)

    @contextmanager
    def broker_works(self) -> Iterator[None]:
        """All guests enter together; the clock runs until the last one leaves."""
        self._start.wait(600)
        yield
        self._end.wait(600)

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _stop(self) -> None:
        self.busy += time.perf_counter() - self._began


class InStep(BrokerClient):
    """A client that waits for the others before it asks."""

    def __init__(self, url: str, steps: Steps) -> None:
        super().__init__(url)
        self._steps = steps

    def challenge(self, *asked: Any) -> Challenge:
        """As of any client, together with the others."""
        with self._steps.broker_works():
            return super().challenge(*asked)

    def release(self, request: ReleaseRequest) -> ReleaseAnswer:
        """As of any client, together with the others."""
        with self._steps.broker_works():
            began = time.perf_counter()
            answer = super().release(request)
            self._steps.releases.append(time.perf_counter() - began)
        return answer


class Guest:
    """One guest of the recipe, and its connection."""

    def __init__(self, site: Any, client: BrokerClient) -> None:
        self.client = client
        self._site = site
        self._collect = site.world.collect(site.world.guest())

    def obtain(self) -> Grant:
        """Begin a new run."""
        world, attested = self._site.world, self._site.attested
        assert isinstance(attested, AttestedBroker)
        return obtain(
            self.client,
            attested,
            self._collect,
            KeyRequest(
                run_id=os.urandom(16).hex(),
                recipe_hash=world.locked.recipe_hash,
                datasets=[dataset.asked for dataset in world.sealed.values()],
                resume=False,
            ),
        )


def released(
    folder: Path, releases: int, guests: int, database: str | None = None
) -> dict[str, Any]:
    """Measure a broker over ``releases`` full releases."""
    from broker_site import process_site

    folder.mkdir()
    with process_site(folder, database) as site:
        process, url = site.start()
        with process:
            with BrokerClient(url) as client:
                alone = one_by_one(Guest(site, client))
            return alone | together(site, process.pid, url, releases, guests)


def one_by_one(guest: Guest) -> dict[str, Any]:
    """Latency of a full release, and of the request for the keys in it."""
    whole, asked, began = [], [], 0.0
    ask = guest.client.release

    def timed(request: ReleaseRequest) -> ReleaseAnswer:
        begin = time.perf_counter()
        answer = ask(request)
        asked.append(time.perf_counter() - begin)
        return answer

    guest.client.release = timed  # type: ignore[method-assign]
    for _ in range(SINGLE):
        began = time.perf_counter()
        guest.obtain()
        whole.append(time.perf_counter() - began)
    warm = SINGLE // 4
    return {"one guest": spread(whole[warm:]), "release": spread(asked[warm:])}


def together(site: Any, pid: int, url: str, releases: int, guests: int) -> dict[str, Any]:
    """Rate, processor time and memory of the broker under many guests."""
    steps = Steps(guests)
    clients = [InStep(url, steps) for _ in range(guests)]
    crowd = [Guest(site, client) for client in clients]
    rounds = max(10, releases // guests)
    memory, cpu, own = [], cpu_seconds(pid), time.process_time()
    try:
        with ThreadPoolExecutor(guests) as threads:
            for _ in range(rounds):
                for _ in threads.map(Guest.obtain, crowd):
                    pass
                memory.append(resident_mib(pid))
    finally:
        for client in clients:
            client.close()
    count = rounds * guests
    return {
        "releases": count,
        "guests": guests,
        "rate": round(count / steps.busy, 1),
        "release_together": spread(steps.releases),
        "broker_cpu_ms": round(1000 * (cpu_seconds(pid) - cpu) / count, 2),
        "guests_cpu_ms": round(1000 * (time.process_time() - own) / count, 2),
        "memory_mib": [round(memory[rounds // 10], 1), round(memory[-1], 1)],
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: median, 95th percentile and the least of all."""
    ordered = sorted(1000 * second for second in seconds)
    return {
        "p50_ms": round(statistics.median(ordered), 2),
        "p95_ms": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
        "floor_ms": round(ordered[0], 2),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Value(StrictModel):
    """What the key-value store answers."""

    value: Hex64


def peer(folder: Path) -> dict[str, Any]:
    """A bare key-value read over the same HTTP."""
    here, there = multiprocessing.Pipe()
    spawned = multiprocessing.get_context("spawn")
    process = spawned.Process(target=serve_values, args=(folder, there))
    process.start()
    try:
        transport = Transport(here.recv())
        taken = []
        for _ in range(READS):
            began = time.perf_counter()
            transport.get("/values/key", Value)
            taken.append(time.perf_counter() - began)
        transport.close()
    finally:
        process.terminate()
        process.join(20)
    return spread(taken[READS // 10 :])


def serve_values(folder: Path, ready: Connection) -> None:
    """Serve one value from a database until SIGTERM."""
    values = sqlite3.connect(folder / "values.sqlite", check_same_thread=False)
    with values:
        values.execute("CREATE TABLE pairs (name TEXT PRIMARY KEY, value BLOB)")
        value = canonical_json({"value": "00" * 32})
        values.execute("INSERT INTO pairs VALUES ('key', ?)", (value,))
    app = FastAPI()

    @app.get("/values/{name}")
    def read(name: str) -> Response:
        found = values.execute("SELECT value FROM pairs WHERE name = ?", (name,)).fetchone()
        return Response(found[0], media_type="application/json")

    config = BrokerConfig(
        consortium=folder,
        policy=folder,
        root_secret="none:",  # noqa: S106  # it has none
        state=folder,
        guest="none",
        collateral=None,
        platform="simulator",
        port=0,
    )
    run(serve_app(app, config, ready.send, None))


def missed(found: dict[str, Any]) -> list[str]:
    """Names of the figures that miss their target."""
    first, last = found["memory_mib"]
    return [
        name
        for name, slow in {
            "one guest": found["one guest"]["p50_ms"] >= P50_MS,
            "rate": found["rate"] < PER_SECOND,
            "memory": last - first >= MEMORY_MIB,
        }.items()
        if slow
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--releases", type=int, default=320)
    parser.add_argument("--guests", type=int, default=16, help="at once")
    parser.add_argument("--postgres", action="store_true", help="also on PostgreSQL")
    parser.add_argument("--folder", type=Path, help="disk to write to (default: temporary files)")
    given = parser.parse_args()
    sys.path.insert(0, str(WORLDS))
    from programs import found

    if given.postgres and found("postgresql") is None:
        give_up("PostgreSQL: apt-get install postgresql")
    figures = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        plain = peer(Path(name))
        asked = (given.releases, given.guests)
        figures["sqlite"] = released(Path(name) / "files", *asked)
        if given.postgres:
            from postgres_server import postgres_server

            with postgres_server() as server:
                address = server.url(server.new_database())
                figures["postgresql"] = released(Path(name) / "server", *asked, address)
    for figure in figures.values():
        figure["peer"] = plain
        figure["ratio"] = round(figure["release"]["p50_ms"] / plain["p50_ms"], 1)
    results = {
        "machine": machine("cryptography", "fastapi", "uvicorn", "sqlalchemy"),
        "figures": figures,
        "targets": {"p50_ms": P50_MS, "per_second": PER_SECOND, "memory_mib": MEMORY_MIB},
        "missed": [
            f"{kind}: {figure}" for kind, each in figures.items() for figure in missed(each)
        ],
    }
    if given.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)


def show(results: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{results['machine']}\n")
    for database, found in results["figures"].items():
        first, last = found["memory_mib"]
        print(f"{database}: {found['releases']} releases, {found['guests']} guests at once")
        for name in ("one guest", "release", "release_together", "peer"):
            words = "   ".join(f"{key[:-3]} {value:8.2f} ms" for key, value in found[name].items())
            target = f"   below {P50_MS:.0f}" if name == "one guest" else ""
            print(f"  {name.replace('_', ' '):18}{words}{target}")
        print(f"  {'rate':18}{found['rate']:8.1f}/s   at least {PER_SECOND:.0f}")
        print(f"  {'broker cpu':18}{found['broker_cpu_ms']:8.2f} ms a release")
        print(f"  {'guests cpu':18}{found['guests_cpu_ms']:8.2f} ms a release")
        print(f"  {'memory':18}{first:8.1f} MiB, then {last:.1f}")
        print(f"  {'release / peer':18}{found['ratio']:8.1f}")
    print(f"missed: {', '.join(results['missed']) or 'nothing'}")


if __name__ == "__main__":
    main()

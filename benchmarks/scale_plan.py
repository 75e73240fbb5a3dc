"""The plan on paper for 100 TB and 1,000 GPUs: measured constants, multiplied, beside limits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

from sealtrain.base.canonical import canonical_json
from sealtrain.base.limits import MAX_MANIFEST_BYTES, MAX_RECEIPTS
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.grant import Grant, KeyRequest, obtain, renew
from sealtrain.recipe.collaborations.nodes import MAX_PROCESSES
from sealtrain.sealing.index import MAX_INDEX_BYTES, MAX_SHARDS
from sealtrain.signing.runlog import RunLog
from sealtrain_nodes.wire.frames import FRAME_BYTES, OVERHEAD

WORLDS = Path(__file__).resolve().parents[1] / "tests" / "support"
MANIFEST_LOG = 20_000
RELEASES, RENEWALS = 4, 16
DAY = 86_400
CONNECTION_BYTES = 2 * (FRAME_BYTES + OVERHEAD)


def broker_constants(folder: Path) -> dict[str, float]:
    """What releases and renewals leave behind: a real broker, asked over HTTP by simulated guests.

    Args:
        folder: Where its database and ledger may lie; does not exist yet.
    """
    sys.path.insert(0, str(WORLDS))
    from broker_site import process_site

    folder.mkdir()
    with process_site(folder) as site:
        process, url = site.start()
        with process, BrokerClient(url) as client:
            collect = site.world.collect(site.world.guest())
            start = len(_entries(client))
            grants = [_released(site, client, collect) for _ in range(RELEASES)]
            held, first_renewal = grants[-1], len(_entries(client))
            began = time.perf_counter()
            for number in range(1, RENEWALS + 1):
                anchor = number, os.urandom(32).hex()
                held = renew(client, site.attested, collect, held, checkpoint=anchor)
            seconds = time.perf_counter() - began
            entries = _entries(client)
            release, renewal = held.receipts
            return {
                "entry_release": _mean(entries[start:first_renewal]),
                "entry_renewal": _mean(entries[first_renewal:]),
                "renewal_ms": 1000 * seconds / RENEWALS,
                "manifest_release": len(canonical_json(release.to_dict())),
                "manifest_renewal": len(canonical_json(renewal.to_dict())),
                "ledger_entries": len(entries),
                "datasets": len(site.world.sealed),
            }


def _released(site: Any, client: BrokerClient, collect: Any) -> Grant:
    world = site.world
    return obtain(
        client,
        site.attested,
        collect,
        KeyRequest(
            run_id=os.urandom(16).hex(),
            recipe_hash=world.locked.recipe_hash,
            datasets=[dataset.asked for dataset in world.sealed.values()],
            resume=False,
        ),
    )


def _entries(client: BrokerClient) -> list[Any]:
    found: list[Any] = []
    while page := client.ledger_entries(len(found), 100):
        found += page
    return found


def _mean(entries: list[Any]) -> float:
    return sum(len(canonical_json(entry)) for entry in entries) / len(entries)


def run_log_bytes() -> int:
    """Bytes of the entry that a sealed checkpoint adds to the run log."""
    log = RunLog("ab" * 16)
    fields: dict[str, Any] = {"counter": 1000, "step": 100_000, "digest": "cd" * 32}
    log.append("checkpoint.sealed", fields, int(time.time()))
    return len(canonical_json(log.entries[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is planned.

    Attributes:
        terabytes: Of data, all in one dataset; 10**12 bytes each.
        gpus: Ranks.
        gpus_a_node: On each node.
        brokers: Asked by every node.
        days: Of training.
        lease_hours: Of a broker's leases.
        resumes: How often a node is replaced, or all go on after an end.
        checkpoint_hours: Between two checkpoints.
        parameters: Of the model, trained in full: float32 and two moments.
    """

    terabytes: float = 100
    gpus: int = 1000
    gpus_a_node: int = 8
    brokers: int = 3
    days: float = 30
    lease_hours: float = 1
    resumes: int = 4
    checkpoint_hours: float = 1
    parameters: float = 70e9

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return ceil(self.gpus / self.gpus_a_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity of the plan.

    Attributes:
        what: It is.
        found: Its value in the plan, with a unit.
        how: It is computed.
        used: Value divided by its limit; ``None`` where nothing limits it.
        limit: The limit in words.
    """

    what: str
    found: str
    how: str
    used: float | None = None
    limit: str = ""


def plan(measured: Mapping[str, float], wanted: Plan) -> list[Row]:
    """Every quantity of a plan.

    Args:
        measured: Constants that the benchmark measured.
        wanted: The plan.
    """
    gigabytes = wanted.terabytes * 1000
    seconds = wanted.days * DAY
    index = measured["index_bytes_a_gb"] * gigabytes
    shards = gigabytes * measured["shards_a_gb"]
    checkpoints = wanted.days * 24 / wanted.checkpoint_hours
    halves = wanted.days * 24 / (wanted.lease_hours / 2)
    renewals = (checkpoints + halves) * wanted.nodes
    entries = renewals * wanted.brokers
    # A proof has one more hash, of 67 bytes in JSON, each time the ledger doubles.
    deeper = 67 * max(0.0, log2(max(renewals, 2) / measured["ledger_entries"]))
    leases = wanted.nodes * wanted.brokers * (1 + wanted.resumes)
    kept = 2 * leases
    pair = measured["manifest_release"] + measured["manifest_renewal"] + 2 * deeper
    receipts = leases * pair * 4 / 3
    state = wanted.parameters * 12
    fetched = wanted.terabytes * measured["opened_by_ranks"] * measured["fetched_a_byte"]
    log = checkpoints * measured["run_log_entry"]
    others = wanted.gpus - wanted.gpus_a_node
    return [
        Row(
            what="sealed index",
            found=_bytes(index),
            how=f"{measured['index_bytes_a_gb'] / 1000:.1f} kB a GB",
            used=index / MAX_INDEX_BYTES,
            limit="256 MiB a dataset: beyond, `seal` refuses; a run may have 256 datasets",
        ),
        Row(
            what="shards",
            found=f"{shards:,.0f}",
            how=f"{measured['shards_a_gb']:.1f} a GB, of 64 MiB",
            used=shards / MAX_SHARDS,
            limit="2^20 a dataset",
        ),
        Row(
            what="to open the dataset, each rank",
            found=f"{measured['open_s_a_gb'] * gigabytes:,.0f} s",
            how=f"{1e6 * measured['open_s_a_gb']:.0f} µs a GB",
        ),
        Row(
            what="memory for what lies where, each rank",
            found=_bytes(measured["memory_a_gb"] * gigabytes),
            how=f"{measured['memory_a_gb'] / 1000:.0f} kB a GB; forked ranks share it",
        ),
        Row(
            what="record batches opened, all ranks",
            found=f"{measured['opened_by_ranks']:.1f} times the data",
            how="each by one rank, counted above; read whole by every rank, as a script's own "
            f"loader does: {wanted.gpus} times",
        ),
        Row(
            what="rows sent between ranks",
            found=f"{wanted.terabytes / seconds * 1e6:,.0f} MB/s of all ranks together",
            how="each once, to the rank that trains on it; rows of KTO and `rlhf` to every rank, "
            f"and tokens of `cpt`: {wanted.terabytes / seconds * 1e6:,.0f} MB/s to each, "
            "at a token of 4 bytes",
        ),
        Row(
            what="store must deliver",
            found=f"{fetched / seconds * 1000:,.2f} GB/s",
            how=f"{measured['fetched_a_byte']:.1f} bytes fetched a byte of a batch",
        ),
        Row(
            what="releases, to begin or resume",
            found=f"{wanted.nodes * wanted.brokers}",
            how="nodes times brokers, one release each, whatever the number of datasets",
        ),
        Row(
            what="renewals, each broker",
            found=f"{renewals / seconds:.2f}/s, {renewals:,.0f} in all",
            how="at half of the lease, and at each checkpoint, of each node",
            used=renewals / seconds * measured["renewal_ms"] / 1000,
            limit=f"{1000 / measured['renewal_ms']:.0f}/s, one at a time, evidence included",
        ),
        Row(
            what="ledger growth, each broker",
            found=_bytes(renewals * measured["entry_renewal"]),
            how=f"{measured['entry_renewal']:.0f} B a renewal, "
            f"{measured['entry_release']:.0f} B a release",
        ),
        Row(
            what="receipts in the manifest",
            found=f"{kept:,} of {entries:,.0f}, {_bytes(receipts)}",
            how="a release and the last renewal for each node, broker and resume, in base64",
            used=max(receipts / MAX_MANIFEST_BYTES, kept / MAX_RECEIPTS),
            limit="48 MiB, 4096 receipts: no run begins or resumes that would need more",
        ),
        Row(
            what="run log in the manifest",
            found=f"{checkpoints:,.0f} entries, {_bytes(log)}",
            how=f"{measured['run_log_entry']:.0f} B a checkpoint",
            used=max(
                checkpoints / MANIFEST_LOG,
                checkpoints * measured["run_log_entry"] / MAX_MANIFEST_BYTES,
            ),
            limit="20,000 entries",
        ),
        Row(
            what=f"checkpoint of {wanted.parameters / 1e9:.0f}B parameters in full",
            found=f"{_bytes(state)}, {state / measured['seal_bytes_a_s'] / 60:,.0f} min",
            how="rank 0 holds and seals the whole state, at "
            f"{measured['seal_bytes_a_s'] / 1e9:.2f} GB/s",
            used=state / measured["seal_bytes_a_s"] / (wanted.checkpoint_hours * 3600),
            limit="done before the next one",
        ),
        Row(
            what="the same, to all nodes, when they meet",
            found=f"{state / measured['share_bytes_a_s'] / 60:,.0f} min",
            how=f"node 0 sends it {measured['shared_by_first']:.2f} times, whatever the number of "
            f"nodes, and the others pass it on, at {measured['share_bytes_a_s'] / 1e9:.2f} GB/s",
        ),
        Row(
            what="connections to ranks of other nodes, each rank",
            found=f"{others}, {_bytes(others * CONNECTION_BYTES)}",
            how="a frame in each direction is in memory",
            used=wanted.gpus / MAX_PROCESSES,
            limit=f"{MAX_PROCESSES} ranks of all nodes",
        ),
    ]


def _bytes(amount: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.3g} {unit}"
        amount /= 1000
    return f"{amount:,.3g} TB"

"""The page of the scale benchmark."""

from __future__ import annotations

from typing import Any

_WHAT = """\
# Scale: one dataset, many nodes

Made by `python benchmarks/scale.py --gigabytes {gigabytes} --write` in {seconds:.0f} s.
{machine}.

## What is generated, and what is the real path

No disk holds {gigabytes} GB. `benchmarks/scale_store.py` is an HTTP server on this machine that
makes the sealed bytes of any range when they are asked for. Shard *n* is an Arrow file of 64 record
batches of 640 rows, as `sealtrain seal` lays it out; its texts are those of every shard, its ids
are its own, and its salt is a hash of *n*. `SealedWriter` sealed each of the {shards:,} shards
once, whole, to know its root, header and trailer, and the chunks were thrown away; asked for a
range, the server encrypts its chunks again with the same code.

| generated | real |
|---|---|
| texts, the same in every shard; salts | every sealed byte is made by `sealtrain.sealing` |
| the store encrypts a range when it is asked for it | the sealed index of {shards:,} roots |
| nodes are processes of one machine, over loopback | all that a node does |

A node fetches ranges over HTTP, verifies index, shards and every group under the dataset root,
decrypts, validates Arrow, follows the order, takes its part, and prefetches.

Sealing took {sealing:.0f} s in two processes, {rate:.2f} GB/s each while it sealed.
"""


def page(found: dict[str, Any]) -> str:
    """The page as Markdown."""
    sealing, largest = found["sealing"], found["sets"][-1]
    gigabytes = largest["name"].partition(".")[0]
    parts = [
        _WHAT.format(
            gigabytes=gigabytes,
            seconds=found["seconds"],
            machine=_machine(found["machine"]),
            shards=largest["shards"],
            sealing=sealing["seconds"],
            rate=sealing["bytes_a_s"] / 1e9,
        ),
        _index(found),
        _reads(found),
        _order(found),
        _ranks(found),
        _shared(found),
        _plan(found),
    ]
    return "\n".join(parts)


def _machine(facts: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if name not in ("processor", "processors", "load")
    )
    return (
        f"{facts['processor']}, {facts['processors']} processors; {versions}; "
        f"load of the machine when it began: {facts['load']:.1f}"
    )


def _index(found: dict[str, Any]) -> str:
    lines = [
        "## Index\n",
        "| dataset | shards | rows | sealed index | a GB | requests to open | open, s |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for dataset, rows in zip(found["sets"], found["rows"], strict=True):
        alone = next(read for read in found["reads"] if read["set"] == dataset["name"])
        lines.append(
            f"| {dataset['size'] / 1e9:.1f} GB | {dataset['shards']:,} | {rows:,} "
            f"| {dataset['index']:,} B "
            f"| {dataset['index'] / dataset['size'] * 1e6:.1f} kB | {alone['open_requests']} "
            f"| {alone['open_s']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def _reads(found: dict[str, Any]) -> str:
    lines = [
        "## Nodes\n",
        "Each of the three stretches is 16 steps of 1024 rows, read at the beginning, in the",
        "middle and over the end of an epoch. Memory is of the node that took the most: before the",
        "dataset was opened, after, at its peak. *Fetched* is what the store sent to all nodes,",
        "divided by the bytes of the rows they read; a stretch begins by opening a batch of each",
        "lane, 32 MiB, so it says more of short reading than of an epoch. All nodes and the store,",
        "which encrypts what they decrypt, share the processors.\n",
        "| dataset | nodes | before, MiB | opened | peak | rows/s, all nodes | first rows, ms "
        "| requests | fetched |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for read in found["reads"]:
        lines.append(
            f"| {read['set'].partition('.')[0]} GB | {read['nodes']} | {read['base_mib']:.0f} "
            f"| {read['opened_mib']:.0f} | {read['peak_mib']:.0f} | {read['rows_s']:,.0f} "
            f"| {read['first_ms']:.0f} | {read['requests']:,} "
            f"| {read['sent'] / read['bytes']:.1f} |"
        )
    long = found["long"]
    lines += [
        f"\nOne node that read {long['rows']:,} rows in one go: {long['rows_s']:,.0f} rows/s,",
        f"{long['sent'] / long['bytes']:.2f} bytes fetched a byte, peak "
        f"{long['peak_mib']:.0f} MiB. A batch of 1 MiB lies in two groups,",
        "which are fetched whole to be verified; and most batches are the first of their shard, "
        "which is opened.",
    ]
    return "\n".join(lines) + "\n"


def _order(found: dict[str, Any]) -> str:
    resumed, epoch = found["resumed"], found["planned"]
    lines = [
        "## Order\n",
        "SHA-256 over the digests of the record ids of every step read, by number of nodes:\n",
        "| dataset | nodes | digest | same |",
        "|---:|---|---|---|",
    ]
    for name, digests in found["orders"].items():
        same = "yes" if len(set(digests.values())) == 1 else "**no**"
        lines.append(
            f"| {name.partition('.')[0]} GB | {', '.join(digests)} "
            f"| `{next(iter(digests.values()))[:32]}…` | {same} |"
        )
    lines += [
        "",
        f"A run of {resumed['before']} nodes that stopped at step {resumed['step']:,}, in the "
        f"middle of the epoch, and went on with {resumed['after']}: the steps are "
        f"{'those' if resumed['same'] else '**not those**'} of one node that read on.",
        "",
        f"All {epoch['rows']:,} positions of an epoch were computed without decrypting anything, "
        f"in {epoch['seconds']:.0f} s: every row came "
        f"{'exactly once' if epoch['once'] else '**not once**'}; digest `{epoch['digest'][:32]}…`.",
    ]
    return "\n".join(lines) + "\n"


def _ranks(found: dict[str, Any]) -> str:
    lines = [
        "## Ranks of a trainer\n",
        "`benchmarks/scale_ranks.py` counts, on the smallest dataset, the record batches that",
        "ranks open and the rows that they prepare for 24,576 rows, dealt out by position in",
        "batches of 8. *Alone*, every rank reads everything; *together*, as the recipe's trainers",
        "do, each opens batches of its own and sends each row to the rank that trains on it. A",
        "loader is one batch ahead, and windows are read whole.\n",
        "| ranks | opened alone, each | all | together, most | all | prepared alone, all "
        "| together, all | rows of every rank |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for rank in found["ranks"]:
        alone, together = rank["alone"], rank["together"]
        lines.append(
            f"| {rank['ranks']} | {alone['opened']['most']:,} | {alone['opened']['all']:,} "
            f"| {together['opened']['most']:,} | {together['opened']['all']:,} "
            f"| {alone['prepared']['all']:,} | {together['prepared']['all']:,} "
            f"| {'the same' if rank['same'] else '**others**'} |"
        )
    return "\n".join(lines) + "\n"


def _shared(found: dict[str, Any]) -> str:
    lines = [
        "## A checkpoint for all nodes\n",
        "When nodes meet, each gets the sealed checkpoint that the run goes on from. Node 0 has",
        "it, and the others pass it on (`benchmarks/scale_share.py`, "
        f"{found['shared'][0]['bytes'] >> 20} MiB from memory to",
        "nowhere). All nodes share the processors of this machine, so the rate falls with their",
        "number here.\n",
        "| nodes | sent by node 0, times the file | by another, most | GB/s until all had it |",
        "|---:|---:|---:|---:|",
    ]
    for answer in found["shared"]:
        lines.append(
            f"| {answer['nodes']} | {answer['sent_by_first']:.2f} | {answer['sent_by_others']:.2f} "
            f"| {answer['bytes'] / answer['seconds'] / 1e9:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _plan(found: dict[str, Any]) -> str:
    lines = ["## On paper: 100 TB and 1,000 GPUs\n"]
    wanted, rows = found["plan"]["plan"], found["plan"]["rows"]
    lines += [
        f"One epoch of {wanted['terabytes']:.0f} TB in {wanted['days']:.0f} days, "
        f"{wanted['gpus']:,} GPUs in nodes of {wanted['gpus_a_node']}, "
        f"{wanted['brokers']} brokers, leases of {wanted['lease_hours']:.0f} h, a checkpoint every "
        f"{wanted['checkpoint_hours']:.0f} h, resumed {wanted['resumes']} times. "
        "Nothing here was run at that size: "
        "the script multiplies the constants that it measured. Releases and renewals are of a real "
        "broker with SQLite and simulated guests.\n",
        "| what | in the plan | how | of its limit |",
        "|---|---:|---|---:|",
    ]
    for row in rows:
        used = "" if row["used"] is None else f"{100 * row['used']:,.0f} % of {row['limit']}"
        lines.append(f"| {row['what']} | {row['found']} | {row['how']} | {used} |")
    limited = [row for row in rows if row["used"] is not None]
    limited.sort(key=lambda row: -row["used"])
    named = ", then ".join(
        f"{row['what']} at {100 / row['used']:.3g} % of the plan"
        for row in limited
        if row["used"] > 1
    )
    lines.append(f"\nBreaks first: {named or 'nothing that has a limit'}.")
    return "\n".join(lines) + "\n"

"""Vectors of runs of several nodes, made without sealtrain.

Writes ``vectors/nodes/{run_ids,run_logs}.json``: run ids of nodes, and run logs that a verifier
takes or refuses, each refused one for one failure. Everything follows from the labels below, so a
second run writes the same bytes. Run: ``python tools/vectorgen/nodes.py [FOLDER]``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[2] / "vectors" / "nodes"
RUN, OTHER_RUN = "5a" * 16, "a5" * 16
BEGAN = 1_790_000_000
NODES, RANKS = 3, 2

Log = list[dict[str, Any]]
Edit = Callable[[Log], None]


def label(text: str, size: int) -> str:
    """Hex digits that follow from the text."""
    return hashlib.shake_256(b"sealtrain node vectors " + text.encode()).hexdigest(size)


SESSIONS = (label("first session", 16), label("second session", 16))


def run_id(run: str, session: str, node: int) -> str:
    """spec/nodes.md §2."""
    return hashlib.sha256(f"sealtrain/node/v1:{run}/{session}/{node}".encode()).digest()[:16].hex()


def time(seconds: int) -> str:
    """As manifests write it."""
    return datetime.fromtimestamp(BEGAN + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def join(
    session: str, at: int, *, nodes: int = NODES, ranks: int = RANKS
) -> tuple[int, str, dict[str, Any]]:
    """An honest meeting (§5)."""
    return (
        at,
        "nodes.joined",
        {
            "session": session,
            "ranks": ranks,
            "nodes": [
                {
                    "node": node,
                    "run_id": run_id(RUN, session, node),
                    "evidence": label(f"evidence {session} {node}", 32),
                    "key": label(f"key {session} {node}", 32),
                    "from": time(at - 5),
                }
                for node in range(1, nodes)
            ],
        },
    )


def log_of(*told: tuple[int, str, dict[str, Any]]) -> Log:
    """Entries as the rules of §5 read them; the chain of digests is run-manifest's."""
    return [
        {"seq": seq, "at": time(at), "event": event, "fields": fields}
        for seq, (at, event, fields) in enumerate(told, start=1)
    ]


def whole() -> Log:
    """A run that was interrupted once."""
    return log_of(
        (0, "run.started", {"phase": "sft"}),
        join(SESSIONS[0], 20),
        (60, "checkpoint.sealed", {"counter": 1, "step": 4, "digest": label("one", 32)}),
        (200, "run.resumed", {"counter": 1, "step": 4}),
        join(SESSIONS[1], 220),
        (300, "checkpoint.sealed", {"counter": 2, "step": 8, "digest": label("two", 32)}),
        (400, "training.finished", {"steps": 12}),
        (500, "outputs.sealed", {}),
    )


def run_undisturbed() -> Log:
    """A run in one go."""
    return log_of(
        (0, "run.started", {"phase": "sft"}),
        join(SESSIONS[0], 20),
        (400, "training.finished", {"steps": 12}),
        (500, "outputs.sealed", {}),
    )


def run_restarted() -> Log:
    """A run that ended before its first checkpoint, and began again."""
    log = run_undisturbed()
    return [log[0], {**log[0], "event": "run.restarted"}, *log[1:]]


def divide(*, nodes: int = NODES, ranks: int = RANKS, again: bool = True) -> Log:
    """A run that went on among other numbers of nodes and ranks, or began among them."""
    event = "run.resumed" if again else "run.restarted"
    return log_of(
        (0, "run.started", {"phase": "sft"}),
        join(SESSIONS[0], 20),
        (60, "checkpoint.sealed", {"counter": 1, "step": 4, "digest": label("one", 32)}),
        (200, event, {}),
        join(SESSIONS[1], 220, nodes=nodes, ranks=ranks),
        (400, "training.finished", {"steps": 12}),
        (500, "outputs.sealed", {}),
    )


def begin_divided(*, nodes: int = NODES, ranks: int = RANKS) -> Log:
    """A run that nothing interrupted, of other numbers."""
    log = run_undisturbed()
    log[1]["fields"] = join(SESSIONS[0], 20, nodes=nodes, ranks=ranks)[2]
    return log


def without(event: str, nth: int = 0) -> Edit:
    """Leave one entry out."""
    return lambda log: log.remove([entry for entry in log if entry["event"] == event][nth])


def meeting(log: Log, nth: int = 0) -> dict[str, Any]:
    """Fields of a meeting."""
    found: dict[str, Any] = [e for e in log if e["event"] == "nodes.joined"][nth]["fields"]
    return found


def edit_meeting(nth: int = 0, **changed: Any) -> Edit:
    """Change fields of a meeting."""
    return lambda log: meeting(log, nth).update(changed)


def of_node(place: int, nth: int = 0, **changed: Any) -> Edit:
    """Change what a meeting says of one node."""
    return lambda log: meeting(log, nth)["nodes"][place].update(changed)


def of_nodes(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Edit:
    """Another list of nodes in the first meeting."""

    def edit(log: Log) -> None:
        meeting(log)["nodes"] = change(meeting(log)["nodes"])

    return edit


def twice(log: Log) -> None:
    """The nodes join again, and nothing happened."""
    again = copy.deepcopy(log[1])
    again["fields"] = join(SESSIONS[1], 20)[2]
    log.insert(2, again)


def one_session(log: Log) -> None:
    """The second meeting has the session of the first, with its run ids."""
    second = meeting(log, 1)
    second["session"] = SESSIONS[0]
    for node in second["nodes"]:
        node["run_id"] = run_id(RUN, SESSIONS[0], node["node"])


def rename_node(log: Log) -> None:
    """Node 2 is called 3, with the run id that follows."""
    meeting(log)["nodes"][1].update(node=3, run_id=run_id(RUN, SESSIONS[0], 3))


def remove_name(field: str, other: str = "") -> Edit:
    """A node without a field, or with its value under another name."""

    def edit(log: Log) -> None:
        node = meeting(log)["nodes"][0]
        value = node.pop(field)
        if other:
            node[other] = value

    return edit


def late(log: Log) -> None:
    """Node 1 was released its keys long after it joined."""
    meeting(log)["nodes"][0]["from"] = time(20 + 301)


def one_of(nth: int, place: int, field: str) -> str:
    """A field of the honest log."""
    return str(meeting(whole(), nth)["nodes"][place][field])


EXTRA = {
    "node": NODES,
    "run_id": run_id(RUN, SESSIONS[0], NODES),
    "evidence": label("evidence extra", 32),
    "key": label("key extra", 32),
    "from": time(15),
}

REFUSED: list[tuple[str, Edit]] = [
    ("1: node 2 is missing", of_nodes(lambda nodes: nodes[:-1])),
    ("1: a node more than the recipe has", of_nodes(lambda nodes: [*nodes, EXTRA])),
    ("1: in another order", of_nodes(lambda nodes: nodes[::-1])),
    ("1: node 1 twice", of_nodes(lambda nodes: [nodes[0], *nodes])),
    ("1: node 2 is called 3", rename_node),
    ("1: node 1 is called 0", of_node(0, node=0)),
    ("1: more ranks than the recipe has", edit_meeting(ranks=RANKS + 1)),
    ("1: a session twice", one_session),
    ("1: the run id of another node", of_node(0, run_id=run_id(RUN, SESSIONS[0], 2))),
    ("1: the run id of another run", of_node(0, run_id=run_id(OTHER_RUN, SESSIONS[0], 1))),
    ("1: the run id of another session", of_node(0, run_id=run_id(RUN, SESSIONS[1], 1))),
    ("1: the id of the run itself", of_node(0, run_id=RUN)),
    ("1: keys long after it joined", late),
    ("2: one evidence for two nodes", of_node(1, evidence=one_of(0, 0, "evidence"))),
    ("2: evidence of an earlier session", of_node(0, 1, evidence=one_of(0, 0, "evidence"))),
    ("2: evidence of another node, earlier", of_node(1, 1, evidence=one_of(0, 0, "evidence"))),
    ("2: one key for two nodes", of_node(1, key=one_of(0, 0, "key"))),
    ("3: a checkpoint before nodes joined", without("nodes.joined")),
    ("3: a checkpoint after it went on alone", without("nodes.joined", 1)),
    ("3: joined twice without interruption", twice),
    ("form: no nodes", edit_meeting(nodes=[])),
    ("form: half a session", edit_meeting(session="5a" * 8)),
    ("form: a session in capitals", edit_meeting(session=SESSIONS[0].upper().replace("0", "A"))),
    ("form: no key", remove_name("key")),
    ("form: no evidence", remove_name("evidence")),
    ("form: no run id", remove_name("run_id")),
    ("form: no time", remove_name("from")),
    ("form: begun in place of from", remove_name("from", "begun")),
    ("form: a field of tomorrow", of_node(0, gpu=1)),
    ("form: a field of tomorrow beside the list", edit_meeting(lead=1)),
    ("form: a number as text", of_node(0, node="1")),
    ("form: evidence of half the length", of_node(0, evidence="5a" * 16)),
]


def run_ids() -> list[dict[str, Any]]:
    """One for each run, session and node."""
    return [
        {
            "name": f"node {node} in {run[:4]}, {session[:4]}",
            "run_id": run,
            "session": session,
            "node": node,
            "own": run_id(run, session, node),
        }
        for run in (RUN, OTHER_RUN)
        for session in SESSIONS
        for node in (1, 2, 15, 255)
    ]


def run_logs() -> list[dict[str, Any]]:
    """Logs that hold, and one for each way in which one does not."""

    def vector(comment: str, log: Log, *, valid: bool, **changed: Any) -> dict[str, Any]:
        terms = {
            "run_id": RUN,
            "nodes": NODES,
            "ranks": RANKS,
            "resume_nodes": [],
            "resume_ranks": [],
            "world_size": str(NODES * RANKS),
        }
        return {
            "name": comment,
            **terms,
            **changed,
            "entries": log,
            "outcome": "ok" if valid else "claim-contradicted",
        }

    found = [
        vector("in one go", run_undisturbed(), valid=True),
        vector("interrupted once", whole(), valid=True),
        vector("begun again", run_restarted(), valid=True),
    ]
    for comment, change in REFUSED:
        log = copy.deepcopy(whole())
        change(log)
        found.append(vector(comment, log, valid=False))
    found += other_numbers(vector)
    alone = [entry for entry in run_undisturbed() if entry["event"] in ("run.started",)]
    without = [entry for entry in run_undisturbed() if "nodes" not in entry["event"]]
    return [
        *found,
        vector("3: no node ever joined", alone, valid=False),
        vector("3: an end without nodes", without, valid=False),
        vector("4: a process too few", whole(), valid=False, world_size=str(NODES * RANKS - 1)),
        vector("4: as one node alone", whole(), valid=False, world_size=str(RANKS)),
        vector("4: no number of processes", whole(), valid=False, world_size=None),
        vector("1: of another run", whole(), valid=False, run_id=OTHER_RUN),
        vector("1: of a recipe with more nodes", whole(), valid=False, nodes=NODES + 1,
               world_size=str((NODES + 1) * RANKS)),
        vector("1: of a recipe with one rank", whole(), valid=False, ranks=1,
               world_size=str(NODES)),
    ]  # fmt: skip


def other_numbers(vector: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs that went on among other numbers of nodes and ranks than they began with (§5)."""
    allows: dict[str, Any] = {"resume_nodes": [2, 4], "resume_ranks": [1, 4]}

    def world(number: int) -> dict[str, Any]:
        return {**allows, "world_size": str(number)}

    one_rank_each = divide(ranks=1)
    two_nodes = divide(nodes=2)
    swapped = divide(nodes=4)
    meeting(swapped, 1)["nodes"].reverse()
    short = divide(nodes=4)
    meeting(short, 1)["nodes"].pop(0)
    stale = divide(nodes=2, ranks=1)
    meeting(stale, 1)["nodes"][0]["evidence"] = meeting(stale)["nodes"][1]["evidence"]
    return [
        vector("went on with one rank each", one_rank_each, valid=True, **world(3)),
        vector("went on with more ranks", divide(ranks=4), valid=True, **world(12)),
        vector("went on with a node less", two_nodes, valid=True, **world(4)),
        vector("went on with a node more", divide(nodes=4), valid=True, **world(8)),
        vector("went on with others of both", divide(nodes=2, ranks=1), valid=True, **world(2)),
        vector("began again with others", divide(ranks=1, again=False), valid=True, **world(3)),
        vector("may have others and has not", whole(), valid=True, **world(6)),
        vector("1: ranks that the recipe does not name", divide(ranks=3), valid=False,
               **world(9)),
        vector("1: nodes that the recipe does not name", divide(nodes=5), valid=False,
               **world(10)),
        vector("1: others of a recipe that names none", one_rank_each, valid=False,
               world_size="3"),
        vector("1: nodes named, ranks not", one_rank_each, valid=False, resume_nodes=[2],
               world_size="3"),
        vector("1: ranks named, nodes not", two_nodes, valid=False, resume_ranks=[1],
               world_size="4"),
        vector("1: began with other ranks", begin_divided(ranks=1), valid=False, **world(3)),
        vector("1: began with other nodes", begin_divided(nodes=2), valid=False, **world(4)),
        vector("1: other nodes in another order", swapped, valid=False, **world(8)),
        vector("1: the first of other nodes is missing", short, valid=False, **world(6)),
        vector("2: evidence of the meeting of others", stale, valid=False, **world(2)),
        vector("4: as many as began", one_rank_each, valid=False, **world(6)),
        vector("4: as many as the first nodes have", two_nodes, valid=False, **world(6)),
        vector("4: nodes of the last, ranks of the first", divide(nodes=2, ranks=1), valid=False,
               **world(4)),
    ]  # fmt: skip


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, vectors in (("run_ids", run_ids()), ("run_logs", run_logs())):
        text = json.dumps({"spec": "spec/nodes.md", "cases": vectors}, indent=2)
        (folder / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)

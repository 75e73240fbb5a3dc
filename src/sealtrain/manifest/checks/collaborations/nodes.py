"""Check that the run log names the nodes of a run as the run made them (spec/nodes.md §5).

Pure rules over the entries; the first breach is ``ClaimContradicted``:

1. nodes join once after the run began, or went on, and before anything is sealed or ends;
2. a list has the nodes 1 to N - 1 in order, the recipe's ranks, a session of its own, and for each
   node the run id that follows from run, session and number, and keys from before it joined; once
   the run went on or began again, N and the ranks may be others that the recipe names;
3. evidence occurs once, and a key once in a session;
4. as many processes ended the run as all nodes of its last meeting have ranks.

``stays_of_nodes`` lists the guests whose receipts checks 11 to 14 look for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import Field

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.models import Hex32, Hex64, StrictModel, Timestamp, load_model
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.checks.parties import Stay
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.predicate import Predicate
from sealtrain.recipe.collaborations.nodes import MAX_NODES, Nodes
from sealtrain.signing.parties import node_run_id

JOINED: Final = "nodes.joined"
STARTED: Final = "run.started"
_BEGINNINGS: Final = frozenset({STARTED, "run.restarted", "run.resumed"})
_WORK: Final = frozenset({"checkpoint.sealed", "outputs.sealed", "training.finished"})


class _Node(StrictModel):
    node: Annotated[int, Field(ge=1, lt=MAX_NODES)]
    run_id: Hex32
    evidence: Hex64
    key: Hex64
    begun: Timestamp = Field(alias="from")


class _NodeJoined(StrictModel):
    session: Hex32
    ranks: Annotated[int, Field(ge=1, le=64)]
    nodes: Annotated[tuple[_Node, ...], Field(min_length=1, max_length=MAX_NODES - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeeting:
    """Nodes that trained together for a while.

    Attributes:
        joined: What the log says of them.
        at: When the log says so, seconds since the epoch.
        anew: The run had gone on, or begun again, before they joined.
        until: When they had trained: the last entry before the next meeting, or that training
            finished; ``None`` where the log says neither.
    """

    joined: _NodeJoined
    at: int
    anew: bool = False
    until: int | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes that trained, node 0 included."""
        return len(self.joined.nodes) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesTerms:
    """What a run log of nodes is compared with.

    Attributes:
        run_id: Of the run.
        nodes: Number of nodes in its recipe.
        ranks: Of each.
        resume_nodes: Other numbers of nodes that may continue the run.
        resume_ranks: Other numbers of ranks that may.
        world_size: Number of processes that trained, as the manifest says.
    """

    run_id: str
    nodes: int
    ranks: int
    world_size: str | None
    resume_nodes: tuple[int, ...] = ()
    resume_ranks: tuple[int, ...] = ()


def meetings_in(entries: Iterable[Mapping[str, Any]]) -> tuple[NodeMeeting, ...]:
    """The meetings of a run log whose chain holds, oldest first.

    Raises:
        ClaimContradicted: Rule 1 is broken, or an entry malformed.
    """
    found: list[NodeMeeting] = []
    there, anew, latest = False, False, 0
    for entry in entries:
        event, at = str(entry["event"]), from_rfc3339(str(entry["at"]))
        if event in _BEGINNINGS:
            if there:
                found[-1] = replace(found[-1], until=latest)
            there, anew = False, event != STARTED
        elif event == JOINED:
            if there:
                raise _broken("nodes joined twice without an interruption", entry)
            found.append(NodeMeeting(joined=_read(entry), at=at, anew=anew))
            there = True
        elif event in _WORK and not there:
            raise _broken(f"{event} without nodes that had joined", entry)
        if event == "training.finished" and found[-1].until is None:
            found[-1] = replace(found[-1], until=at)
        latest = at
    return tuple(found)


def guests_in(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every node but the lead of every meeting, as the log names it.

    Raises:
        ClaimContradicted: As ``meetings_in``.
    """
    return [
        {"meeting": number, **node.to_dict()}
        for number, meeting in enumerate(meetings_in(entries), 1)
        for node in meeting.joined.nodes
    ]


def stays_of_nodes(predicate: Predicate) -> Iterator[Stay]:
    """Every node of every meeting; its run id is computed, not read."""
    run = predicate.run
    for meeting in meetings_in(predicate.run_log.entries):
        end = from_rfc3339(run.finished_at) if meeting.until is None else meeting.until
        for node in meeting.joined.nodes:
            yield Stay(
                run_id=node_run_id(run.run_id, meeting.joined.session, node.node),
                party=None,
                begins=from_rfc3339(node.begun),
                until=end,
            )


def nodes_hold(case: Case) -> str:
    """(18) What the run log says of nodes keeps the rules of this module."""
    recipe, run = case.need_lock().recipe, case.predicate.run
    how = recipe.collaboration
    if not isinstance(how, Nodes):
        raise TypeError("meetings are of runs with nodes")
    terms = NodesTerms(
        run_id=run.run_id,
        nodes=how.nodes,
        ranks=recipe.backend.ranks,
        resume_nodes=how.resume_nodes,
        resume_ranks=getattr(recipe.backend, "resume_ranks", ()),
        world_size=run.environment.get("world_size"),
    )
    meetings = meetings_hold(case.need_log(), terms)
    again = f", met {len(meetings)} times" if len(meetings) > 1 else ""
    last = meetings[-1]
    each = "one rank" if last.joined.ranks == 1 else f"{last.joined.ranks} ranks"
    return f"{last.nodes} nodes with {each} each{again}"


def meetings_hold(
    entries: Iterable[Mapping[str, Any]], terms: NodesTerms
) -> tuple[NodeMeeting, ...]:
    """The meetings of a run log that keeps all rules of the module.

    Args:
        entries: Of a log whose chain holds.
        terms: What its recipe asks for.

    Raises:
        ClaimContradicted: A rule is broken.
    """
    meetings = meetings_in(entries)
    if not meetings:
        raise ClaimContradicted("no node ever joined the run", check="nodes", expected=terms.nodes)
    _once([meeting.joined.session for meeting in meetings], "session")
    _once(
        [node.evidence for meeting in meetings for node in meeting.joined.nodes],
        "evidence of a node",
    )
    for meeting in meetings:
        _as_the_recipe_says(meeting, terms)
        _keys_came_first(meeting)
    last = meetings[-1]
    world = str(last.nodes * last.joined.ranks)
    if terms.world_size != world:
        raise ClaimContradicted(
            "another number of processes ended the run than all its nodes have ranks",
            check="world_size",
            got=terms.world_size,
            expected=world,
        )
    return meetings


def _as_the_recipe_says(meeting: NodeMeeting, terms: NodesTerms) -> None:
    joined = meeting.joined
    numbers, ranks = {terms.nodes}, {terms.ranks}
    if meeting.anew:
        numbers |= set(terms.resume_nodes)
        ranks |= set(terms.resume_ranks)
    size = meeting.nodes if meeting.nodes in numbers else terms.nodes
    facts: dict[str, tuple[object, object]] = {
        "nodes": ([node.node for node in joined.nodes], list(range(1, size))),
        "ranks": (joined.ranks, joined.ranks if joined.ranks in ranks else terms.ranks),
    }
    facts |= {
        f"run id of node {node.node}": (
            node.run_id,
            node_run_id(terms.run_id, joined.session, node.node),
        )
        for node in joined.nodes
    }
    for what, (got, told) in facts.items():
        if got != told:
            raise ClaimContradicted(
                f"the run log shows other {what} than the recipe and its run ask for",
                check="nodes",
                got=str(got)[:200],
                expected=str(told)[:200],
            )
    _once([node.key for node in joined.nodes], "key of a node")


def _keys_came_first(meeting: NodeMeeting) -> None:
    for node in meeting.joined.nodes:
        if from_rfc3339(node.begun) > meeting.at + CLOCK_TOLERANCE_S:
            raise ClaimContradicted(
                f"node {node.node} joined before it had its keys",
                check="nodes",
                got=node.begun,
                expected=f"≤ {to_rfc3339(meeting.at)}",
            )


def _once(values: list[str], what: str) -> None:
    if len(set(values)) != len(values):
        raise ClaimContradicted(f"a {what} occurs twice in the run log", check="nodes")


def _read(entry: Mapping[str, Any]) -> _NodeJoined:
    name = f"run log entry {entry['seq']}"
    return load_model(_NodeJoined, entry["fields"], ClaimContradicted, name)


def _broken(problem: str, entry: Mapping[str, Any]) -> ClaimContradicted:
    return ClaimContradicted(problem, check="nodes", got=f"run log entry {entry['seq']}")

"""Every role of a travelling run killed at a random moment, and the run goes on.

Orchestrator, standby, accelerator and each library's guest are ended with SIGKILL, each once, and
started again from the ticket that they began with, at the address that they had; the orchestrator
in its first moments, too, before it sealed anything. Only the accelerator comes back at another
address, as on another machine: who talks to it gets another ticket.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from travel_story import HOLDERS, RECIPE, Stage, texts

from sealtrain.cli.programs import SideProgram
from sealtrain.errors import AcceleratorUnreachable, Unreachable
from sealtrain_rehearsal.rehearsal import free_ports, run_log

_WITHIN_S = 900.0
_POLL_S = 0.05
_PAUSE_S = 0.5
_DIED = {"peer-unreachable", "channel-cut"}
"""Codes of a peer that died; one that looks like an attack has another."""
_LEADER, _STANDBY, _ACCELERATOR = "orchestrator", "standby", "accelerator"

# Trips long enough that a guest which is started again is back before its turn is lost.
_RECIPE = RECIPE | {
    "model": RECIPE["model"]
    | {"config": RECIPE["model"]["config"] | {"n_layer": 4, "n_head": 4, "n_embd": 256}},
    "collaboration": RECIPE["collaboration"] | {"seal_every": 1},
}


class _Killed(Stage):
    """A travelling run whose roles are killed, one after the other.

    Args:
        out: New folder.
        drawn: Draws order and moments.
        say: Called with a line for each step.
    """

    def __init__(self, out: Path, drawn: random.Random, say: Callable[[str], None]) -> None:
        super().__init__(out, say)
        self._drawn = drawn
        self._tickets: dict[str, Path] = {}
        self._starts = 0
        self._parts: dict[str, SideProgram] = {}
        self._moves = 0
        self.seen: list[dict[str, Any]] = []

    def _train(self, path: Path) -> dict[str, Any]:
        self._base = path.resolve().parent
        first = free_ports(len(HOLDERS))
        ports = range(first, first + len(HOLDERS))
        self._places = {
            name: f"127.0.0.1:{port}" for name, port in zip(HOLDERS, ports, strict=True)
        }
        self._lay_out()
        for role in (_ACCELERATOR, *HOLDERS):
            self._start(role)
        leader = self._restarted_at_once(self._start(_LEADER))
        roles = [_LEADER, _STANDBY, _ACCELERATOR, *HOLDERS]
        self._drawn.shuffle(roles)
        newest = 0
        for role in roles:
            newest = self._newer(leader, newest)
            time.sleep(self._drawn.uniform(0.0, _PAUSE_S))
            leader = self._kill(role, leader)
        trained = leader.wait_for_end(within=_WITHIN_S)
        for holder in HOLDERS:
            self._parts[holder].wait_for_end(within=_WITHIN_S)
        return {"trained": trained}

    def _restarted_at_once(self, leader: SideProgram) -> SideProgram:
        """Kill the orchestrator in its first moments; the one that goes on."""
        until = time.monotonic() + _WITHIN_S
        while not (self._states / "run.json").exists() and not leader.gone:
            if time.monotonic() > until:
                raise Unreachable("no run was begun", hint=f"see {leader.log}")
            time.sleep(_POLL_S)
        time.sleep(self._drawn.uniform(0.0, _PAUSE_S))
        leader.kill()
        began = time.monotonic()
        anew = not list(self._states.glob("*.sealed"))
        leader = self._start(_LEADER)
        leader.line("taking over", within=_WITHIN_S)
        self.seen.append({
            "kind": "travelling", "role": f"{_LEADER} at once", "over_already": False,
            "saw": "the run began anew" if anew else "it went on from its first state",
            "back_after_s": round(time.monotonic() - began, 1), "anew": anew,
        })  # fmt: skip
        return leader

    def _lay_out(self) -> None:
        """Write every role's ticket, with another address of the accelerator than before."""
        self._moves += 1
        base, first = ("--base", self._base), free_ports(2)
        at = [f"127.0.0.1:{port}" for port in (first, first + 1)]
        listens = ("--listen", at[0], "--listen-writes", at[1])
        self._written(_ACCELERATOR, _ACCELERATOR, *base, *listens)
        peers = ("--peer", f"writes={at[1]}")
        for holder, place in self._places.items():
            self._written(
                holder, "holder", *base, *self._brokers, *peers, "--listen", place,
                "--party", holder, "--data", self._sealed,
            )  # fmt: skip
        words = [word for item in self._places.items() for word in ("--holder", "=".join(item))]
        for role in (_LEADER, _STANDBY):
            self._written(
                role, role, "--peer", f"accelerator={at[0]}", *peers, *base, *words,
                *self._brokers, "--states", self._states,
            )  # fmt: skip

    def _written(self, name: str, role: str, *words: str | Path) -> None:
        self._tickets[name] = self._ticket(f"{name}-{self._moves}", role, *words)

    def _start(self, role: str) -> SideProgram:
        """Start a role, and wait until it is there."""
        ready = {
            _ACCELERATOR: "accelerator ready", _STANDBY: "standing by", _LEADER: None
        }.get(role, "holder ready")  # fmt: skip
        answers = role != _ACCELERATOR
        self._starts += 1
        # The standby before may lead meanwhile, in its own folder.
        folder = f"{role}-{self._starts}-guest" if role == _STANDBY else f"{role}-guest"
        words = self._prepare_start(folder, self._tickets[role])
        part = self._part(f"{role}-{self._starts}", *words, answers=answers)
        if ready is not None:
            part.line(ready, within=_WITHIN_S)
        self._parts[role] = part
        return part

    def _kill(self, role: str, leader: SideProgram) -> SideProgram:
        """Kill a role and bring it back; whoever leads afterwards."""
        seen: dict[str, Any] = {"kind": "travelling", "role": role}
        over = leader.gone
        if role == _LEADER:
            standby = self._start(_STANDBY)
            over = leader.gone
            leader.kill()
            began = time.monotonic()
            if not over:
                standby.line("taking over", within=_WITHIN_S)
                leader = standby
            seen["saw"] = "the standby took over"
        elif role == _STANDBY:
            self._start(_STANDBY).kill()
            began = time.monotonic()
            seen["saw"] = "nothing: the orchestrator went on"
        elif role == _ACCELERATOR:
            self._parts[role].kill()
            began = time.monotonic()
            if not over:
                seen["saw"] = self._left(leader)
                self._lay_out()
            self._start(role)
            if not over:
                for holder in HOLDERS:
                    self._parts[holder].kill()
                    self._start(holder)
                leader = self._start(_LEADER)
                leader.line("taking over", within=_WITHIN_S)
        else:
            self._parts[role].kill()
            began = time.monotonic()
            self._start(role)
            seen["saw"] = "its turn was refused, if it came meanwhile"
        seen |= {"back_after_s": round(time.monotonic() - began, 1), "over_already": over}
        self.seen.append(seen)
        self._say(f"killed {role}: back in {seen['back_after_s']} s")
        return leader

    def _left(self, leader: SideProgram) -> str:
        """What an orchestrator says whose accelerator is gone."""
        try:
            leader.wait_for_end(within=_WITHIN_S)
        except AcceleratorUnreachable as error:
            return f"the orchestrator ended [{error.code}]"
        raise Unreachable("the orchestrator went on without its accelerator")

    def _newer(self, leader: SideProgram, than: int) -> int:
        """Entries of the newest sealed state, once it is newer; the same where the run is over."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            gone = leader.gone
            found = [path.name.split(".")[0] for path in self._states.glob("*.sealed")]
            newest = max((int(name) for name in found if name.isdecimal()), default=0)
            if newest > than:
                return newest
            if gone:
                leader.answer()
                return than
            time.sleep(_POLL_S)
        raise Unreachable("no newer state was sealed", hint=f"see {leader.log}")


def play(out: Path, drawn: random.Random, say: Callable[[str], None]) -> dict[str, Any]:
    """Play it.

    Args:
        out: New folder.
        drawn: Draws order and moments.
        say: Called with a line for each step.

    Returns:
        ``killed``; ``codes`` of refused turns; ``takeovers``; ``checks`` that passed; ``held``.

    Raises:
        SealtrainError: Whatever a step refused.
    """
    with _Killed(out, drawn, say) as stage:
        data = texts(stage.out / "texts")
        done = stage.play_recipe(
            _RECIPE, data, dict.fromkeys(data, "--format tokens --row-tokens 1024")
        )
        seen = stage.seen
    log = run_log(done)
    codes = sorted({entry["fields"]["code"] for entry in log if entry["event"] == "trip.refused"})
    takeovers = sum(entry["event"] == "travel.taken-over" for entry in log)
    expected = sum(
        kill["role"].partition(" ")[0] in (_LEADER, _ACCELERATOR)
        for kill in seen
        if not kill["over_already"] and not kill.get("anew")
    )
    checks = sum(check["outcome"] == "passed" for check in done["verified"]["checks"])
    return {
        "killed": seen,
        "codes": codes,
        "takeovers": takeovers,
        "checks": checks,
        "held": takeovers == expected and set(codes) <= _DIED,
    }

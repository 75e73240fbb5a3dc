"""Every role of split runs killed at a random moment: what goes on, and what its user sees.

Under pads guest, accelerator and dealer are ended with SIGKILL, each once. The guest is started
again and goes on from its newest sealed checkpoint. In a cut run each client is killed and comes
back; before that a server is, which ends its run: it keeps no state that another one could open.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cut_act
import pads_act
from split_acts import CLINICS, made_up

from sealtrain.cli.programs import Part
from sealtrain.cli.rehearsal import free_ports, run_log
from sealtrain.errors import SealtrainError, Unreachable

__all__ = ["play_cut", "play_pads"]

_WITHIN_S = 600.0
_POLL_S = 0.05
_PAUSE_S = 0.5
_GUEST, _ACCELERATOR, _DEALER = "guest", "accelerator", "dealer"
_PADS = pads_act.RECIPE | {"trainer": pads_act.RECIPE["trainer"] | {"max_steps": 100}}
_CUT = cut_act.RECIPE | {"trainer": cut_act.RECIPE["trainer"] | {"max_steps": 400}}

Seen = list[dict[str, Any]]


class _KilledPads(pads_act.Stage):
    """A run under pads whose roles are killed, one after the other."""

    def __init__(self, out: Path, drawn: random.Random, say: Callable[[str], None]) -> None:
        super().__init__(out, say)
        self._drawn = drawn
        self._words: dict[str, tuple[str | Path, ...]] = {}
        self._starts = 0
        self.seen: Seen = []

    def _train(self, path: Path) -> dict[str, Any]:
        first = free_ports(2)
        at = {_ACCELERATOR: f"127.0.0.1:{first}", _DEALER: f"127.0.0.1:{first + 1}"}
        self._words[_ACCELERATOR] = ("split", "accelerator", "--listen", at[_ACCELERATOR])
        dealer = self._ticket(
            _DEALER, _DEALER, "--base", path.resolve().parent, "--listen", at[_DEALER]
        )
        self._words[_DEALER] = self._started(_DEALER, dealer)
        peers = [word for one in at.items() for word in ("--peer", "=".join(one))]
        self._words[_GUEST] = self._started(_GUEST, self._training(path, *peers))
        parts = {role: self._start(role) for role in (_ACCELERATOR, _DEALER, _GUEST)}
        roles = list(parts)
        self._drawn.shuffle(roles)
        newest = ""
        for role in roles:
            newest = self._newer(parts[_GUEST], newest)
            time.sleep(self._drawn.uniform(0.0, _PAUSE_S))
            over = parts[_GUEST].gone
            parts[role].kill()
            began = time.monotonic()
            saw = "the guest went on from its newest checkpoint"
            if role != _GUEST:
                saw = f"the guest ended [{_code(parts[_GUEST])}]; {saw}"
                parts[role] = self._start(role)
            if not over:
                parts[_GUEST] = self._start(_GUEST)
            back = round(time.monotonic() - began, 1)
            self.seen.append({
                "kind": "pads", "role": role, "saw": saw, "back_after_s": back, "over_already": over
            })  # fmt: skip
            self._say(f"killed {role}: back in {back} s")
        return {"trained": parts[_GUEST].ended(within=_WITHIN_S)}

    def _start(self, role: str) -> Part:
        self._starts += 1
        name = f"{role}-{self._starts}"
        part = self._part(name, *self._words[role], answers=role == _GUEST)
        if role != _GUEST:
            part.line(f"{role} ready", within=_WITHIN_S)
        return part

    def _newer(self, guest: Part, than: str) -> str:
        """Name of the newest sealed checkpoint, once it is newer; the same where all is done."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            gone = guest.gone
            found = (self.out / _GUEST / "out" / "checkpoints").glob("*.sealed")
            newest = max((one.name for one in found), default="")
            if newest > than:
                return newest
            if gone:
                guest.answer()
                return than
            time.sleep(_POLL_S)
        raise Unreachable("no newer checkpoint was sealed", hint=f"see {guest.log}")


class _KilledCut(cut_act.Stage):
    """A cut run whose clients are killed and come back; before it one whose server is."""

    def __init__(self, out: Path, drawn: random.Random, say: Callable[[str], None]) -> None:
        super().__init__(out, say)
        self._drawn = drawn
        self.seen: Seen = []

    def _train(self, path: Path) -> dict[str, Any]:
        ticket = self._ticket(
            "server", "server", *self._brokers, "--base", path.resolve().parent
        )  # fmt: skip
        self._words = self._started("server", ticket)
        server, place = self._served("early")
        self._lose(server, self._clients("early", place))
        server, place = self._served("server")
        clients = self._clients("server", place)
        roles = list(CLINICS)
        self._drawn.shuffle(roles)
        steps = 0
        for role in roles:
            steps = self._later(server, steps)
            over = server.gone
            clients[role].kill()
            clients[role] = self._client(f"{role}-again", role, self._deployment, place)
            self._see(f"client {role}", "the server waited until it was back", over)
        trained = server.ended(within=_WITHIN_S)
        for client in clients.values():
            client.wait(within=_WITHIN_S)
        return {"trained": trained}

    def _lose(self, server: Part, clients: dict[str, Part]) -> None:
        """Kill a server at work."""
        self._later(server, 0)
        over = server.gone
        server.kill()
        codes = sorted({_code(client) for client in clients.values()})
        self._see(
            "server", f"clients ended [{', '.join(codes)}]; a new run begins at its beginning", over
        )

    def _see(self, role: str, saw: str, over: bool) -> None:
        self.seen.append({"kind": "cut", "role": role, "saw": saw, "over_already": over})
        self._say(f"killed the {role}: {saw}")

    def _served(self, name: str) -> tuple[Part, str]:
        part = self._part(f"{name}-run", *self._words)
        return part, part.place("cut server ready", within=_WITHIN_S)

    def _clients(self, name: str, place: str) -> dict[str, Part]:
        return {one: self._client(f"{one}-{name}", one, self._deployment, place) for one in CLINICS}

    def _later(self, server: Part, than: int) -> int:
        """Lines of progress, at a random moment once there are more; the same where it ended."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            gone = server.gone
            lines = sum(line.startswith("step ") for line in server.said())
            if lines > than or gone:
                time.sleep(self._drawn.uniform(0.0, _PAUSE_S))
                return lines
            time.sleep(_POLL_S)
        raise Unreachable("the server makes no progress", hint=f"see {server.log}")


def _code(part: Part) -> str:
    """The code that a part ended with; empty where it ended well."""
    try:
        part.ended(within=_WITHIN_S)
    except SealtrainError as error:
        return error.code
    return ""


def play_pads(out: Path, drawn: random.Random, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the run under pads.

    Args:
        out: New folder.
        drawn: Draws order and moments.
        say: Called with a line for each step.

    Returns:
        ``killed``, ``resumes``, ``checks`` that passed, and ``held``.

    Raises:
        SealtrainError: Whatever a step refused.
    """
    with _KilledPads(out, drawn, say) as stage:
        data = made_up(stage.out / "records", pads_act.measured, learned=96, checked=32)
        done = stage.play_recipe(_PADS, data)
        seen = stage.seen
    resumes = sum(one["event"] == "run.resumed" for one in run_log(done))
    expected = sum(not one["over_already"] for one in seen)
    return _outcome(done, seen) | {"resumes": resumes, "held": resumes == expected}


def play_cut(out: Path, drawn: random.Random, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the cut runs. As ``play_pads``, without ``resumes``."""
    with _KilledCut(out, drawn, say) as stage:
        data = made_up(stage.out / "records", cut_act.note, learned=160, checked=64)
        done = stage.play_recipe(_CUT, data)
        seen = stage.seen
    return _outcome(done, seen) | {"held": not any(one["over_already"] for one in seen)}


def _outcome(done: dict[str, Any], seen: Seen) -> dict[str, Any]:
    checks = sum(one["outcome"] == "passed" for one in done["verified"]["checks"])
    return {"killed": seen, "checks": checks}

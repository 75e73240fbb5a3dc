"""Every role of split runs killed at a random moment: what goes on, and what its user sees.

Under pads guest, accelerator and dealer are ended with SIGKILL, each once. The guest's supervisor
pauses while a machine is away, and the guest goes on from its newest sealed checkpoint. In a cut
run the server is killed and goes on from its newest sealed state, each client is killed and comes
back, and all are killed at once, with the server at another address afterwards. An operator who
puts an older state back on the server's side is refused by the owners.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cut_act
import pads_act
from split_acts import CLINICS, made_up

from sealtrain.cli.programs import SideProgram
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain_rehearsal.rehearsal import free_ports, run_log

_WITHIN_S = 600.0
_POLL_S = 0.05
_PAUSE_S = 0.5
_AWAY = "15m"
_PAUSED = "paused ["
_GUEST, _ACCELERATOR, _DEALER = "guest", "accelerator", "dealer"
_PADS = pads_act.RECIPE | {"trainer": pads_act.RECIPE["trainer"] | {"max_steps": 100}}
_CUT = cut_act.RECIPE | {
    "trainer": cut_act.RECIPE["trainer"] | {"max_steps": 400, "save_steps": 20}
}

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
        self._words[_DEALER] = self._prepare_start(_DEALER, dealer)
        peers = [word for item in at.items() for word in ("--peer", "=".join(item))]
        # Its supervisor starts it again while a machine that it needs is away.
        ticket = self._training(path, *peers, "--wait", _AWAY)
        self._words[_GUEST] = self._prepare_start(_GUEST, ticket)
        parts = {role: self._start(role) for role in (_ACCELERATOR, _DEALER, _GUEST)}
        roles = list(parts)
        self._drawn.shuffle(roles)
        newest = ""
        for role in roles:
            newest = self._newer(parts[_GUEST], newest)
            time.sleep(self._drawn.uniform(0.0, _PAUSE_S))
            guest = parts[_GUEST]
            over, before = guest.gone, len(_pauses(guest))
            parts[role].kill()
            began = time.monotonic()
            saw = "started again, the guest went on from its newest checkpoint"
            if role != _GUEST:
                code = self._paused(guest, before)
                over = over or not code
                saw = f"the guest paused [{code}], and went on from its newest checkpoint"
            newest = self._newest()  # before anything goes on: what comes next is newer
            if role != _GUEST or not over:
                parts[role] = self._start(role)
            back = round(time.monotonic() - began, 1)
            self.seen.append({
                "kind": "pads", "role": role, "saw": saw, "back_after_s": back, "over_already": over
            })  # fmt: skip
            self._say(f"killed {role}: back in {back} s")
        return {"trained": parts[_GUEST].wait_for_end(within=_WITHIN_S)}

    def _start(self, role: str) -> SideProgram:
        self._starts += 1
        name = f"{role}-{self._starts}"
        part = self._part(name, *self._words[role], answers=role == _GUEST)
        if role != _GUEST:
            part.line(f"{role} ready", within=_WITHIN_S)
        return part

    def _paused(self, guest: SideProgram, before: int) -> str:
        """The code that the guest paused with, once it did; empty where it ended without."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            gone = guest.gone
            codes = _pauses(guest)
            if len(codes) > before:
                return codes[before]
            if gone:
                guest.answer()
                return ""
            time.sleep(_POLL_S)
        raise Unreachable("the guest went on without the machine", hint=f"see {guest.log}")

    def _newest(self) -> str:
        """Name of the newest sealed checkpoint."""
        found = (self.out / _GUEST / "out" / "checkpoints").glob("*.sealed")
        return max((item.name for item in found), default="")

    def _newer(self, guest: SideProgram, than: str) -> str:
        """Name of the newest sealed checkpoint, once it is newer; the same where all is done."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            gone = guest.gone
            newest = self._newest()
            if newest > than:
                return newest
            if gone:
                guest.answer()
                return than
            time.sleep(_POLL_S)
        raise Unreachable("no newer checkpoint was sealed", hint=f"see {guest.log}")


class _KilledCut(cut_act.Stage):
    """A cut run whose server and clients are killed, alone and together, and put back."""

    def __init__(self, out: Path, drawn: random.Random, say: Callable[[str], None]) -> None:
        super().__init__(out, say)
        self._drawn = drawn
        self._starts = 0
        self._states = self.out / "server" / "out"
        self.seen: Seen = []
        self.refused: list[str] = []

    def _train(self, path: Path) -> dict[str, Any]:
        first = free_ports(2)
        places = [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
        self._server_words = [
            self._prepare_start(
                "server",
                self._ticket(
                    f"server-{place[-5:]}", "server", *self._brokers,
                    "--base", path.resolve().parent, "--listen", place,
                ),
            )
            for place in places
        ]  # fmt: skip
        server = self._served(0)
        clients = {clinic: self._again(clinic, places[0]) for clinic in CLINICS}
        newest = ""
        roles = ["server", *CLINICS]
        self._drawn.shuffle(roles)
        for role in roles:
            newest = self._newer(server, newest)
            over = server.gone
            if role == "server":
                server.kill()
                server = self._served(0)
                self._see("server", "clients waited; it went on from its newest state", over)
            else:
                clients[role].kill()
                clients[role] = self._again(role, places[0])
                self._see(f"client {role}", "the server waited until it was back", over)
        newest = self._newer(server, newest)
        older = self._copied("older")
        newest = self._newer(server, newest, by=2)
        over = server.gone
        self._kill_all(server, clients)
        self._put_back(older)
        server = self._served(1)
        clients = {clinic: self._again(clinic, places[1]) for clinic in CLINICS}
        self.refused = [_code(part) for part in (*clients.values(), server)]
        self._see("operator's older state", f"refused [{', '.join(self.refused)}]", over)
        self._put_back(self.out / "newest")
        server = self._served(1)
        clients = {clinic: self._again(clinic, places[1]) for clinic in CLINICS}
        self._see("all at once", "the server went on at another address", over)
        trained = server.wait_for_end(within=_WITHIN_S)
        for client in clients.values():
            client.wait_for_end(within=_WITHIN_S)
        return {"trained": trained}

    def _kill_all(self, server: SideProgram, clients: dict[str, SideProgram]) -> None:
        for part in (server, *clients.values()):
            part.kill()
        self._states.rename(self.out / "newest")

    def _put_back(self, folder: Path) -> None:
        shutil.rmtree(self._states, ignore_errors=True)
        shutil.copytree(folder, self._states)

    def _copied(self, name: str) -> Path:
        """A copy of the server's folder that holds a whole state; files may go while it is made."""
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            try:
                return shutil.copytree(self._states, self.out / name)
            except (OSError, shutil.Error):
                shutil.rmtree(self.out / name, ignore_errors=True)
        raise Unreachable("the server's folder could not be copied")

    def _see(self, role: str, saw: str, over: bool) -> None:
        self.seen.append({"kind": "cut", "role": role, "saw": saw, "over_already": over})
        self._say(f"killed the {role}: {saw}")

    def _served(self, at: int) -> SideProgram:
        self._starts += 1
        part = self._part(f"server-run-{self._starts}", *self._server_words[at])
        part.place("cut server ready", within=_WITHIN_S)
        return part

    def _again(self, clinic: str, place: str) -> SideProgram:
        self._starts += 1
        return self._client(f"{clinic}-{self._starts}", clinic, self._deployment, place)

    def _newer(self, server: SideProgram, than: str, *, by: int = 1) -> str:
        """Name of the newest sealed state, at a random moment after ``by`` were sealed."""
        names: set[str] = set()
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            gone = server.gone
            found = (self._states / "journal").glob("*.sealed")
            names |= {item.name for item in found if item.name > than}
            if len(names) >= by or gone:
                time.sleep(self._drawn.uniform(0.0, _PAUSE_S))
                return max(names, default=than)
            time.sleep(_POLL_S)
        raise Unreachable("the server seals no further state", hint=f"see {server.log}")


def _pauses(guest: SideProgram) -> list[str]:
    """Codes of what a guest's supervisor waited for."""
    lines = [line for line in guest.read_stderr() if line.startswith(_PAUSED)]
    return [line.removeprefix(_PAUSED).partition("]")[0] for line in lines]


def _code(part: SideProgram) -> str:
    """The code that a part ended with; empty where it ended well."""
    try:
        part.wait_for_end(within=_WITHIN_S)
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
    resumes = sum(entry["event"] == "run.resumed" for entry in run_log(done))
    expected = sum(not kill["over_already"] for kill in seen)
    return _outcome(done, seen) | {"resumes": resumes, "held": resumes == expected}


def play_cut(out: Path, drawn: random.Random, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the cut run. As ``play_pads``, with ``refused``: codes of the older state."""
    with _KilledCut(out, drawn, say) as stage:
        data = made_up(stage.out / "records", cut_act.note, learned=160, checked=64)
        done = stage.play_recipe(_CUT, data)
        seen = stage.seen
        refused = stage.refused
    resumes = sum(entry["event"] == "run.resumed" for entry in run_log(done))
    held = resumes == 2 and set(refused) == {CheckpointRefused.code}
    held = held and not any(kill["over_already"] for kill in seen)
    return _outcome(done, seen) | {"resumes": resumes, "refused": refused, "held": held}


def _outcome(done: dict[str, Any], seen: Seen) -> dict[str, Any]:
    checks = sum(check["outcome"] == "passed" for check in done["verified"]["checks"])
    return {"killed": seen, "checks": checks}

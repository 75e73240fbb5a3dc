"""What it takes a federation to carry updates that are longer than one message: time and memory.

    python benchmarks/large_updates.py [--json] [--mib 610] [--parties 2] [--rounds 1] [--flower]

610 MiB is an adapter of rank 64 on all linear layers of a model of 7 billion weights, in float32
(``--mib`` for another size). Lead and parties are processes of their own that prove themselves by
keys and talk through the relay's sockets; with ``--flower`` Flower's real processes carry, without
it a thread hands the bytes on. A party's training is to add a number. ``above`` is the highest
resident memory of a process over what it held before the first round, in units of one update: the
lead has to hold the merged adapter and every party's update, and merges into a new one; a party
holds the adapter and its update.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import socket
import struct
import tempfile
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from measured_on import machine
from sealtrain.base.canonical import JsonValue
from sealtrain.errors import SealtrainError
from sealtrain.signing.dsse import Ed25519Signer
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptKey, ProveKey
from sealtrain_together.federated import frames
from sealtrain_together.federated.carrier import Carrier
from sealtrain_together.federated.federation import Federation, Rounds
from sealtrain_together.federated.mailbox import Mailbox
from sealtrain_together.federated.mathematics import Merging, Taken
from sealtrain_together.federated.messages import PURPOSE, Asked, PartyJoined
from sealtrain_together.federated.party_server import PartyService

MIB = 1 << 20
WITHIN_S = 3600


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--flower", action="store_true")
    for name, usual in (("mib", 610), ("parties", 2), ("rounds", 1)):
        asked.add_argument(f"--{name}", type=int, default=usual)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="large-") as folder:
        found = _measured(Path(folder), given)
    found["machine"] = machine("numpy", "flwr")
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{given.mib} MiB, {given.parties} parties, {given.rounds} rounds, by {found['by']}")
    print(f"{found['seconds']} s, {found['turns']} turns of at most {found['turn_mib']} MiB")
    for name, held in found["held"].items():
        print(f"{name:10}{held['peak_mib']} MiB at most, above {held['above']} updates")


def _measured(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    names = [f"party-{number}" for number in range(given.parties)]
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        told, tells = context.Pipe(duplex=False)
        lead = context.Process(target=_lead, args=(folder, given, names, tells))
        parties = [
            context.Process(target=_party, args=(folder, name, number, tells))
            for number, name in enumerate(names)
        ]
        for process in (lead, *parties):
            process.start()
            stack.callback(process.join, 10)
            stack.callback(process.terminate)
        if told.recv() != "listening":
            raise RuntimeError("the lead did not begin")
        if given.flower:
            from sealtrain_together.federated.flower import Flower

            flower = stack.enter_context(Flower(folder / "flower"))
            flower.open_link()
            for name in names:
                flower.add_node(name, folder / f"{name}.sock")
            flower.run_app(folder / "lead.sock")
        else:
            threading.Thread(target=_handed_on, args=(folder, names), daemon=True).start()
        found: dict[str, Any] = {"by": "Flower" if given.flower else "a thread", "held": {}}
        while len(found["held"]) < 1 + given.parties:
            if not told.poll(WITHIN_S):
                raise RuntimeError("the run does not end")
            found["held"] |= (said := told.recv())["held"]
            found |= {name: value for name, value in said.items() if name != "held"}
    for held in found["held"].values():
        held["above"] = round((held["peak_mib"] - held.pop("before_mib")) / given.mib, 2)
    return found | {"mib": given.mib, "turn_mib": frames.TURN_BYTES // MIB}


def _held() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _talk(me: str, accepted: list[str]) -> ChannelTerms:
    def signer(name: str) -> Ed25519Signer:
        seed = hashlib.sha256(f"benchmark {name}".encode()).digest()
        return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))

    return ChannelTerms(
        purpose=PURPOSE,
        context={"run_id": "4f" * 16},
        proof=ProveKey(signer(me)),
        accept=AcceptKey(frozenset(signer(name).public for name in accepted)),
        random=os.urandom,
    )


class _Mean(Merging):
    """Adds up one update after the other."""

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        values = np.frombuffer(update, "<f4")
        return Taken(party=party, records=records, norm=float(values[0]), value=values)

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        return document

    def merge(self, number: int, taken: Any, state: bytes) -> tuple[bytes, dict[str, JsonValue]]:
        total = np.zeros(len(state) // 4, "<f4")
        for turn in taken:
            total += turn.value
        total /= np.float32(len(taken))
        return total.tobytes(), {}


def _lead(folder: Path, given: argparse.Namespace, names: list[str], tells: Connection) -> None:
    class Counted(Carrier):
        """Counts what it carries."""

        turns = 0

        def exchange(self, node: int, data: bytes, *, seconds: int) -> bytes:
            self.turns += 1
            return super().exchange(node, data, seconds=seconds)

    plan = Rounds(
        rule="fedavg",
        rounds=given.rounds,
        min_parties=len(names),
        round_seconds=WITHIN_S,
        joining_seconds=WITHIN_S,
        parties=tuple(names),
    )
    with Counted(folder / "lead.sock") as carrier:
        carrier.serve()
        tells.send("listening")
        before, began = _held(), 0.0

        def record(event: str, fields: dict[str, JsonValue]) -> None:
            nonlocal began
            if event == "round.begun" and not began:
                began = time.monotonic()

        merged = Federation(plan, carrier, _talk("lead", names), _Mean(), record=record).run(
            bytes(given.mib * MIB)
        )
        seconds = time.monotonic() - began
        if np.frombuffer(merged.state, "<f4")[-1] != given.rounds * (len(names) + 1) / 2:
            raise SystemExit("the merge is wrong")
    held = {"lead": {"before_mib": before, "peak_mib": _held()}}
    tells.send({"seconds": round(seconds, 1), "turns": carrier.turns, "held": held})


class _Adds:
    def __init__(self, number: int) -> None:
        self._number = number

    def learn(self, asked: Asked, state: bytes) -> tuple[dict[str, JsonValue], bytes]:
        update = (np.frombuffer(state, "<f4") + np.float32(self._number + 1)).tobytes()
        words: dict[str, JsonValue] = {
            "round": asked.round, "records": 10, "steps": 1, "loss": 0.5, "report": {},
        }  # fmt: skip
        return words, update

    def finish(self, state: bytes) -> tuple[dict[str, JsonValue], bytes]:
        return {}, b""

    def failure(self) -> SealtrainError | None:
        return None


def _party(folder: Path, name: str, number: int, tells: Connection) -> None:
    before = _held()
    with Mailbox(folder / f"{name}.sock") as mailbox:
        PartyService(
            mailbox,
            _talk(name, ["lead"]),
            lambda: PartyJoined(party=name, records=10, countable=True),
            _Adds(number),
            may_go_on=lambda: None,
            patience=float(WITHIN_S),
        ).run()
    tells.send({"held": {name: {"before_mib": before, "peak_mib": _held()}}})


def _handed_on(folder: Path, names: list[str]) -> None:
    """What Flower does, without its processes."""
    lead = socket.socket(socket.AF_UNIX)
    lead.connect(str(folder / "lead.sock"))
    sending = threading.Lock()
    nodes = struct.pack(f">{len(names)}Q", *range(len(names)))
    frames.send_frame(lead, frames.FROM_RELAY.pack(frames.NODES, 0) + nodes)

    def carry(frame: bytes) -> None:
        node, number, _seconds = frames.TO_RELAY.unpack_from(frame)
        kind, answer = frames.LOST, b""
        try:
            with socket.socket(socket.AF_UNIX) as party:
                party.connect(str(folder / f"{names[node]}.sock"))
                frames.send_frame(party, memoryview(frame)[frames.TO_RELAY.size :])
                kind, answer = frames.REPLY, frames.receive_frame(party)
        except (OSError, SealtrainError):
            time.sleep(0.2)
        with sending:
            frames.send_frame(lead, frames.FROM_RELAY.pack(kind, number) + answer)

    while frame := frames.receive_frame(lead):
        threading.Thread(target=carry, args=(frame,), daemon=True).start()


if __name__ == "__main__":
    main()

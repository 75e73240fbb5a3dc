"""What it costs that the lead of a federation sees only sums, beside the same rounds in the clear.

    python benchmarks/masked_rounds.py [--json] [--numbers 1000000] [--parties 3 10] [--rounds 3]

Both ways are the same federation: lead and parties talk over attested channels through the relay's
sockets, in threads of this process; a thread hands the bytes on in Flower's place. A party's
training is to add numbers, so all the time is that of the rounds. Ways are timed in turns, one
round to warm up before them. Bytes are those of all turns and answers. ``apart`` is the largest
difference between the two results, whose bound is that of spec/masked-sums.md §2 for each round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from masks_world import RUN_ID, party_masks

from measured_on import machine
from sealtrain.base.canonical import JsonValue
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import SealtrainError
from sealtrain.signing.dsse import Ed25519Signer
from sealtrain_collab.channel.answers import Done
from sealtrain_collab.channel.handshake import Conversation
from sealtrain_collab.channel.proofs import AcceptKey, ProveKey
from sealtrain_collab.federated import frames
from sealtrain_collab.federated.carrier import Carrier
from sealtrain_collab.federated.federation import Federation, Rounds
from sealtrain_collab.federated.holding import Holding
from sealtrain_collab.federated.mailbox import Mailbox
from sealtrain_collab.federated.masks.party import PartyMasks, Terms
from sealtrain_collab.federated.masks.ring import Summed, encode
from sealtrain_collab.federated.masks.rounds import Masking
from sealtrain_collab.federated.mathematics import Merging, Taken
from sealtrain_collab.federated.messages import PURPOSE, Asked, Joined

WITHIN_S = 600
TIMES = 3


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--numbers", type=int, nargs="+", default=[100_000, 1_000_000])
    asked.add_argument("--parties", type=int, nargs="+", default=[3, 10])
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    rows = [
        _measured(parties, numbers, given.rounds)
        for parties in given.parties
        for numbers in given.numbers
    ]
    if given.json:
        print(json.dumps({"rows": rows, "machine": machine("numpy", "cryptography")}, indent=2))
        return
    print("parties    numbers   clear s  masked s  ratio   clear MB  masked MB  ratio     apart")
    for row in rows:
        print(
            f"{row['parties']:7} {row['numbers']:10,} {row['clear_s']:9.2f} {row['masked_s']:9.2f}"
            f" {row['seconds_ratio']:6.2f} {row['clear_mb']:10.1f} {row['masked_mb']:10.1f}"
            f" {row['bytes_ratio']:6.2f} {row['apart']:9.1e}"
        )


def _measured(parties: int, numbers: int, rounds: int) -> dict[str, Any]:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    carried: dict[bool, int] = {}
    states: dict[bool, bytes] = {}
    for turn in range(1 + TIMES):
        for masked in (False, True):
            taken, carried[masked], states[masked] = _run(parties, numbers, rounds, masked=masked)
            if turn:
                seconds[masked].append(taken / rounds)
    clear, hidden = (statistics.median(seconds[masked]) for masked in (False, True))
    ends = [np.frombuffer(states[masked], "<f4").astype(np.float64) for masked in (False, True)]
    return {
        "parties": parties,
        "numbers": numbers,
        "clear_s": round(clear, 3),
        "masked_s": round(hidden, 3),
        "seconds_ratio": round(hidden / clear, 2),
        "clear_mb": round(carried[False] / rounds / 1e6, 2),
        "masked_mb": round(carried[True] / rounds / 1e6, 2),
        "bytes_ratio": round(carried[True] / carried[False], 2),
        "apart": float(np.abs(ends[0] - ends[1]).max()),
    }


def _run(parties: int, numbers: int, rounds: int, *, masked: bool) -> tuple[float, int, bytes]:
    """Seconds from the first round to the last merge, bytes carried, and the last adapter."""
    names = [f"party-{number:02}" for number in range(parties)]
    threshold = parties // 2 + 1
    plan = Rounds(
        rule="fedavg",
        rounds=rounds,
        min_parties=parties,
        round_seconds=WITHIN_S,
        joining_seconds=WITHIN_S,
        parties=tuple(names),
        masking=Masking(run_id=RUN_ID, threshold=threshold, numbers=numbers) if masked else None,
    )
    times: list[float] = []

    def record(event: str, fields: dict[str, JsonValue]) -> None:
        if event in ("round.begun", "round.merged"):
            times.append(time.perf_counter())

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="masked-")))
        carrier = stack.enter_context(Carrier(folder / "lead.sock"))
        carrier.serve()
        threads = []
        for number, name in enumerate(names):
            masks = None
            if masked:
                terms = Terms(threshold=threshold, least=parties)
                masks = party_masks(name, folder, parties=names, terms=terms)
            work = _Adds(number, numbers, masks)
            mailbox = stack.enter_context(Mailbox(folder / f"{name}.sock"))
            thread = threading.Thread(target=_serve, args=(mailbox, name, work), daemon=True)
            thread.start()
            threads.append(thread)
        counted = stack.enter_context(_handed_on(folder, names))
        merged = Federation(plan, carrier, _talk("lead", names), _Mean(), record=record).run(
            bytes(4 * numbers)
        )
        for thread in threads:
            thread.join(10)
        return times[-1] - times[0], counted[0], merged.state


class _Mean(Merging):
    """FedAvg of numbers."""

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        values = np.frombuffer(update, "<f4")
        norm = float(np.linalg.norm(values - np.frombuffer(state, "<f4")))
        return Taken(party=party, records=records, norm=norm, value=values)

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        return document

    def merge(self, number: int, taken: Any, state: bytes) -> tuple[bytes, dict[str, JsonValue]]:
        total = np.zeros(len(state) // 4)
        weight = sum(one.records for one in taken)
        for one in taken:
            total += one.value * (one.records / weight)
        return total.astype("<f4").tobytes(), {}

    def merge_sum(self, number: int, summed: Summed, state: bytes) -> bytes:
        return bytes((np.frombuffer(state, "<f4") + summed.change).astype("<f4").tobytes())


class _Adds:
    """A party that adds numbers which follow from its place and the round."""

    def __init__(self, number: int, numbers: int, masks: PartyMasks | None) -> None:
        self._number, self._numbers, self.masks = number, numbers, masks
        self.records = 10 + number

    def learn(self, asked: Asked, state: bytes) -> tuple[dict[str, JsonValue], bytes]:
        drawn = np.random.default_rng([self._number, asked.round])
        before = np.frombuffer(state, "<f4")
        update = before + drawn.normal(0, 0.01, self._numbers).astype("<f4")
        words: dict[str, JsonValue] = {
            "round": asked.round, "records": self.records, "steps": 1, "loss": 0.5, "report": {},
        }  # fmt: skip
        if self.masks is None:
            return words, update.tobytes()
        change = update.astype(np.float64) - before
        self.masks.hold(asked.round, sha256_hex(state), encode(change, self.records))
        return words, b""

    def finish(self, state: bytes) -> tuple[dict[str, JsonValue], bytes]:
        return {}, b""

    def mask(self, asked: Asked, body: bytes) -> Done:
        if self.masks is None:
            raise SealtrainError("no masks here")
        return self.masks.answer(asked.round, body)


def _serve(mailbox: Mailbox, name: str, work: _Adds) -> None:
    Holding(
        mailbox,
        _talk(name, ["lead"]),
        lambda: Joined(
            party=name,
            records=work.records,
            countable=True,
            introduction=None if work.masks is None else work.masks.introduction,
        ),
        work,
        may_go_on=lambda: None,
        patience=float(WITHIN_S),
    ).run()


def _signer(name: str) -> Ed25519Signer:
    seed = hashlib.sha256(f"benchmark {name}".encode()).digest()
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))


def _talk(me: str, accepted: list[str]) -> Conversation:
    return Conversation(
        purpose=PURPOSE,
        context={"run_id": RUN_ID},
        proof=ProveKey(_signer(me)),
        accept=AcceptKey(frozenset(_signer(name).public for name in accepted)),
        random=os.urandom,
    )


@contextmanager
def _handed_on(folder: Path, names: list[str]) -> Iterator[list[int]]:
    """What Flower does, without its processes; the bytes that it carried so far."""
    lead = socket.socket(socket.AF_UNIX)
    lead.connect(str(folder / "lead.sock"))
    sending = threading.Lock()
    counted = [0]
    nodes = struct.pack(f">{len(names)}Q", *range(len(names)))
    frames.send_frame(lead, frames.FROM_RELAY.pack(frames.NODES, 0) + nodes)

    def carry(frame: bytes) -> None:
        node, number, _seconds = frames.TO_RELAY.unpack_from(frame)
        kind, answer = frames.LOST, b""
        turn = memoryview(frame)[frames.TO_RELAY.size :]
        try:
            with socket.socket(socket.AF_UNIX) as party:
                party.connect(str(folder / f"{names[node]}.sock"))
                frames.send_frame(party, turn)
                kind, answer = frames.REPLY, frames.receive_frame(party)
        except (OSError, SealtrainError):
            return
        with sending, suppress(SealtrainError):
            counted[0] += len(turn) + len(answer)
            frames.send_frame(lead, frames.FROM_RELAY.pack(kind, number) + answer)

    def serve() -> None:
        with suppress(SealtrainError, OSError):
            while frame := frames.receive_frame(lead):
                threading.Thread(target=carry, args=(frame,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        with suppress(OSError):
            lead.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        lead.close()


if __name__ == "__main__":
    main()

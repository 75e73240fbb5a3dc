"""Attacks on a travelling accelerator: by holders, by who records traffic, by who changes state."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import mmap
import os
import socket
import struct
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from world import signer

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.scrub import fingerprint_of, overwrite, proof_of
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, LimitExceeded, SealtrainError, TripBroken
from sealtrain.manifest.checks.collaborations.travelling import (
    Travelled,
    TravellingTerms,
    check_trips,
)
from sealtrain.manifest.errors import TranscriptInvalid
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused, SealRefused
from sealtrain.signing.runlog import RunLog
from sealtrain.training.errors import ChannelBroken, ChannelRefused, PeerUnreachable
from sealtrain_together.channel.frames import FrameReader, FrameWriter
from sealtrain_together.channel.proofs import AcceptKey, ProveKey
from sealtrain_together.errors import CapabilityRefused
from sealtrain_together.travelling import accelerator as accelerators
from sealtrain_together.travelling.capability import (
    Gate,
    WriteCapability,
    WriteConnection,
    Written,
    write_chunk,
)
from sealtrain_together.travelling.control import WipeChallenge
from sealtrain_together.travelling.holder import Holder, Provision
from sealtrain_together.travelling.holder_memory import GivenTrips, GivingBounds
from sealtrain_together.travelling.mapped_code import MappedCode, hash_mapped, release_pages
from sealtrain_together.travelling.measurement import StateMeter, fingerprint_of_bytes
from sealtrain_together.travelling.parties import join_holder
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.standby import Standby

if not COLLECTING:
    import torch
    from travel_driver import driven, filling, lane_to
    from travel_world import (
        HOLDERS,
        KEYS,
        PATIENCE,
        PROGRAM,
        RUN_ID,
        TERMS,
        Tokens,
        TravelWorld,
        travel_world,
    )

pytestmark = [pytest.mark.long, pytest.mark.claim("C71", "C72")]

CHUNK = os.urandom(100)


class Port:
    """A write port over a small buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray(300)
        self.gate = Gate(memoryview(self.buffer))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._over = threading.Event()
        self.accepted = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(
                target=self.gate.serve_one, args=(sock,), kwargs={"timeout": 3.0}, daemon=True
            ).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def lend(self, start: int = 100, end: int = 200) -> WriteCapability:
        capability = WriteCapability.make(0, start, end, os.urandom)
        self.gate.lend(capability)
        return capability

    def write(self, capability: WriteCapability, chunk: bytes = CHUNK) -> Written:
        return write_chunk(self.address, capability, len(chunk), filling(chunk), timeout=3.0)


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


def raw_writer(
    port: Port, capability: WriteCapability, key: Secret | None = None
) -> tuple[socket.socket, FrameWriter]:
    """A holder with a program of its own."""
    sock = socket.create_connection(port.address, timeout=3.0)
    sock.sendall(bytes.fromhex(capability.id))
    return sock, FrameWriter(sock, key or capability.key("write"))


def hung_up(sock: socket.socket) -> bool:
    """Whether the accelerator ended the connection without a receipt."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def at(offset: int, data: bytes) -> bytes:
    return struct.pack(">Q", offset) + data


def test_an_honest_write_lands_in_its_range_and_nowhere_else(port: Port) -> None:
    capability = port.lend()
    written = port.write(capability)
    assert port.gate.take_back(capability.id) == written
    assert port.buffer == bytes(100) + CHUNK + bytes(100)


@pytest.mark.parametrize(
    "writes",
    [
        [at(99, b"x")],
        [at(0, b"x")],
        [at(100, bytes(101))],
        [at(100, bytes(50)), at(150, bytes(51))],
        [at(101, b"x")],
        [at(100, bytes(10)), at(100, bytes(10))],
        [at(2**64 - 1, b"x")],
        [at(100, b"")],
        [b"short"],
    ],
    ids=["before", "zero", "over", "over in two", "gap", "twice", "wrap", "nothing", "no offset"],
)
def test_a_write_outside_its_place_is_refused_and_voids_the_trip(
    port: Port, writes: list[bytes]
) -> None:
    capability = port.lend()
    sock, writer = raw_writer(port, capability)
    with sock:
        for message in writes:
            writer.send(message)
        assert hung_up(sock)
    with pytest.raises(CapabilityRefused):
        port.gate.take_back(capability.id)
    assert port.buffer[:100] == bytes(100)
    assert port.buffer[200:] == bytes(100)


def test_a_capability_serves_once(port: Port) -> None:
    capability = port.lend()
    written = port.write(capability)
    with pytest.raises((ChannelBroken, PeerUnreachable)):
        port.write(capability, bytes(100))
    assert port.gate.take_back(capability.id) == written
    assert bytes(port.buffer[100:200]) == CHUNK


def test_a_holder_that_keeps_writing_after_the_return_writes_nothing(port: Port) -> None:
    capability = port.lend()
    sock, writer = raw_writer(port, capability)
    with sock:
        writer.send(at(100, b"a" * 10))
        deadline = threading.Event()
        for _ in range(100):
            if port.buffer[100:110] == b"a" * 10:
                break
            deadline.wait(0.02)
        with pytest.raises(CapabilityRefused):
            port.gate.take_back(capability.id)
        with suppress(SealtrainError):
            writer.send(at(110, b"b" * 10))
        deadline.wait(0.1)
    assert port.buffer[110:120] == bytes(10)


def test_who_knows_an_id_but_no_secret_writes_nothing(port: Port) -> None:
    capability = port.lend()
    sock, writer = raw_writer(port, capability, Secret(os.urandom(32)))
    with sock:
        writer.send(at(100, CHUNK))
        assert hung_up(sock)
    assert port.buffer == bytes(300)


def test_recorded_traffic_of_one_trip_is_nothing_on_another(port: Port) -> None:
    """Two holders collude: one recorded the other's trip and has a capability of its own."""
    first = port.lend()
    seen = bytearray()
    sock, _writer = raw_writer(port, first)
    with sock:
        keep, sock_send = seen.extend, sock.sendall

        class Recorder:
            def sendall(self, data: Any) -> None:
                keep(bytes(data))
                sock_send(data)

            def recv_into(self, buffer: memoryview) -> int:
                return sock.recv_into(buffer)

            def close(self) -> None:
                sock.close()

        writer = FrameWriter(Recorder(), first.key("write"))
        writer.send(at(100, CHUNK))
        writer.control(0)
        assert sock.recv(1)
    port.gate.take_back(first.id)
    port.buffer[:] = bytes(300)
    own = port.lend()
    for capability_id in (first.id, own.id):
        with socket.create_connection(port.address, timeout=3.0) as replay:
            replay.sendall(bytes.fromhex(capability_id) + bytes(seen))
            assert hung_up(replay)
    assert port.buffer == bytes(300)
    assert CHUNK not in seen


def test_lent_ranges_never_overlap_and_never_leave_the_buffer(port: Port) -> None:
    port.lend(100, 200)
    for start, end in ((0, 101), (199, 300), (120, 130), (0, 300), (200, 301)):
        with pytest.raises(CapabilityRefused):
            port.lend(start, end)
    port.lend(0, 100)
    port.lend(200, 300)


def run(world: TravelWorld, **changed: Any) -> tuple[Travelled, RunLog]:
    with world.orchestrator(**changed) as orchestrator:
        orchestrator.run()
    return check_trips(orchestrator.log.entries, TERMS), orchestrator.log


def test_a_holder_that_names_other_bytes_than_it_sent_loses_its_turn() -> None:
    with travel_world() as world:
        world.made["clinic-b"].provide = lambda asked: (  # type: ignore[method-assign]
            Holder.provide(world.made["clinic-b"], asked) | {"fingerprint": "00" * 32}
        )
        came, _log = run(world)
        assert set(came.refused.values()) == {"clinic-b"}
        assert set(came.tokens) == {"clinic-a", "clinic-c"}
        assert came.tokens["clinic-a"] == 512
        assert not world.lies_there()


def small_holder(most: int, *, forgives: int = 8) -> Holder:
    key = KEYS["clinic-a"]
    return Holder(
        Tokens("x", 100),
        given=GivenTrips(
            RUN_ID, GivingBounds(max_bytes=most, timeout=1.0, patience=1.0, forgives=forgives)
        ),
        key=key,
        share=lambda: bytes(32),
    )


def provision(trip: int, size: int, port: int = 1) -> Provision:
    return Provision(
        run_id=RUN_ID, trip=trip, offset=0, size=size, host="127.0.0.1", port=port,
        capability=WriteCapability.make(trip, 0, size, os.urandom).to_dict(),
    )  # fmt: skip


def test_malformed_chunks_are_refused_and_the_others_go_on() -> None:
    with travel_world() as world:
        world.tokens["clinic-a"].data = b"\xff" * 1024  # tokens beyond the vocabulary
        world.hold("clinic-b", source=Tokens("clinic-b", 16))  # fewer than promised
        came, log = run(world)
        assert list(came.refused.values()).count("clinic-a") == 2
        assert list(came.refused.values()).count("clinic-b") == 2
        assert came.tokens == {"clinic-c": 512}
        codes = {
            entry["fields"]["code"] for entry in log.entries if entry["event"] == "trip.refused"
        }
        assert codes == {"data-invalid"}


def test_a_holder_gives_no_more_than_it_wants_to() -> None:
    with travel_world(max_bytes=512) as world:
        came, _log = run(world)
        assert set(came.tokens.values()) == {256}
        assert set(came.refused.values()) == set(world.holders)
    with pytest.raises(LimitExceeded):
        small_holder(10).provide(provision(0, 11))


def test_the_plan_holds_a_holder_to_its_limit() -> None:
    with travel_world() as world:
        came, _log = run(world, plan=world.plan(limits={"clinic-c": 200}))
        assert came.tokens == {"clinic-a": 512, "clinic-b": 512, "clinic-c": 192}


def _a_weight(program: TravellingModel) -> None:
    next(program.model.parameters()).data.view(-1)[0] += 1e-3


def _one_bit_of_a_moment(program: TravellingModel) -> None:
    *_, (name, moment) = (
        tensor for tensor in program.tensors() if tensor[0].endswith("exp_avg_sq")
    )
    moment.view(-1).view(torch.uint8)[-4] ^= 1
    assert name.startswith("optimizer.")


def _a_step_of_the_optimizer(program: TravellingModel) -> None:
    state = next(iter(program.optimizer.state.values()))
    state["step"] += 1


def _a_tensor_more(program: TravellingModel) -> None:
    kept = next(iter(program.optimizer.state.values()))
    kept["spare"] = torch.ones(3)


def _a_buffer(program: TravellingModel) -> None:
    program.model.register_buffer("hidden", torch.zeros(2))


CHANGED_STATES: dict[str, Callable[[TravellingModel], None]] = {
    "a weight": _a_weight,
    "one bit of a moment": _one_bit_of_a_moment,
    "a step of the optimizer": _a_step_of_the_optimizer,
    "a tensor more": _a_tensor_more,
    "a buffer more": _a_buffer,
}


@pytest.mark.claim("C216")
@pytest.mark.parametrize("name", CHANGED_STATES)
def test_a_state_that_changed_between_two_trips_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with driven(monkeypatch) as (driver, program):
        turn = driver.filled(1)
        CHANGED_STATES[name](program)
        steps = program.steps
        with pytest.raises(TripBroken, check=carries(check="model")):
            driver.trained(turn)
        assert program.steps == steps


@pytest.mark.claim("C216")
def test_an_unchanged_state_is_trained_on_after_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with driven(monkeypatch) as (driver, program):
        after = driver.trained(driver.filled(1)).after
        assert program.steps == 2
        assert after["code"] == driver.loaded["code"]
        assert after["model"] != driver.loaded["model"]


@pytest.mark.claim("C216")
@pytest.mark.parametrize("kind", ["frozen weight", "buffer"])
def test_a_block_that_training_never_changes_is_compared_at_every_boundary(kind: str) -> None:
    """It is altered while training runs, when no wait would show it, and no list marks it."""
    program = TravellingModel(PROGRAM)
    frozen = program.model.transformer.wpe.weight.requires_grad_(requires_grad=False)
    program.model.register_buffer("mask", torch.zeros(1 << 17))  # two blocks of 2**18 bytes
    meter = StateMeter(program)
    first = meter.take(os.urandom(32))
    program.train(memoryview(bytes(PROGRAM.step_bytes)))
    assert meter.take(os.urandom(32)) != first
    program.train(memoryview(bytes(PROGRAM.step_bytes)))
    if kind == "buffer":
        program.model.mask[-1] = 1.0
    else:
        frozen.data.view(-1)[5] += 1.0
    with pytest.raises(TripBroken) as caught:
        meter.take(os.urandom(32))
    assert caught.value.check == "model"
    expected = "buffer.mask" if kind == "buffer" else "model.transformer.wpe.weight"
    assert caught.value.got == expected


@pytest.mark.claim("C216")
def test_a_fingerprint_of_another_moment_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator that answers with what it answered before."""
    answers: list[str] = []
    take = StateMeter.take

    def replayed(meter: StateMeter, key: bytes) -> str:
        answers.append(take(meter, key))
        return answers[-2] if len(answers) > 2 else answers[-1]

    with travel_world() as world:
        monkeypatch.setattr(StateMeter, "take", replayed)
        sealed: list[bytes] = []
        plan = world.plan(seal_every=1)
        orchestrator = world.orchestrator(plan, sealed=sealed.append)
        with orchestrator, pytest.raises(TripBroken) as caught:
            orchestrator.run()
        assert caught.value.check == "model"
        assert len(sealed) == 0
        assert not any(entry["event"] == "travel.finished" for entry in orchestrator.log.entries)


@pytest.mark.claim("C216")
def test_a_measurement_follows_the_bytes_and_the_key_alone() -> None:
    program, key = TravellingModel(PROGRAM), os.urandom(32)
    meter = StateMeter(program)
    found = meter.take(key)
    assert fingerprint_of_bytes(program.state(), key) == found == meter.take(key)
    assert meter.take(os.urandom(32)) != found
    meter.check_unchanged()


@pytest.mark.claim("C217")
def test_a_function_that_was_replaced_in_memory_stops_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with driven(monkeypatch) as (driver, program):
        turn = driver.filled(1)
        kept = torch.optim.AdamW.step
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: kept(self))
        with pytest.raises(TripBroken, check=carries(check="code")):
            driver.trained(turn)
        assert program.steps == 1


def _library(folder: Path, name: str) -> Path:
    """A library of another inode than any that is loaded."""
    source = next(path for path in hash_mapped() if "libz" in path or "libffi" in path)
    copy = folder / name
    copy.write_bytes(Path(source).read_bytes())
    return copy


def _load(library: Path) -> Callable[[], None]:
    """Map a library; the answer unmaps it."""
    loader = ctypes.CDLL(None)
    loader.dlopen.restype = ctypes.c_void_p
    handle = loader.dlopen(os.fsencode(library), os.RTLD_NOW)
    assert handle
    return lambda: loader.dlclose(ctypes.c_void_p(handle))


def _swapped(library: Path) -> None:
    other = library.with_name("other")
    other.write_bytes(library.read_bytes() + b"x")
    other.replace(library)


def _rewritten_in_place(library: Path) -> None:
    with library.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"x")


def _patched_in_memory(library: Path) -> None:
    line = next(
        line for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(library)) and "r-xp" in line
    )  # fmt: skip
    start = int(line.split("-")[0], 16)
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(start), page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    kept = ctypes.string_at(start, 1)
    ctypes.memmove(start, bytes([kept[0] ^ 1]), 1)
    assert libc.mprotect(ctypes.c_void_p(start), page, mmap.PROT_READ | mmap.PROT_EXEC) == 0


CODE_ATTACKS: dict[str, Callable[[Path], None]] = {
    "swapped": _swapped,
    "removed": Path.unlink,
    "rewritten in place": _rewritten_in_place,
    "patched in memory": _patched_in_memory,
}


@pytest.mark.claim("C217")
@pytest.mark.parametrize("name", CODE_ATTACKS)
def test_a_mapped_file_that_was_changed_has_another_digest(tmp_path: Path, name: str) -> None:
    library = _library(tmp_path, f"lib{os.getpid()}.so")
    unload = _load(library)
    code = MappedCode({}, ())
    before, files = code.digest(), hash_mapped()
    assert files[str(library)] == hashlib.sha256(library.read_bytes()).hexdigest()
    assert code.digest() == before
    # An older kernel answers no requests: what its files say is the same.
    assert hash_mapped(asks=False) == files
    CODE_ATTACKS[name](library)
    assert code.digest() != before
    assert hash_mapped(asks=False) == hash_mapped() != files
    unload()


@pytest.mark.claim("C217")
def test_code_whose_pages_were_let_go_is_the_same_and_a_patched_page_stays(tmp_path: Path) -> None:
    library = _library(tmp_path, f"lib{os.getpid()}.so")
    unload = _load(library)
    code = MappedCode({}, ())
    before, there = code.digest(), _resident()
    release_pages()
    assert _resident() < there
    assert code.digest() == before
    _patched_in_memory(library)
    release_pages()
    assert hash_mapped()[str(library)] == "patched"
    assert code.digest() != before
    unload()


def _resident() -> int:
    """Of files, in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssFile:")[1].split()[0])


class _Computes:
    """A class of a device program."""

    def layer(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return 2


def _another_function(kind: type[_Computes]) -> None:
    kind.layer = lambda self: 2  # type: ignore[method-assign]


def _another_code(kind: type[_Computes]) -> None:
    kind.layer.__code__ = (lambda self: 2).__code__


def _another_property(kind: type[_Computes]) -> None:
    kind.width = property(lambda self: 3)  # type: ignore[assignment,method-assign]


def _one_more(kind: type[_Computes]) -> None:
    kind.forward = lambda self: 4  # type: ignore[attr-defined]


def _one_less(kind: type[_Computes]) -> None:
    del kind.layer


@pytest.mark.claim("C217")
@pytest.mark.parametrize(
    "replace", [_another_function, _another_code, _another_property, _one_more, _one_less]
)
def test_code_that_was_replaced_in_memory_has_another_digest(
    replace: Callable[[type[_Computes]], None],
) -> None:
    kind = type("_Computes", (), dict(vars(_Computes)))
    kind.layer = types.FunctionType(_Computes.layer.__code__, {})  # type: ignore[attr-defined]
    code = MappedCode({}, (kind,))
    before = code.digest()
    assert code.digest() == before
    replace(kind)
    assert code.digest() != before


@pytest.mark.claim("C217")
def test_a_library_that_is_loaded_after_the_program_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with driven(monkeypatch) as (driver, program):
        turn = driver.filled(1)
        unload = _load(_library(tmp_path, f"injected{os.getpid()}.so"))
        with pytest.raises(TripBroken, check=carries(check="code")):
            driver.trained(turn)
        assert program.steps == 1
        unload()


def _not_at_all(view: memoryview, seed: bytes) -> None:
    """A wipe that does nothing."""


def _with_zeros(view: memoryview, seed: bytes) -> None:
    """A wipe with what everybody knows."""
    view[:] = bytes(len(view))


def _all_but_the_last_byte(view: memoryview, seed: bytes) -> None:
    kept = view[-1]
    overwrite(view, seed)
    view[-1] = kept ^ 1


def _with_another_seed(view: memoryview, seed: bytes) -> None:
    overwrite(view, bytes(32))


@pytest.mark.claim("C218")
@pytest.mark.parametrize(
    "wiping", [_not_at_all, _with_zeros, _all_but_the_last_byte, _with_another_seed]
)
def test_a_chunk_that_was_not_wiped_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, wiping: Callable[[memoryview, bytes], None]
) -> None:
    with travel_world() as world:
        monkeypatch.setattr(accelerators, "overwrite", wiping)
        with world.orchestrator() as orchestrator, pytest.raises(TripBroken) as caught:
            orchestrator.run()
        assert caught.value.check == "scrub"
        # The half of a chunk whose wipe is not proven is lent to no other holder.
        lent = [
            entry["fields"] for entry in orchestrator.log.entries if entry["event"] == "trip.lent"
        ]
        assert len(lent) == 2
        assert not any(entry["event"] == "trip.scrubbed" for entry in orchestrator.log.entries)


@pytest.mark.claim("C218")
def test_no_wipe_of_a_run_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of trained, refused and last chunks, each in turn: the run stops at its proof."""
    made = 0

    def skipped(number: int | None) -> SealtrainError | None:
        nonlocal made
        made = 0

        def wiping(view: memoryview, seed: bytes) -> None:
            nonlocal made
            made += 1
            if made - 1 != number:
                overwrite(view, seed)

        with travel_world(tokens=256) as world, monkeypatch.context() as patch:
            world.tokens["clinic-b"].data = b"\xff" * 512  # tokens beyond the vocabulary
            patch.setattr(accelerators, "overwrite", wiping)
            with world.orchestrator() as orchestrator:
                try:
                    orchestrator.run()
                except TripBroken as error:
                    return error
        return None

    assert skipped(None) is None
    wipes = made
    assert wipes >= 4 + 2, "trained and refused"
    for number in range(wipes):
        error = skipped(number)
        assert error is not None, number
        assert (error.code, error.check) == ("trip-broken", "scrub")


@pytest.mark.claim("C218")
@pytest.mark.parametrize("answer", ["of zeros", "of the last challenge", "of another seed"])
def test_what_is_known_beforehand_is_no_proof_of_a_wipe(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The accelerator leaves the chunk in place and answers without a look at it."""
    size, known = PROGRAM.step_bytes, list[str]()

    def answered(view: memoryview, nonce: bytes) -> str:
        if answer == "of zeros":
            return fingerprint_of(memoryview(bytes(size)), nonce)
        if answer == "of another seed":
            return proof_of("00" * 32, nonce.hex(), size)
        return known[0]

    with driven(monkeypatch) as (driver, _program), monkeypatch.context() as patch:
        turn = driver.filled(1)
        driver.trained(turn)

        def challenge() -> WipeChallenge:
            nonce = os.urandom(32).hex()
            return WipeChallenge(start=turn.start, end=turn.end, nonce=nonce, seed=turn.seed.hex())

        first = challenge()
        driver.loans.prove(first)
        known.append(first.proof())
        patch.setattr(accelerators, "fingerprint_of", answered)
        with pytest.raises(TripBroken, check=carries(check="scrub")):
            driver.loans.prove(challenge())
        with pytest.raises(TripBroken, check=carries(check="scrub")):
            driver.filled(3, challenge())


@pytest.mark.claim("C218")
def test_nothing_of_a_chunk_is_left_where_it_lay(monkeypatch: pytest.MonkeyPatch) -> None:
    with driven(monkeypatch) as (driver, _program):
        turn = driver.filled(1)
        chunk = bytes(driver.world.accelerator.buffer[turn.start : turn.end])
        assert chunk == Tokens("clinic-a", 512).data[: len(chunk)]
        driver.trained(turn)
        driver.loans.wipe(turn.start, turn.end, os.urandom(32), turn.id)
        there = bytes(driver.world.accelerator.buffer[turn.start : turn.end])
        assert not any(chunk[at : at + 8] in there for at in range(0, len(chunk), 8))


@pytest.mark.claim("C219")
def test_one_connection_carries_the_writes_of_a_holder(port: Port) -> None:
    with closing(WriteConnection(port.address, timeout=3.0)) as connection:
        for part in (CHUNK, CHUNK[::-1], CHUNK):
            capability = port.lend()
            written = connection.write(capability, len(part), filling(part))
            assert port.gate.take_back(capability.id) == written
            assert bytes(port.buffer[100:200]) == part
    assert port.accepted == 1


@pytest.mark.claim("C219")
@pytest.mark.parametrize("second", ["the same again", "taken back", "unknown", "another's key"])
def test_a_kept_connection_opens_nothing_by_itself(port: Port, second: str) -> None:
    first = port.lend()
    sock, writer = raw_writer(port, first)
    with sock:
        writer.send(at(100, CHUNK))
        writer.control(0)
        reader = FrameReader(sock, first.key("receipt"))
        assert reader.receive(max_bytes=32)
        port.gate.take_back(first.id)
        capability, key = first, first.key("write")
        if second == "taken back":
            capability = port.lend()
            key = capability.key("write")
            with pytest.raises(CapabilityRefused):
                port.gate.take_back(capability.id)
        elif second == "unknown":
            capability = WriteCapability.make(0, 100, 200, os.urandom)
            key = capability.key("write")
        elif second == "another's key":
            capability = port.lend()
        sock.sendall(bytes.fromhex(capability.id))
        with suppress(PeerUnreachable):
            FrameWriter(sock, key).send(at(100, bytes(100)))
        assert hung_up(sock)
    assert bytes(port.buffer[100:200]) == CHUNK


@pytest.mark.claim("C219")
def test_a_turn_that_names_another_chunk_than_arrived_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with driven(monkeypatch) as (driver, program):
        turn = driver.filled(1)
        other = Written(size=turn.written.size, fingerprint="00" * 32)
        with pytest.raises(TripBroken, check=carries(check="chunk")):
            driver.trained(dataclasses.replace(turn, written=other))
        with pytest.raises(CapabilityRefused):  # it was taken back all the same
            driver.trained(turn)
        assert program.steps == 1


def test_a_stranger_is_no_orchestrator_and_no_accelerator() -> None:
    with travel_world() as world:
        stranger = world.parties(proof=ProveKey(signer("mallory")))
        with pytest.raises(SealtrainError), world.orchestrator(parties=stranger):
            pytest.fail("the accelerator obeyed a stranger")
        wary = world.parties(accept_accelerator=AcceptKey(frozenset({signer("another").public})))
        with pytest.raises(ChannelRefused), world.orchestrator(parties=wary):
            pytest.fail("the orchestrator took a stranger for its accelerator")


def test_a_new_session_wipes_what_the_last_one_left() -> None:
    with travel_world() as world, lane_to(world, "01" * 16, "work") as first:
        first.load(PROGRAM, os.urandom(32))
        with lane_to(world, "01" * 16, "loans") as loans:
            capability = WriteCapability.make(0, 0, 100, os.urandom)
            loans.lend(capability)
            write_chunk(world.writes, capability, 100, filling(CHUNK), timeout=PATIENCE)
        assert any(world.accelerator.buffer)
        assert first.export()
        with lane_to(world, "02" * 16, "work") as second:
            with pytest.raises(
                TripBroken, check=carries(check="program")
            ):  # answered once it is served
                second.export()
            assert not any(world.accelerator.buffer)
        with pytest.raises(TripBroken, check=carries(check="session")):
            first.export()


def test_another_orchestrator_takes_over_and_ends_with_the_same_model(tmp_path: Path) -> None:
    key = DataKey.generate()
    with travel_world() as world, world.orchestrator() as undisturbed:
        model = undisturbed.run()
    whole = check_trips(undisturbed.log.entries, TERMS)
    # Holders give what they have once: what was lost with the orchestrator does not count.
    with travel_world(max_bytes=1024) as world:
        standby = Standby(tmp_path, key, RUN_ID)

        def dies(trip: Any, _loss: float) -> None:
            if trip.number == 6:
                raise KeyboardInterrupt

        def seal(state: bytes) -> None:
            standby.seal(first.plan, {"log": first.log.entries, "kept": [1]}, state)

        first = world.orchestrator(on_trip=dies, sealed=seal)
        with first, pytest.raises(KeyboardInterrupt):
            first.run()
        assert Standby(tmp_path / "before", key, RUN_ID).newest() is None
        taken = Standby(tmp_path, key, RUN_ID).newest()
        assert taken is not None
        assert taken.journal["kept"] == [1]
        log = RunLog.restore(RUN_ID, taken.journal["log"])
        with world.orchestrator(plan=taken.plan, log=log) as second:
            ended = second.run(taken.state)
        came = check_trips(second.log.entries, TERMS)
        assert came.tokens == whole.tokens
        assert came.takeovers == 1
        assert ended == model
        with pytest.raises(SealRefused):
            Standby(tmp_path, DataKey.generate(), RUN_ID).newest()
        with pytest.raises(SealRefused):
            Standby(tmp_path, key, "00" * 16).newest()


def test_a_state_of_another_moment_does_not_fit_the_log(tmp_path: Path) -> None:
    key = DataKey.generate()
    with travel_world() as world:
        standby = Standby(tmp_path, key, RUN_ID)

        def seal(state: bytes) -> None:
            standby.seal(orchestrator.plan, {"log": orchestrator.log.entries}, state)

        orchestrator = world.orchestrator(sealed=seal)
        with orchestrator:
            orchestrator.run()
        taken = standby.newest()
        assert taken is not None
        fresh = TravellingModel(taken.plan.program).state()
        log = RunLog.restore(RUN_ID, taken.journal["log"])
        with (
            world.orchestrator(plan=taken.plan, log=log) as second,
            pytest.raises(TripBroken),
        ):
            second.run(fresh)


@pytest.mark.claim("C276")
def test_a_holder_does_not_follow_an_orchestrator_back_to_an_old_state() -> None:
    with travel_world() as world:
        holder = world.hold("clinic-a", bounds={"forgives": 3})

        def give(trip: int, size: int) -> None:
            capability = WriteCapability.make(trip, 0, size, os.urandom)
            world.accelerator.gate.lend(capability)
            host, port = world.writes
            holder.provide(
                Provision(
                    run_id=RUN_ID, trip=trip, offset=0, size=size, host=host, port=port,
                    capability=capability.to_dict(),
                )
            )  # fmt: skip
            world.accelerator.gate.take_back(capability.id)

        def join(trip: int) -> None:
            lane, _joined = join_holder(world.parties(), RUN_ID, "clinic-a", trip, os.urandom)
            lane.close()

        for trip in range(0, 12, 3):
            give(trip, 10 + trip)
        for trip in (6, 0):  # an older state, and none
            with pytest.raises(CheckpointRefused) as caught:
                join(trip)
            assert caught.value.check == "trips"
        join(7)
        assert holder.given == (10, 13, 16)
        # What was forgiven counts no more, so it can be given again; nothing else can.
        give(9, 30)
        assert holder.given == (10, 13, 16, 30)
        with pytest.raises(DataInvalid):
            give(6, 16)


def test_reports_come_before_anything_is_trained_on() -> None:
    seen: list[str] = []
    with travel_world() as world:
        for name in HOLDERS:
            world.hold(name, report=name.encode)
        orchestrator = world.orchestrator(
            reported=lambda name, report: seen.append(f"{name}:{report.decode()}")
        )
        with orchestrator:
            orchestrator.run()
        trips = [
            entry["fields"] for entry in orchestrator.log.entries if entry["event"] == "trip.lent"
        ]
        assert seen == [f"{trip['holder']}:{trip['holder']}" for trip in trips]

        def refuses(_name: str, _report: bytes) -> None:
            raise TripBroken("this report does not hold", check="report")

        for name in HOLDERS:  # none has given anything yet
            world.hold(name, report=name.encode)
        with world.orchestrator(reported=refuses, log=RunLog(RUN_ID)) as orchestrator:
            orchestrator.run()
        assert check_trips(orchestrator.log.entries, TERMS).tokens == {}


@pytest.fixture(scope="module")
def honest() -> list[dict[str, Any]]:
    with travel_world() as world:
        _came, log = run(world)
    return log.entries


def _rewritten(
    entries: list[dict[str, Any]], change: Callable[[list[dict[str, Any]]], Any]
) -> list[dict[str, Any]]:
    """Entries of another run, which no chain contradicts."""
    changed: list[dict[str, Any]] = parse_canonical(canonical_json(entries))
    change(changed)
    return changed


def _first(entries: list[dict[str, Any]], event: str, trip: int = 0) -> dict[str, Any]:
    found = (
        entry["fields"] for entry in entries
        if entry["event"] == event and entry["fields"].get("trip", trip) == trip
    )  # fmt: skip
    return next(found)


CHANGES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "a trip left out": lambda entries: [
        entries.pop(entries.index(entry))
        for entry in list(entries)
        if entry["fields"].get("trip") == 1
    ],
    "a scrub left out": lambda entries: entries.pop(
        next(at for at, entry in enumerate(entries) if entry["event"] == "trip.scrubbed")
    ),
    "another proof": lambda entries: _first(entries, "trip.scrubbed").update(proof="00" * 32),
    "another holder": lambda entries: _first(entries, "trip.lent").update(holder="nobody"),
    "a range outside": lambda entries: _first(entries, "trip.lent").update(end=1 << 20),
    "one capability twice": lambda entries: _first(entries, "trip.lent", 1).update(
        id=_first(entries, "trip.lent")["id"]
    ),
    "more written than lent": lambda entries: _first(entries, "trip.written").update(size=9999),
    "more tokens than written": lambda entries: _first(entries, "trip.trained").update(tokens=999),
    "another seed": lambda entries: _first(entries, "trip.scrubbed").update(seed="00" * 32),
    "another nonce of a scrub": lambda entries: _first(entries, "trip.scrubbed").update(
        nonce="00" * 32
    ),
    "a measurement under a nonce that was used": lambda entries: _first(
        entries, "trip.trained", 2
    ).update(nonce=_first(entries, "trip.trained", 1)["nonce"]),
    "a measurement under the nonce of the setup": lambda entries: _first(
        entries, "trip.trained", 2
    ).update(nonce=entries[0]["fields"]["nonce"]),
    "a scrub of an earlier trip": lambda entries: _first(entries, "trip.scrubbed", 2).update(
        {name: _first(entries, "trip.scrubbed", 0)[name] for name in ("seed", "nonce", "proof")}
    ),
    "no nonce": lambda entries: _first(entries, "trip.trained").pop("nonce"),
    "another code after": lambda entries: _first(entries, "trip.trained")["after"].update(
        code="00" * 32
    ),
    "another model at the end": lambda entries: entries[-1]["fields"].update(model="00" * 32),
    "no end": lambda entries: entries.pop(),
    "something after the end": lambda entries: entries.append(entries[-1]),
    "two beginnings": lambda entries: entries.insert(1, entries[0]),
    "no beginning": lambda entries: entries.pop(0),
    "more given than there was": lambda entries: entries[0]["fields"]["holders"].update(
        {"clinic-a": 100}
    ),
    "another program": lambda entries: entries[0]["fields"]["program"].update(n_layer=2),
    "another learning rate": lambda entries: entries[0]["fields"]["program"].update(
        learning_rate=0.02
    ),
    "another device": lambda entries: entries[0]["fields"]["program"].update(device="cloud"),
    "another buffer": lambda entries: entries[0]["fields"].update(buffer=1024),
    "a holder too many": lambda entries: entries[0]["fields"]["holders"].update({"mallory": 5}),
    "a holder too few": lambda entries: entries[0]["fields"]["holders"].pop("clinic-c"),
    "a mark that is none": lambda entries: _first(entries, "trip.written").update(mark="x"),
    "half a step": lambda entries: _first(entries, "trip.trained").update(tokens=33),
    "another orchestrator with another state": lambda entries: entries.insert(
        -1, entries[0] | {"event": "travel.taken-over", "fields": {"code": "0", "model": "0"}}
    ),
    "privacy that nobody asked for": lambda entries: entries[-1]["fields"].update(privacy={}),
    "a movement that nothing bounds": lambda entries: _first(entries, "trip.trained").update(
        moved=0.1
    ),
    "an unknown event": lambda entries: entries[3].update(event="trip.blessed"),
    "a field of another kind": lambda entries: _first(entries, "trip.trained").update(tokens="1"),
    "trained before written": lambda entries: entries.insert(
        2, entries.pop(entries.index(next(o for o in entries if o["event"] == "trip.trained")))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_log_that_does_not_hold_together_is_refused(
    honest: list[dict[str, Any]], name: str
) -> None:
    with pytest.raises(TranscriptInvalid):
        check_trips(_rewritten(honest, CHANGES[name]), TERMS)


def test_the_honest_log_holds_and_other_events_are_not_looked_at(
    honest: list[dict[str, Any]],
) -> None:
    other = honest[0] | {"event": "outputs.sealed", "fields": {}}
    assert check_trips([other, *honest, other], TERMS).trips == 12


def _terms(**changed: Any) -> TravellingTerms:
    return dataclasses.replace(TERMS, **changed)


def test_trips_keep_the_limits_of_the_recipe(honest: list[dict[str, Any]]) -> None:
    moment = from_rfc3339(honest[0]["at"])
    assert check_trips(honest, _terms(max_steps=48)).steps == 48
    whole = dict.fromkeys(TERMS.limits, (moment, moment))
    check_trips(honest, _terms(windows=whole))
    for terms in (
        _terms(max_steps=47),
        _terms(limits=dict(TERMS.limits) | {"clinic-b": 511}),
        _terms(windows=whole | {"clinic-b": (moment + 301, moment + 302)}),
        _terms(windows=whole | {"clinic-b": (moment - 302, moment - 301)}),
    ):
        with pytest.raises(TranscriptInvalid):
            check_trips(honest, terms)


def test_nothing_in_the_log_tells_what_a_chunk_holds(honest: list[dict[str, Any]]) -> None:
    """Neither losses nor digests that a guess could be compared with."""
    for name in TERMS.limits:
        data = Tokens(name, 512).data
        for start in range(0, len(data), 256):
            digest = hashlib.sha256(data[start : start + 256]).hexdigest()
            assert digest not in canonical_json(honest).decode()
    assert not any("loss" in entry["fields"] for entry in honest)


def test_no_message_shows_a_secret() -> None:
    capability = WriteCapability.make(0, 0, 10, os.urandom)
    assert capability.secret.reveal().hex() not in repr(capability)
    with pytest.raises(CapabilityRefused) as caught:
        WriteCapability.from_dict(capability.to_dict() | {"end": "x"})
    assert capability.to_dict()["secret"] not in str(caught.value)
    asked = Provision(
        run_id=RUN_ID, trip=0, offset=0, size=1, host="h", port=1, capability=capability.to_dict()
    )
    assert capability.to_dict()["secret"] not in repr(asked)

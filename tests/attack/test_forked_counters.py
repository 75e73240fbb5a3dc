"""A forked process has a copy of every counter, and of the key that the counter is used up under.

Sealed with one number and one key, two messages show their difference, and with AES-GCM the key of
the tags. So everything that counts refuses in a process that was forked, in that process's own
children, and goes on undisturbed in the process that began.
"""

from __future__ import annotations

import ctypes
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from channel_world import keyed
from collecting import COLLECTING
from sealing_world import context
from variants import variants

from sealtrain.base.fingerprint import Fingerprint
from sealtrain.base.process_state import OneProcess
from sealtrain.base.processes import fork
from sealtrain.base.secret import Secret
from sealtrain.errors import ForkRefused, PadsRefused, SealtrainError
from sealtrain.sealing.chunked import CHUNK_BYTES, ChunkCipher
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.writer import SealedWriter
from sealtrain.signing.runlog import RunLog
from sealtrain_nodes.wire.frames import NO_FORM, OVERHEAD, FrameOpener, Sealer
from sealtrain_together.channel.channel import AttestedChannel, accept_over, open_over
from sealtrain_together.channel.frames import READY, FrameReader, FrameWriter
from sealtrain_together.travelling.capability import WriteCapability
from sealtrain_together.travelling.holder_memory import GivenFile, GivenTrips, GivingBounds, Write

if not COLLECTING:
    from pads_world import Watched, random_entries, random_matrix
    from training_world import checkpoint_store

    from sealtrain.training.checkpoints.saver import CheckpointSaver
    from sealtrain.training.privacy.noise import NoiseSource
    from sealtrain_together.federated.private import PrivateMerging
    from sealtrain_together.pads.engine import UnderPads
    from sealtrain_together.pads.exact_products import Float64
    from sealtrain_together.pads.masks import Masks, MaskStream
    from sealtrain_together.pads.pads import InGuest, PadSupply

pytestmark = [pytest.mark.long, pytest.mark.claim("C70")]

RUN_ID = "ab" * 16
KEY = bytes(range(32))
Use = Callable[[], object]


class Sink:
    """A stream that takes everything and has nothing."""

    def __init__(self) -> None:
        self.sent = b""

    def sendall(self, data: Any, /) -> None:
        self.sent += bytes(data)

    def recv_into(self, buffer: memoryview, /) -> int:
        return 0

    def close(self) -> None:
        pass


def channel(stack: ExitStack) -> tuple[AttestedChannel, AttestedChannel]:
    near, far = socket.socketpair()
    answered: list[AttestedChannel] = []
    of_run = {"run_id": "00" * 16}
    thread = threading.Thread(
        target=lambda: answered.append(accept_over(far, keyed("pads", "b", "a")))
    )
    thread.start()
    made = open_over(near, keyed("pads", "a", "b", context=of_run))
    thread.join()
    for end in (made, answered[0]):
        stack.callback(end.close)
    return made, answered[0]


def _writer(stack: ExitStack, _folder: Path) -> Use:
    writer = FrameWriter(Sink(), Secret(KEY))
    return lambda: writer.send(b"a message")


def _writer_end(stack: ExitStack, _folder: Path) -> Use:
    writer = FrameWriter(Sink(), Secret(KEY))
    return lambda: writer.control(READY)


def _reader(stack: ExitStack, _folder: Path) -> Use:
    sink = Sink()
    writer = FrameWriter(sink, Secret(KEY))
    for _ in range(4):
        writer.send(b"a message")
    far, near = socket.socketpair()
    stack.callback(far.close)
    stack.callback(near.close)
    far.sendall(sink.sent)
    reader = FrameReader(near, Secret(KEY))
    return lambda: reader.receive(max_bytes=100)


def _sender(stack: ExitStack, _folder: Path) -> Use:
    made, _other = channel(stack)
    return lambda: made.send(b"a message")


def _ratchet(stack: ExitStack, _folder: Path) -> Use:
    made, _other = channel(stack)
    return made.ratchet


def _export(stack: ExitStack, _folder: Path) -> Use:
    made, _other = channel(stack)
    return lambda: made.export("a secret")


def _wire(stack: ExitStack, _folder: Path) -> Use:
    sealer, room = Sealer(Secret(KEY)), memoryview(bytearray(8 + OVERHEAD))
    return lambda: sealer.seal(1, NO_FORM, memoryview(b"8 bytes!"), room)


def _wire_end(stack: ExitStack, _folder: Path) -> Use:
    sealer, opener = Sealer(Secret(KEY)), FrameOpener(Secret(KEY))
    frames = []
    for _ in range(4):
        room = memoryview(bytearray(8 + OVERHEAD))
        sealer.seal(1, NO_FORM, memoryview(b"8 bytes!"), room)
        frames.append(room)
    return lambda: opener.open(frames.pop(0), memoryview(bytearray(8)))


def sealed_writer() -> SealedWriter:
    return SealedWriter(io.BytesIO(), data_key=DataKey(KEY), context=context())


def _writes(stack: ExitStack, folder: Path) -> Use:
    writer = sealed_writer()
    stack.callback(writer.close)
    return lambda: writer.write(bytes(3 * CHUNK_BYTES))


def _writes_little(stack: ExitStack, folder: Path) -> Use:
    writer = sealed_writer()
    stack.callback(writer.close)
    return lambda: writer.write(b"less than a chunk")


def _chunks(stack: ExitStack, _folder: Path) -> Use:
    cipher, room = ChunkCipher(KEY, bytes(24), b""), memoryview(bytearray(CHUNK_BYTES + 16))
    return lambda: cipher.seal(0, memoryview(b""), room[:16])


def _runs_of_chunks(stack: ExitStack, _folder: Path) -> Use:
    cipher, room = ChunkCipher(KEY, bytes(24), b""), memoryview(bytearray(CHUNK_BYTES + 16))
    return lambda: cipher.seal_run(0, memoryview(bytes(CHUNK_BYTES)), room)


def _run_log(stack: ExitStack, _folder: Path) -> Use:
    log = RunLog(RUN_ID)
    return lambda: log.append("run.restarted", {}, 1_790_000_000)


def _restored_log(stack: ExitStack, _folder: Path) -> Use:
    log = RunLog.restore(RUN_ID, [])
    return lambda: log.append("run.restarted", {}, 1_790_000_000)


def _fingerprint(stack: ExitStack, _folder: Path) -> Use:
    taken = Fingerprint(KEY)
    return lambda: taken.take(b"a piece")


def _capability(stack: ExitStack, _folder: Path) -> Use:
    made = WriteCapability.make(0, 0, 100, os.urandom)
    return lambda: made.key("write")


def _read_capability(stack: ExitStack, _folder: Path) -> Use:
    made = WriteCapability.from_dict(WriteCapability.make(0, 0, 9, os.urandom).to_dict())
    return lambda: made.key("receipt")


def _given(stack: ExitStack, _folder: Path) -> Use:
    given = GivenTrips(RUN_ID, GivingBounds(max_bytes=1 << 20, timeout=1.0, patience=1.0))
    trips = iter(range(9))

    def begins() -> None:
        trip = next(trips)
        given.begins(RUN_ID, trip, 10 * trip, 10 * trip + 10)

    return begins


def _given_file(stack: ExitStack, folder: Path) -> Use:
    file = GivenFile(
        folder / "given.jsonl", DataKey(KEY), RUN_ID, every=9, anchor=lambda *_, wait: None
    )
    file.read(None)
    stack.callback(file.close)
    file.begin()
    trips = iter(range(9))

    def keep() -> None:
        trip = next(trips)
        file.keep(Write(trip=trip, after=trip, start=10 * trip, end=10 * trip + 10))

    return keep


def _checkpoints(stack: ExitStack, folder: Path) -> Use:
    saver = CheckpointSaver(checkpoint_store(folder), RUN_ID, on_sealed=lambda _ref: None)
    stack.callback(saver.close)
    return lambda: saver.save(1, {"weight": 1})


def _pads(stack: ExitStack, _folder: Path) -> Use:
    matrix, pads = random_matrix(), PadSupply(InGuest(Float64()))
    return lambda: pads.take(matrix, "forward", 1)


def _prefetched_pads(stack: ExitStack, _folder: Path) -> Use:
    matrix, pads = random_matrix(), PadSupply(InGuest(Float64()), prefetch=1 << 20)
    stack.callback(pads.close)
    return lambda: pads.take(matrix, "forward", 1)


def _mask_stream(stack: ExitStack, _folder: Path) -> Use:
    stream = MaskStream(Secret(KEY), 4)
    return lambda: stream.rows(1)


def _masks(stack: ExitStack, _folder: Path) -> Use:
    matrix, masks = random_matrix(), Masks(Secret(KEY))
    return lambda: masks.rows(matrix, "forward", 1)


def _engine(stack: ExitStack, _folder: Path) -> Use:
    matrix, engine = random_matrix(), UnderPads(Watched(), prefetch=0)
    entries = random_entries(matrix, "forward", 2)
    return lambda: engine.product(matrix, "forward", entries)


USES: dict[str, Callable[[ExitStack, Path], Use]] = {
    "channel, a message": _sender,
    "channel, the next key": _ratchet,
    "channel, a frame": _writer,
    "channel, an empty frame": _writer_end,
    "channel, a frame that is received": _reader,
    "wire, a frame": _wire,
    "wire, a frame that is received": _wire_end,
    "sealed file": _writes,
    "sealed file, less than a chunk": _writes_little,
    "sealed file, its last chunk": _chunks,
    "sealed file, whole chunks": _runs_of_chunks,
    "checkpoints": _checkpoints,
    "run log": _run_log,
    "run log that goes on": _restored_log,
    "fingerprint": _fingerprint,
    "write capability": _capability,
    "write capability that was received": _read_capability,
    "what a holder gave": _given,
    "file of what a holder gave": _given_file,
    "pads": _pads,
    "prefetched pads": _prefetched_pads,
    "stream of pads": _mask_stream,
    "streams of pads": _masks,
    "products under pads": _engine,
}
OF_PADS = {name for name in USES if "pads" in name}
ONCE = {"channel, the secret": _export}
_NOTHING, _OTHER = "went on", "bug"


def said_in_child(use: Use, *, depth: int = 1) -> str:
    """How a use of something ends in a child of this process, or in a child's child."""
    read, write = os.pipe()
    child = fork()
    if child == 0:  # nothing of it comes back but what it writes
        said = _OTHER
        try:
            if depth > 1:
                said = said_in_child(use, depth=depth - 1)
            else:
                use()
                said = _NOTHING
        except SealtrainError as error:
            said = error.code
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("before", variants([0, 1], each_time=[1]))
@pytest.mark.parametrize("name", USES)
def test_a_forked_process_uses_no_counter_of_the_one_it_came_from(
    name: str, before: int, depth: int, stack: ExitStack, tmp_path: Path
) -> None:
    use = USES[name](stack, tmp_path)
    for _ in range(before):
        use()
    code = (PadsRefused if name in OF_PADS else ForkRefused).code
    assert said_in_child(use, depth=depth) == code
    use()  # here it goes on, as if there were no child


@pytest.mark.parametrize("name", ONCE)
def test_a_forked_process_takes_no_secret_that_is_given_once(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    use = ONCE[name](stack, tmp_path)
    assert said_in_child(use) == ForkRefused.code
    use()


def test_a_sealed_file_is_not_finished_in_a_forked_process(stack: ExitStack) -> None:
    writer = sealed_writer()
    stack.callback(writer.close)
    writer.write(b"content")
    assert said_in_child(writer.finish) == ForkRefused.code
    assert writer.finish().plain_size == 7


def test_a_forked_process_closes_its_copy_of_a_channel_and_says_nothing_on_it(
    stack: ExitStack,
) -> None:
    made, other = channel(stack)
    assert said_in_child(made.close) == _NOTHING
    made.send(b"the first message")
    assert other.receive(max_bytes=100) == b"the first message"


def test_a_fork_that_python_does_not_see_has_another_process_id() -> None:
    state = OneProcess("anything")
    child = ctypes.CDLL(None).fork()
    if child == 0:
        os._exit(17 if not state.here else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert state.here


def test_the_same_process_id_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a namespace of its own a child may have the number that its parent has elsewhere."""
    state, mine = OneProcess("anything"), os.getpid()

    def use() -> None:
        monkeypatch.setattr(os, "getpid", lambda: mine)
        state.require()

    assert said_in_child(use) == ForkRefused.code


def _noise(nothing: Any) -> Use:
    merging = PrivateMerging(nothing, NoiseSource(DataKey(KEY)), learning_rate=0.1)
    return lambda: merging.merge(1, {}, {}, patients={})


@pytest.mark.parametrize("made", [_noise])
def test_what_a_round_has_once_is_refused_before_it_is_looked_at(
    made: Callable[[Any], Use],
) -> None:
    use = made(None)
    assert said_in_child(use) == ForkRefused.code
    with pytest.raises(Exception) as here:  # there is nothing to merge
        use()
    assert not isinstance(here.value, ForkRefused)

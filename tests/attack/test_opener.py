"""The process that opens records: what it has, what it may say, and how it ends."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from collecting import COLLECTING
from sealing_world import SealedFolder, json_lines, sealed_folder

from sealtrain.base.models import StrictModel
from sealtrain.base.processes import fork
from sealtrain.guest.sandbox.landlock import KernelBorder
from sealtrain.guest.sandbox.users import give_up_capabilities
from sealtrain.guest.workload.frames import (
    BatchLaid,
    BatchWanted,
    BorderClosed,
    DataPlaces,
    DatasetsGiven,
    RangeRead,
    RangeWanted,
    SlotsGiven,
    receive_frame,
    send_frame,
)
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.opener import Opener
from sealtrain.guest.workload.opening import close_border
from sealtrain.recipe.importable import Importable
from sealtrain.sealing.errors import RecordInvalid, SealRefused
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.training.errors import DecryptionLost

if not COLLECTING:
    import torch  # noqa: F401  # with it an opener goes on in this image, and starts in no time

pytestmark = pytest.mark.claim("C558")
HELD = KernelBorder(landlock=7, seccomp=True, unbound=0, memory="private")
ROWS = [{"text": f"note {number}", "label": number % 3} for number in range(40)]
SLOT_BYTES = 1 << 18
Live = Callable[[Importable, Sequence[socket.socket]], None]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("data")
    path = folder / "notes.jsonl"
    path.write_text(json_lines(ROWS), "utf-8")
    return sealed_folder(path, folder / "notes.sealed", name="notes")


def given(sealed: SealedFolder, folder: Any = None) -> Any:
    manifest = SimpleNamespace(
        dataset_id="ab" * 16,
        root=sealed.description.root,
        owner="hospital-a",
        name="notes",
        shards=len(list(sealed.folder.glob("shard-*"))),
    )
    found = SimpleNamespace(
        role="train", folder=folder or sealed.folder, manifest=manifest, columns={}
    )
    model = SimpleNamespace(role="model")
    return [model, found], {"ab" * 16: sealed.key}, ["label", "text"]


class Rank:
    """An opener, and the memory of its only rank."""

    def __init__(self, run: Any, live: Live | None = None) -> None:
        self.opener = Opener(ranks=1, importable=Importable(), live=live)
        self.opener.open(*run)
        self.memory, descriptor = SharedMemory.create(2 * SLOT_BYTES)
        self.opener.take_slots(0, descriptor, SLOT_BYTES)
        os.close(descriptor)

    def rows(self, batch: int, slot: int = 1) -> list[dict[str, Any]]:
        length = self.opener.lay(0, dataset=0, batch=batch, slot=slot, slot_bytes=SLOT_BYTES)
        start = slot * SLOT_BYTES
        found: pa.RecordBatch = pa.ipc.open_stream(
            self.memory.map[start : start + length]
        ).read_next_batch()
        return found.to_pylist()


@pytest.fixture
def started() -> Iterator[Callable[..., Rank]]:
    ranks: list[Rank] = []

    def start(*arguments: Any) -> Rank:
        ranks.append(Rank(*arguments))
        return ranks[-1]

    yield start
    for rank in ranks:
        for _ in range(2):
            rank.opener.end()
            rank.opener.close()
        assert rank.opener.status is not None


def test_it_lays_the_columns_of_the_recipe(
    sealed: SealedFolder, started: Callable[..., Rank]
) -> None:
    rank = started(given(sealed))
    rows = [row for slot in (0, 1) for row in rank.rows(0, slot)]
    assert rows == 2 * [{"label": row["label"], "text": row["text"]} for row in ROWS]
    assert rank.opener.status is None
    assert rank.opener.weaker(HELD).seccomp


def test_a_damaged_batch_is_refused_in_the_keepers_words(
    sealed: SealedFolder, tmp_path: Path, started: Callable[..., Rank]
) -> None:
    broken = tmp_path / "notes.sealed"
    broken.mkdir()
    for file in sealed.folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    shard = broken / "shard-00000.sealed"
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.write_bytes(data)
    rank = started(given(sealed, broken))
    with pytest.raises(SealRefused) as caught:
        rank.rows(0)
    assert (caught.value.owner, caught.value.dataset) == ("hospital-a", "notes")
    assert rank.opener.status is None


class Store:
    """A sealed folder elsewhere."""

    name = "notes.sealed"

    def __init__(self, folder: Path) -> None:
        self.folder, self.gone = folder, False
        self.asked: list[str] = []

    def open(self, name: str, *, size: int | None = None) -> Any:
        self.asked.append(name)
        data = (self.folder / name).read_bytes()

        def read_into(offset: int, view: memoryview) -> int:
            if self.gone:
                raise StorageUnreachable("gone", check="store", got="timeout")
            part = data[offset : offset + len(view)]
            view[: len(part)] = part
            return len(part)

        return SimpleNamespace(size=len(data), read_into=read_into, close=lambda: None)


def test_a_store_elsewhere_is_read_by_the_keeper(
    sealed: SealedFolder, started: Callable[..., Rank]
) -> None:
    store = Store(sealed.folder)
    rank = started(given(sealed, store))
    assert rank.rows(0)[-1]["text"] == ROWS[-1]["text"]
    store.gone = True
    with pytest.raises(StorageUnreachable) as caught:
        rank.rows(0)
    assert caught.value.got == "timeout"  # the keeper's own error, which says whether to retry


def answering(*answers: StrictModel | bytes, then: Callable[..., None] | None = None) -> Live:
    """An opener that an owner's data took over."""

    def live(_importable: Importable, ends: Sequence[socket.socket]) -> None:
        control, line, store = ends
        receive_frame(control, DataPlaces)
        send_frame(control, BorderClosed(landlock=0, seccomp=False, unbound=0))
        receive_frame(control, DatasetsGiven)
        send_frame(control, BorderClosed(landlock=9, seccomp=True, unbound=0))
        receive_frame(line, SlotsGiven, descriptors=1)
        send_frame(line, BatchLaid())
        for answer in answers:
            receive_frame(line, BatchWanted)
            if then is not None:
                then(store)
            if isinstance(answer, bytes):
                line.sendall(answer)
            else:
                send_frame(line, answer)
        signal.pause()

    return live


LIES: dict[str, tuple[StrictModel | bytes, type[Exception]]] = {
    "nothing": (BatchLaid(), DecryptionLost),
    "beyond-the-slot": (BatchLaid(length=SLOT_BYTES + 1), DecryptionLost),
    "an-error-of-a-broker": (BatchLaid(refused="approval-revoked"), DecryptionLost),
    "an-error-that-is-retried": (BatchLaid(refused="broker-unreachable"), DecryptionLost),
    "too-long": (b"\x7f\xff\xff\xff", DecryptionLost),
    "no-frame": (b"\x00\x00\x00\x02[]", DecryptionLost),
    "a-field-too-many": (b'\x00\x00\x00\x12{"length":1,"x":2}', DecryptionLost),
    "words": (BatchLaid(refused="record-invalid", column="patient 4711"), RecordInvalid),
}


@pytest.mark.parametrize("name", LIES)
def test_what_it_says_is_a_strangers_word(
    sealed: SealedFolder, started: Callable[..., Rank], name: str
) -> None:
    answer, error = LIES[name]
    rank = started(given(sealed), answering(answer))
    with pytest.raises(error) as caught:
        rank.rows(0)
    assert isinstance(caught.value, DecryptionLost | RecordInvalid)
    assert caught.value.column is None
    # What it says of its border counts once, before it had a key.
    assert rank.opener.weaker(HELD) == KernelBorder(
        landlock=0, seccomp=False, unbound=0, memory="private"
    )


@pytest.mark.parametrize(
    "wanted",
    [
        RangeWanted(dataset=0, file="../other.sealed/shard-00000.sealed"),
        RangeWanted(dataset=0, file="patient-4711.sealed"),
        RangeWanted(dataset=7, file="index.sealed"),
        RangeWanted(dataset=0, file="index.sealed", size=10, offset=11, length=1),
    ],
)
def test_it_has_the_keeper_read_nothing_but_its_datasets(
    sealed: SealedFolder, started: Callable[..., Rank], wanted: RangeWanted
) -> None:
    def ask(line: socket.socket) -> None:
        send_frame(line, wanted)
        if receive_frame(line, RangeRead)[0] is not None:
            os._exit(3)  # it was answered

    store = Store(sealed.folder)
    rank = started(given(sealed, store), answering(BatchLaid(length=1), then=ask))
    length = rank.opener.lay(0, dataset=0, batch=0, slot=0, slot_bytes=SLOT_BYTES)
    assert (length, rank.opener.status) == (1, None)
    assert set(store.asked) <= {"index.sealed"}


def tries(folder: Path, shown: mmap.mmap) -> Live:
    """An opener that writes down what it can reach once its border is closed."""

    def refused(act: Callable[[], object]) -> bool:
        try:
            act()
        except OSError:
            return True
        return False

    def live(_importable: Importable, ends: Sequence[socket.socket]) -> None:
        control = ends[0]
        give_up_capabilities(1 << 2)
        receive_frame(control, DataPlaces)
        held = close_border([folder])
        send_frame(control, held)
        receive_frame(control, DatasetsGiven)
        places = list(Path("/proc/self/fd").iterdir())
        files = [os.readlink(place) for place in places if place.exists()]  # noqa: PTH115
        parent = os.getppid()
        status = Path("/proc/self/status").read_text().splitlines()
        found = {
            "status": dict(line.split(":\t", 1) for line in status if ":\t" in line),
            "files": sorted({name.split(":")[0] for name in files}),
            "variables": sorted(os.environ),
            "reads": not refused((folder / "index.sealed").read_bytes),
            "landlock": held.landlock,
            "refused": {
                "tcp": refused(lambda: socket.create_connection(("127.0.0.1", 9), 1)),
                "unix": refused(lambda: socket.socket(socket.AF_UNIX)),
                "program": refused(lambda: os.execv("/bin/true", ["true"])),  # noqa: S606
            },
            "refused by landlock": {
                "secret": refused((folder.parent / "secret").read_bytes),
                "write": refused(lambda: (folder / "new").write_text("x")),
                "memory of the keeper": refused(
                    lambda: os.open(f"/proc/{parent}/mem", os.O_RDONLY)
                ),
            },
        }
        shown.write(json.dumps(found).encode())
        send_frame(control, held)
        signal.pause()

    return live


def test_behind_its_border_there_is_nothing_but_sealed_data(
    sealed: SealedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sealed.folder.parent / "secret").write_text("secret")
    link = sealed.folder / "up"  # to a folder, which no file of sealed data is
    link.symlink_to(sealed.folder.parent)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with mmap.mmap(-1, 1 << 16) as shown:
        opener = Opener(ranks=1, importable=Importable(), live=tries(sealed.folder, shown))
        try:
            opener.open(*given(sealed))
            found = json.loads(shown[:].rstrip(b"\0"))
        finally:
            opener.end()
            opener.close()
            link.unlink()
    status = found["status"]
    assert int(status["CapEff"], 16) & ~(1 << 2) == int(status["CapPrm"], 16) & ~(1 << 2) == 0
    assert status["Seccomp"] == "2"
    assert set(found["files"]) <= {"socket", "/dev/null", "anon_inode"}
    assert "AWS_SECRET_ACCESS_KEY" not in found["variables"]
    assert found["reads"]
    assert all(found["refused"].values())
    assert not found["landlock"] or all(found["refused by landlock"].values())


def test_it_keeps_no_keeper_that_waits_for_its_datasets(sealed: SealedFolder) -> None:
    def live(_importable: Importable, ends: Sequence[socket.socket]) -> None:
        receive_frame(ends[0], DataPlaces)
        send_frame(ends[0], BorderClosed(landlock=9, seccomp=True, unbound=0))
        signal.pause()

    opener = Opener(ranks=1, importable=Importable(), live=live)
    try:
        with pytest.raises(DecryptionLost):
            opener.open(*given(sealed), seconds=0.3)
        assert opener.status == -9
    finally:
        opener.end()
        opener.close()


def test_its_death_is_told(sealed: SealedFolder, started: Callable[..., Rank]) -> None:
    rank = started(given(sealed), answering())
    assert rank.opener.status is None
    rank.opener.end()
    with pytest.raises(DecryptionLost):
        rank.rows(0)


def test_it_ends_with_its_keeper() -> None:
    with mmap.mmap(-1, 64) as shown:

        def live(_importable: Importable, _ends: Sequence[socket.socket]) -> None:
            shown.write(b"%d" % os.getpid())
            signal.pause()

        keeper = fork()
        if keeper == 0:
            try:
                Opener(ranks=1, importable=Importable(), live=live)
                while not shown[0]:
                    time.sleep(0.01)
            finally:
                os._exit(0)
        os.waitpid(keeper, 0)
        place = Path(f"/proc/{int(shown[:].rstrip(bytes(1)))}/stat")
    until = time.monotonic() + 20
    while place.exists() and place.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)

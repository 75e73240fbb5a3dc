"""One sealed file: round trips, the file object, padding, suites, and its C2SP payload."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import threading
from pathlib import Path

import pytest
from cryptography.cobblestone import Cobblestone256Decryptor, Cobblestone256Encryptor
from sealing_world import KEY, content, context, opened, root_of, sealed

from sealtrain.errors import AlreadyExists, DataInvalid, UsageError
from sealtrain.sealing.chunked import CHUNK_BYTES, HEADER_BYTES, ChunkCipher, PayloadShape
from sealtrain.sealing.chunkreader import ChunkReader, Ciphertext
from sealtrain.sealing.file import Suite, open_file, read_header, seal_file, verify_ciphertext
from sealtrain.sealing.header import FileKeys
from sealtrain.sealing.padding import padded_size
from sealtrain.sealing.trailer import read_trailer
from sealtrain.sealing.writer import PAYLOAD_CONTEXT, SealedWriter

SIZES = (
    0,
    1,
    CHUNK_BYTES - 1,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    64 * CHUNK_BYTES,
    64 * CHUNK_BYTES + 1,
)


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("padding", ["none", "bucket", "fixed:100000"])
@pytest.mark.parametrize("size", SIZES)
def test_what_was_sealed_comes_back(size: int, padding: str, suite: Suite) -> None:
    data = content(size)
    file = sealed(data, padding=padding, suite=suite)
    with opened(file, root=root_of(file), expect=context(padding=padding, suite=suite)) as reader:
        assert reader.size == size
        assert reader.read() == data


def test_seek_tell_and_read_behave_as_in_any_file() -> None:
    data = content(200_000)
    reference = io.BytesIO(data)
    with opened(sealed(data)) as reader:
        for offset, whence, count in [
            (0, os.SEEK_SET, 5),
            (100, os.SEEK_CUR, 20_000),
            (-5, os.SEEK_END, 50),
            (16_383, os.SEEK_SET, 2),
            (65_535, os.SEEK_SET, 3),
            (300_000, os.SEEK_SET, 4),
            (7, os.SEEK_SET, 0),
        ]:
            assert reader.seek(offset, whence) == reference.seek(offset, whence)
            assert reader.read(count) == reference.read(count)
            assert reader.tell() == reference.tell()
        with pytest.raises(ValueError):
            reader.seek(-1)
    with pytest.raises(ValueError):
        reader.read(1)


def test_the_file_object_is_read_only_and_seekable() -> None:
    reader = opened(sealed(b"abc"))
    assert reader.readable()
    assert reader.seekable()
    assert not reader.writable()


def test_many_threads_read_at_their_own_offsets() -> None:
    data = content(3_000_000)
    file = sealed(data)
    reader = opened(file, root=root_of(file))
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(40):
            offset = (seed * 7919 + step * 104_729) % 2_900_000
            length = (seed * 31 + step * 977) % 90_000
            buffer = bytearray(length)
            got = reader.pread_into(offset, buffer)
            if got != length or buffer != data[offset : offset + length]:
                wrong.append(offset)
            if reader.read_buffer_at(offset, length).to_pybytes() != data[offset : offset + length]:
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_read_past_the_end_is_short() -> None:
    reader = opened(sealed(b"0123456789"))
    buffer = bytearray(b"......")
    assert reader.pread_into(7, buffer) == 3
    assert buffer == b"789..."
    assert reader.pread_into(10, buffer) == 0
    assert reader.pread_into(99, buffer) == 0
    assert reader.read_buffer_at(8, 100).to_pybytes() == b"89"


def test_lines_can_be_iterated() -> None:
    lines = [b"line %d\n" % number for number in range(5000)]
    assert list(io.BufferedReader(opened(sealed(b"".join(lines))))) == lines


def test_the_payload_is_what_another_implementation_makes_of_it() -> None:
    data = content(50_000)
    file = sealed(data)
    source = Ciphertext(io.BytesIO(file))
    header = read_header(io.BytesIO(file))
    keys = FileKeys(KEY, header.core)
    size = read_trailer(source.read_at, len(file), header, keys=keys, root=None).shape.size
    payload = file[header.size : header.size + size]
    theirs = Cobblestone256Decryptor(keys.payload.reveal(), PAYLOAD_CONTEXT + header.core)
    assert theirs.update(payload) + theirs.finalize() == data

    encryptor = Cobblestone256Encryptor(keys.payload.reveal(), b"context")
    made = encryptor.update(data) + encryptor.finalize()
    cipher = ChunkCipher.opening(keys.payload.reveal(), made[:HEADER_BYTES], b"context")
    out = bytearray(len(data))
    ChunkReader(Ciphertext(io.BytesIO(made)), 0, PayloadShape(len(made)), cipher).read_into(
        0, memoryview(out)
    )
    assert out == data


@pytest.mark.parametrize("size", [0, 1, 7, 100, 4096, 10_000, 1_000_000, 123_456_789])
def test_bucket_padding_costs_at_most_twelve_percent(size: int) -> None:
    padded = padded_size("bucket", size)
    assert size + 8 <= padded <= (size + 8) * 1.12


def test_padding_makes_neighbouring_sizes_look_alike() -> None:
    assert len(sealed(content(100_400), padding="bucket")) == len(
        sealed(content(102_000), padding="bucket")
    )
    assert len(sealed(b"", padding="fixed:50000")) == len(
        sealed(content(49_000), padding="fixed:50000")
    )
    assert len(sealed(content(1))) != len(sealed(content(2)))


@pytest.mark.parametrize("policy", ["", "fixed", "fixed:0", "fixed:-1", "fixed:01", "bucket:2"])
def test_an_unknown_padding_policy_is_refused(policy: str) -> None:
    with pytest.raises(UsageError):
        sealed(b"", padding=policy)


def test_the_audit_needs_no_key_and_finds_the_root(tmp_path: Path) -> None:
    path = tmp_path / "a.sealed"
    with io.BytesIO(content(2_500_000)) as source:
        info = seal_file(source, path, data_key=KEY, context=context())
    assert info.size == path.stat().st_size
    assert verify_ciphertext(path) == info.root
    assert verify_ciphertext(path, root=info.root) == info.root


def test_sealing_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sealed"
    path.write_bytes(b"mine")
    with pytest.raises(AlreadyExists):
        seal_file(io.BytesIO(b"x"), path, data_key=KEY, context=context())
    assert path.read_bytes() == b"mine"
    assert [p.name for p in tmp_path.iterdir()] == ["a.sealed"]


def test_sealing_the_same_twice_gives_other_bytes() -> None:
    assert sealed(b"same", salt="1") != sealed(b"same", salt="2")
    assert sealed(b"same", salt="1") == sealed(b"same", salt="1")


def test_an_abandoned_writer_leaves_an_unreadable_file() -> None:
    target = io.BytesIO()
    writer = SealedWriter(target, data_key=KEY, context=context())
    writer.write(content(100_000))
    writer.close()
    with pytest.raises(UsageError):
        writer.finish()
    with pytest.raises(ValueError):
        writer.write(b"more")


def test_writing_in_any_pieces_gives_the_same_file() -> None:
    data = content(150_000)
    files = []
    for step in (1000, CHUNK_BYTES, 16_400, 150_000):
        target = io.BytesIO()
        with SealedWriter(
            target, data_key=KEY, context=context(), random=lambda size: bytes(size)
        ) as writer:
            for start in range(0, len(data), step):
                assert writer.write(memoryview(data)[start : start + step]) == len(
                    data[start : start + step]
                )
        files.append(target.getvalue())
    assert len(set(files)) == 1


def test_a_data_key_is_neither_printed_nor_pickled() -> None:
    assert KEY.reveal().hex() not in repr(KEY)
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    with pytest.raises(DataInvalid):
        type(KEY)(b"short")


def test_tarfile_reads_it_unchanged() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for number in range(50):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = number * 1000
            tar.addfile(info, io.BytesIO(content(info.size, str(number))))
    with tarfile.open(fileobj=opened(sealed(packed.getvalue()))) as tar:
        names = tar.getnames()
        member = tar.extractfile("31.bin")
        assert member is not None
        assert member.read() == content(31_000, "31")
    assert len(names) == 50


def test_open_file_takes_a_path(tmp_path: Path) -> None:
    path = tmp_path / "x.sealed"
    path.write_bytes(sealed(b"hello"))
    for keep_open in (True, False):
        with open_file(path, KEY, keep_open=keep_open) as reader:
            assert reader.read() == b"hello"
    with pytest.raises(DataInvalid):
        open_file(tmp_path / "absent", KEY)

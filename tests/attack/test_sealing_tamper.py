"""Whoever stores a sealed file changes it: every byte, every length, every order of its parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sealing_world import (
    KEY,
    OTHER_KEY,
    content,
    context,
    opened,
    root_of,
    sealed,
    stanza,
)

from sealtrain.errors import DataInvalid, LimitExceeded, SealtrainError
from sealtrain.sealing.chunked import CHUNK_BYTES, HEADER_BYTES, SEALED_CHUNK_BYTES
from sealtrain.sealing.chunkreader import Ciphertext
from sealtrain.sealing.errors import (
    ChunkDamaged,
    FileTruncated,
    HeaderDamaged,
    NotSealed,
    RootMismatch,
    SealRefused,
    WrongKey,
)
from sealtrain.sealing.header import Header, read_header_from

pytestmark = [pytest.mark.claim("C1"), pytest.mark.claim("C2")]

DATA = content(120, "tamper")
SMALL = sealed(DATA, stanzas=[stanza(), stanza("6b", "recipe")])
LARGE_DATA = content(5 * CHUNK_BYTES + 77, "large")
LARGE = sealed(LARGE_DATA)


def payload_start(file: bytes) -> int:
    import io

    header: Header = read_header_from(Ciphertext(io.BytesIO(file)).read_at)[0]
    return header.size


def released(file: bytes, *, root: str | None = None) -> tuple[bytes, SealtrainError | None]:
    """Plaintext that a reader chunk by chunk gets before the refusal, and the refusal."""
    out = b""
    try:
        with opened(file, root=root) as reader:
            for start in range(0, reader.size, CHUNK_BYTES):
                buffer = bytearray(b"\xee" * min(CHUNK_BYTES, reader.size - start))
                try:
                    reader.pread_into(start, buffer)
                except SealtrainError as refusal:
                    # What the failed call left in the caller's buffer is no plaintext.
                    assert set(buffer) <= {0x00, 0xEE}
                    return out, refusal
                out += buffer
    except SealtrainError as refusal:
        return out, refusal
    return out, None


@pytest.mark.parametrize("with_root", [False, True])
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_any_changed_byte_is_refused(mask: int, with_root: bool) -> None:
    root = root_of(SMALL) if with_root else None
    kinds: set[type[SealtrainError]] = set()
    for place in range(len(SMALL)):
        changed = bytearray(SMALL)
        changed[place] ^= mask
        out, refusal = released(bytes(changed), root=root)
        assert refusal is not None, place
        assert isinstance(refusal, SealRefused | NotSealed | LimitExceeded), place
        assert out == b"", place
        kinds.add(type(refusal))
    expected = {NotSealed, HeaderDamaged, WrongKey, FileTruncated}
    assert expected <= kinds
    assert (RootMismatch if with_root else ChunkDamaged) in kinds


@pytest.mark.parametrize("with_root", [False, True])
def test_a_changed_byte_of_a_chunk_stops_before_that_chunk(with_root: bool) -> None:
    root = root_of(LARGE) if with_root else None
    start = payload_start(LARGE) + HEADER_BYTES
    for chunk in range(6):
        for inside in (0, 1, 100, -16, -1):
            length = SEALED_CHUNK_BYTES if chunk < 5 else 77 + 16
            changed = bytearray(LARGE)
            changed[start + chunk * SEALED_CHUNK_BYTES + inside % length] ^= 0x10
            out, refusal = released(bytes(changed), root=root)
            if with_root:
                assert isinstance(refusal, RootMismatch)
                assert out == b""  # all six chunks lie in one group
            else:
                assert isinstance(refusal, ChunkDamaged)
                # The final chunk is opened first: it proves the length.
                assert out == (LARGE_DATA[: chunk * CHUNK_BYTES] if chunk < 5 else b"")


def test_any_truncation_is_refused() -> None:
    for length in range(len(SMALL)):
        out, refusal = released(SMALL[:length])
        assert isinstance(refusal, FileTruncated | NotSealed), length
        assert isinstance(refusal, NotSealed) == (length == 0)
        assert out == b""


def test_truncation_at_every_part_of_a_long_file_is_refused() -> None:
    start = payload_start(LARGE)
    places = {start, start + 24, start + HEADER_BYTES, len(LARGE) - 48, len(LARGE) - 8}
    for chunk in range(6):
        edge = start + HEADER_BYTES + chunk * SEALED_CHUNK_BYTES
        places |= {edge - 1, edge, edge + 1, edge + 16, edge + SEALED_CHUNK_BYTES - 16}
    for length in sorted(place for place in places if place < len(LARGE)):
        out, refusal = released(LARGE[:length])
        assert isinstance(refusal, FileTruncated), length
        assert out == b""


@pytest.mark.parametrize("more", [b"\0", b"SEALEND\x01", SMALL, bytes(100_000)])
def test_appended_bytes_are_refused(more: bytes) -> None:
    assert released(SMALL + more)[1] is not None
    assert isinstance(released(b"\0" + SMALL)[1], NotSealed)


def chunks_of(file: bytes) -> tuple[bytes, list[bytes], bytes]:
    start = payload_start(file) + HEADER_BYTES
    end = len(file) - 48 - 32
    body = file[start:end]
    parts = [body[i : i + SEALED_CHUNK_BYTES] for i in range(0, len(body), SEALED_CHUNK_BYTES)]
    return file[:start], parts, file[end:]


REORDERINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "swap": lambda c: [c[1], c[0], *c[2:]],
    "rotate": lambda c: [*c[1:5], c[0], c[5]],
    "duplicate": lambda c: [c[0], c[0], *c[2:]],
    "repeat the last full one": lambda c: [*c[:4], c[3], c[5]],
}


@pytest.mark.parametrize("name", list(REORDERINGS))
def test_moved_chunks_are_refused(name: str) -> None:
    head, parts, tail = chunks_of(LARGE)
    moved = head + b"".join(REORDERINGS[name](parts)) + tail
    assert moved != LARGE
    assert len(moved) == len(LARGE)
    out, refusal = released(moved)
    assert isinstance(refusal, ChunkDamaged)
    assert LARGE_DATA.startswith(out)
    assert isinstance(released(moved, root=root_of(LARGE))[1], RootMismatch)


@pytest.mark.parametrize("dropped", range(6))
def test_dropped_and_added_chunks_are_refused(dropped: int) -> None:
    head, parts, tail = chunks_of(LARGE)
    fewer = parts[:dropped] + parts[dropped + 1 :]
    assert released(head + b"".join(fewer) + tail)[1] is not None
    more = [*parts[:dropped], parts[dropped], *parts[dropped:]]
    assert released(head + b"".join(more) + tail)[1] is not None
    # Also when the attacker corrects the length that the trailer claims.
    for changed in (fewer, more):
        body = b"".join(changed)
        size = (HEADER_BYTES + len(body)).to_bytes(8, "big")
        file = head + body + tail[:32] + size + tail[40:]
        out, refusal = released(file)
        assert isinstance(refusal, SealRefused)
        assert out == b""


@pytest.mark.parametrize(
    "changes",
    [{"salt": "other"}, {"name": "others"}, {"shard": 1}, {"dataset_id": "d2" * 16}],
)
def test_chunks_of_another_file_under_the_same_key_are_refused(changes: dict[str, object]) -> None:
    other = sealed(content(len(LARGE_DATA), "other"), **changes)  # type: ignore[arg-type]  # a mix
    head, parts, tail = chunks_of(LARGE)
    _, foreign, _ = chunks_of(other)
    for place in range(6):
        spliced = head + b"".join([*parts[:place], foreign[place], *parts[place + 1 :]]) + tail
        out, refusal = released(spliced)
        assert isinstance(refusal, ChunkDamaged)
        assert LARGE_DATA.startswith(out)


def test_parts_of_two_files_do_not_join() -> None:
    other = sealed(content(len(LARGE_DATA), "other"), shard=1)
    cut, cut_other = payload_start(LARGE), payload_start(other)
    end, end_other = len(LARGE) - 80, len(other) - 80
    mixes = [
        LARGE[:cut] + other[cut_other:],
        LARGE[:cut] + other[cut_other:end_other] + LARGE[end:],
        LARGE[:end] + other[end_other:],
        LARGE[: cut + 56] + other[cut_other + 56 :],
    ]
    for mix in mixes:
        out, refusal = released(mix)
        assert isinstance(refusal, SealRefused)
        assert out == b""


def test_another_key_is_refused_before_anything_is_read() -> None:
    with pytest.raises(WrongKey):
        opened(LARGE, key=OTHER_KEY)


def test_a_file_sealed_again_is_refused_under_the_old_root() -> None:
    again = sealed(LARGE_DATA, salt="again")
    with pytest.raises(RootMismatch):
        opened(again, root=root_of(LARGE))
    assert opened(again).read() == LARGE_DATA  # without a root nothing could tell


def test_no_bit_of_the_header_may_claim_more_than_the_limits() -> None:
    for place in range(8, 16):
        changed = bytearray(SMALL)
        changed[place] = 0xFF
        _, refusal = released(bytes(changed))
        assert isinstance(refusal, LimitExceeded | FileTruncated | WrongKey | HeaderDamaged)


def test_a_trailer_that_claims_a_huge_payload_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sparse.sealed"
    path.write_bytes(SMALL)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek((1 << 40) - 48)
        file.write(((1 << 40) - 10_000).to_bytes(8, "big") + bytes(32) + b"SEALEND\x01")
    from sealtrain.sealing.file import open_file

    with pytest.raises((FileTruncated, DataInvalid)):
        open_file(path, KEY)


def test_the_expected_context_is_compared_before_the_payload() -> None:
    from sealtrain.sealing.errors import WrongContext

    broken = LARGE[:-1] + b"\0"
    with pytest.raises(WrongContext):
        opened(broken, expect=context(name="others"))

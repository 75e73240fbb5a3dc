"""Marks know ciphertext again: the same bytes in the same place, by the same reader."""

from __future__ import annotations

import pytest
from sealing_world import content, repeatable

from sealtrain.sealing.chunked import SEALED_CHUNK_BYTES
from sealtrain.sealing.hashtree import GROUP_BYTES
from sealtrain.sealing.marks import STRIPE_CHUNKS, GroupMarks

STRIPE = STRIPE_CHUNKS * SEALED_CHUNK_BYTES
WHOLE = memoryview(content(GROUP_BYTES, "marks"))
LAST = WHOLE[: 2 * STRIPE + 1000]  # a file's last group, whose last stripe is short


@pytest.fixture
def marks() -> GroupMarks:
    made = GroupMarks(3)
    made.keep(0, WHOLE)
    made.keep(2, LAST)
    return made


def test_groups_that_were_kept_are_known(marks: GroupMarks) -> None:
    assert [marks.has(group) for group in range(3)] == [True, False, True]


@pytest.mark.parametrize("first", [0, 1, 15])
@pytest.mark.parametrize("count", [1, 2, 16])
def test_stripes_match_where_they_were(marks: GroupMarks, first: int, count: int) -> None:
    part = WHOLE[first * STRIPE : (first + count) * STRIPE]
    assert marks.match(0, first, part)
    for other in {(first + 1) % 16, (first + 7) % 16} - {first}:
        assert not marks.match(0, other, part)
    assert not marks.match(2, first, part) or part == LAST[first * STRIPE :][: len(part)]


def test_a_short_last_stripe_matches_at_its_length_only(marks: GroupMarks) -> None:
    assert marks.match(2, 2, LAST[2 * STRIPE :])
    assert marks.match(2, 0, LAST)
    assert not marks.match(2, 2, LAST[2 * STRIPE : -1])
    assert not marks.match(2, 2, WHOLE[2 * STRIPE : 3 * STRIPE])
    assert not marks.match(2, 0, WHOLE[: 4 * STRIPE])


@pytest.mark.parametrize("place", [0, 1, STRIPE - 1, STRIPE, GROUP_BYTES - 1])
def test_a_changed_bit_anywhere_is_seen(marks: GroupMarks, place: int) -> None:
    changed = bytearray(WHOLE)
    changed[place] ^= 0x80
    stripe = place // STRIPE
    assert not marks.match(0, 0, memoryview(changed))
    assert not marks.match(0, stripe, memoryview(changed)[stripe * STRIPE :][:STRIPE])


def test_a_group_that_was_not_kept_matches_nothing(marks: GroupMarks) -> None:
    assert not marks.match(1, 0, WHOLE)


def test_every_reader_has_a_key_of_its_own() -> None:
    asked: list[int] = []

    def random(size: int) -> bytes:
        asked.append(size)
        return repeatable("key")(size)

    GroupMarks(1, random)
    assert asked == [32]

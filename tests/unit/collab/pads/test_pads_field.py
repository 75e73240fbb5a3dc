"""Arithmetic modulo 2**31 - 1 against Python's own integers."""

from __future__ import annotations

import pytest
from carrying import carries
from collecting import COLLECTING
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.errors import UsageError

if not COLLECTING:
    import torch

    from sealtrain_together.pads import field
    from sealtrain_together.pads.exact_products import Float64, Int8Limb, backend
    from sealtrain_together.pads.field import (
        add_centred,
        centre_float64,
        centre_int64,
        centre_words,
        combine,
        dots,
        limbs,
        subtract_centred,
        times_vectors,
    )

PRIME = (1 << 31) - 1
HALF = PRIME >> 1


def test_the_field_is_the_integers_modulo_this_prime() -> None:
    assert (field.PRIME, field.HALF) == (PRIME, HALF)


def centre(value: int) -> int:
    value %= PRIME
    return value - PRIME if value > HALF else value


elements = st.one_of(
    st.integers(-HALF, HALF), st.sampled_from([0, 1, -1, HALF, -HALF, HALF - 1, 1 << 29])
)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.lists(st.tuples(elements, elements), min_size=1, max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_sums_and_differences(pairs: list[tuple[int, int]]) -> None:
    left, right = (torch.tensor(side, dtype=torch.int32) for side in zip(*pairs, strict=True))
    assert add_centred(left, right).tolist() == [centre(a + b) for a, b in pairs]
    assert subtract_centred(left, right).tolist() == [centre(a - b) for a, b in pairs]


@given(st.lists(st.tuples(int32s, elements), min_size=1, max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_any_answer_minus_a_pad_is_in_range(pairs: list[tuple[int, int]]) -> None:
    left, right = (torch.tensor(side, dtype=torch.int32) for side in zip(*pairs, strict=True))
    assert int(subtract_centred(left, right).abs().max()) <= HALF


@given(st.lists(st.integers(-(1 << 61) + 1, (1 << 61) - 1), min_size=1, max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_wide_integers_are_centred(values: list[int]) -> None:
    wide = torch.tensor(values, dtype=torch.int64)
    assert centre_int64(wide).tolist() == [centre(value) for value in values]


@given(
    st.lists(
        st.one_of(
            st.integers(-(1 << 53) + 1, (1 << 53) - 1),
            # Around multiples of half of p, where a quotient rounds either way.
            st.builds(
                lambda times, off: times * HALF + off,
                st.integers(-(1 << 22), 1 << 22),
                st.integers(-2, 2),
            ),
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=examples(50), deadline=None)
def test_whole_floats_are_centred(values: list[int]) -> None:
    whole = torch.tensor(values, dtype=torch.float64)
    assert centre_float64(whole).tolist() == [centre(value) for value in values]


@given(st.lists(elements, min_size=1, max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_limbs_add_up(values: list[int]) -> None:
    digits = limbs(torch.tensor(values, dtype=torch.int32)[:, None])
    assert int(digits.abs().max()) <= 1 << 10
    bases = torch.tensor([1, 1 << 11, 1 << 22], dtype=torch.float64)
    assert (digits @ bases).tolist() == values


@pytest.mark.parametrize("columns", [1, 4096, 4097, 9000])
def test_checks_are_exact_over_many_columns(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    wide = torch.randint(-HALF, HALF + 1, (3, columns), generator=generator, dtype=torch.int32)
    wide[0] = HALF
    vectors = torch.randint(-HALF, HALF + 1, (columns, 2), generator=generator, dtype=torch.int32)
    vectors[:, 0] = -HALF
    small = torch.randint(-2047, 2048, (3, columns), generator=generator, dtype=torch.int32)
    small[0] = 2047

    def exactly(left: torch.Tensor) -> list[list[int]]:
        return [
            [centre(sum(a * b for a, b in zip(row, column, strict=True))) for column in turned]
            for row in left.tolist()
        ]

    turned = vectors.T.tolist()
    assert times_vectors(wide, limbs(vectors)).tolist() == exactly(wide)
    assert dots(small, vectors.double()).tolist() == exactly(small)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 6), st.integers(0, 1 << 30))
@settings(max_examples=examples(30), deadline=None)
def test_both_back_ends_give_what_integers_give(t: int, n: int, m: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(-HALF, HALF + 1, (t, n), generator=generator, dtype=torch.int32)
    right = torch.randint(-127, 128, (n, m), generator=generator, dtype=torch.int8)
    expected = [
        [
            centre(sum(a * b for a, b in zip(row, column, strict=True)))
            for column in right.T.tolist()
        ]
        for row in left.tolist()
    ]
    for way in (Float64(), Int8Limb()):
        assert way.product(left, right).tolist() == expected
        turned = way.product(left, right.T.contiguous().T)  # as a layer's weights lie in memory
        assert turned.tolist() == expected


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("rows", [1, 2, 5, 17])
def test_a_turned_column_is_multiplied_as_any_matrix(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    left = torch.randint(-HALF, HALF + 1, (rows, 1), generator=generator, dtype=torch.int32)
    layer = torch.randint(-127, 128, (columns, 1), generator=generator, dtype=torch.int8)
    expected = [[centre(a * b) for (b,) in layer.tolist()] for (a,) in left.tolist()]
    for way in (Float64(), Int8Limb()):
        assert way.product(left, layer.T).tolist() == expected


@pytest.mark.parametrize("terms", [1 << 16, (1 << 16) - 1])
def test_the_widest_product_of_extremes_is_exact(terms: int) -> None:
    left = torch.full((1, terms), -HALF, dtype=torch.int32)
    right = torch.full((terms, 1), 127, dtype=torch.int8)
    for way in (Float64(), Int8Limb()):
        assert way.product(left, right).tolist() == [[centre(-HALF * 127 * terms)]]


def test_int8_is_used_only_where_it_is_right() -> None:
    assert backend("float64", "cpu").name == "float64"
    assert backend("int8-limb", "cpu").name == "int8-limb"
    assert backend("fastest", "cpu", in_hardware=lambda _device: True).name == "int8-limb"

    def saturating(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left.int() @ right.int()).clamp(-(1 << 15), (1 << 15) - 1)

    found = backend("fastest", "cpu", in_hardware=lambda _device: True, multiply=saturating)
    assert found.name == "float64"
    with pytest.raises(UsageError, check=carries(got="cpu")):
        backend("int8-limb", "cpu", multiply=saturating)
    with pytest.raises(UsageError, check=carries(got="float32")):
        backend("float32", "cpu")


def test_int8_is_left_alone_where_no_hardware_does_it() -> None:
    assert backend("fastest", "cpu", in_hardware=lambda _device: False).name == "float64"


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("shape", [(1, 3, 5), (17, 40, 24), (300, 1000, 520)])
def test_a_gpu_gives_the_same_bytes(shape: tuple[int, int, int]) -> None:
    t, n, m = shape
    left = torch.randint(-HALF, HALF + 1, (t, n), dtype=torch.int32)
    right = torch.randint(-127, 128, (n, m), dtype=torch.int8)
    expected = Float64().product(left, right)
    for way in (Float64(), backend("int8-limb", "cuda")):
        assert torch.equal(way.product(left.cuda(), right.cuda()).cpu(), expected)


@pytest.mark.parametrize("largest", [1, 1 << 8, (1 << 30) - 1])
def test_sums_of_digits_are_the_number_they_stand_for(largest: int) -> None:
    generator = torch.Generator().manual_seed(largest)
    sums = torch.randint(-largest, largest + 1, (4, 8, 16), generator=generator, dtype=torch.int32)
    sums[:, 0, 0], sums[:, 0, 1] = largest, -largest
    expected = [
        centre(sum(int(digit) * 256**place for place, digit in enumerate(digits)))
        for digits in sums.flatten(1).T.tolist()
    ]
    assert combine(sums).flatten().tolist() == expected


@pytest.mark.parametrize("count", [1, (1 << 15) - 1, 1 << 15, 100_003])
def test_sums_of_any_length_are_those_of_wider_numbers(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    left, right = (
        torch.randint(-HALF, HALF + 1, (count,), generator=generator, dtype=torch.int32)
        for _ in range(2)
    )
    left[-1], right[-1] = HALF, HALF
    wide = left.long(), right.long()
    assert torch.equal(add_centred(left, right), centre_int64(wide[0] + wide[1]))
    out = torch.empty_like(left)
    assert subtract_centred(left, right, out=out) is out
    assert torch.equal(out, centre_int64(wide[0] - wide[1]))


def test_words_are_centred_where_they_lie() -> None:
    words = torch.tensor([0, 1, HALF, HALF + 1, PRIME - 1], dtype=torch.int32)
    assert centre_words(words) is words
    assert words.tolist() == [0, 1, HALF, -HALF, -1]

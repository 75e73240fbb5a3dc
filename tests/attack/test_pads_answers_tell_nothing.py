"""What an accelerator or a dealer learns by altering its numbers: nothing that depends on a secret.

A machine that multiplies sees whether the guest goes on after its answer, and when it stops. Were
that to depend on the hidden product, an alteration that the machine can undo by itself (a multiple
of p) would read the product sign by sign, and with the signs a token of a public vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from collecting import COLLECTING

from sealtrain.base.secret import Secret
from sealtrain.errors import AcceleratorUnreachable, SealtrainError
from sealtrain_together.errors import ProductAltered

if TYPE_CHECKING:
    from sealtrain_together.pads.matrix import Direction, PublicMatrix

if not COLLECTING:
    import torch
    from pads_world import DEVICE, Watched, random_entries, random_matrix

    from sealtrain_together.channel.ports import listening
    from sealtrain_together.pads.accelerator import RemoteAccelerator
    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.exact_products import Float64
    from sealtrain_together.pads.field import subtract_centred
    from sealtrain_together.pads.multiplying import Limits
    from sealtrain_together.pads.pads import InGuest
    from sealtrain_together.pads.serving import Multiplier

pytestmark = pytest.mark.claim("C60")

PRIME = (1 << 31) - 1
HALF = PRIME >> 1
ROWS = 12
MANY_ROWS = 30_000
"""Rows of the small matrix that leave in several requests."""
Altered = Callable[[Any], Any]


def entry(by: int) -> Altered:
    """One entry of the answer moved by a number, as 32 bits hold it."""

    def alter(answer: torch.Tensor) -> torch.Tensor:
        moved = answer.to(torch.int64)
        moved[0, 3] += by
        return moved.to(torch.int32)  # wraps as the bytes of a frame would

    return alter


def undone(multiple: int) -> Altered:
    """One entry in another form of the same element, where 32 bits have one: the sign is known."""

    def alter(answer: torch.Tensor) -> torch.Tensor:
        return entry(-multiple if int(answer[0, 3]) > 0 else multiple)(answer)

    return alter


def entry_is(value: int) -> Altered:
    def alter(answer: torch.Tensor) -> torch.Tensor:
        answer = answer.clone()
        answer[0, 3] = value
        return answer

    return alter


def bit(place: int) -> Altered:
    def alter(answer: torch.Tensor) -> torch.Tensor:
        answer = answer.clone()
        answer[0, 3] ^= -(1 << 31) if place == 31 else 1 << place
        return answer

    return alter


NUMBERS: dict[str, Altered] = {
    "the same element by p": undone(PRIME),
    "p more": entry(PRIME),
    "p less": entry(-PRIME),
    "2 p more": entry(2 * PRIME),
    "2 p less": entry(-2 * PRIME),
    "the smallest that is no element": entry_is(-HALF - 1),
    "the largest that is no element": entry_is(HALF + 1),
    "the smallest number": entry_is(-(1 << 31)),
    "the largest number": entry_is((1 << 31) - 1),
    "bits of a NaN": entry_is(0x7FC00000),
    "bits of another NaN": entry_is(0xFFC00000 - (1 << 32)),
    **{f"bit {place}": bit(place) for place in (0, 7, 15, 29, 30, 31)},
    "all by p": lambda answer: torch.where(answer > 0, answer - PRIME, answer + PRIME),
}
FORMS: dict[str, Altered] = {
    "int64": lambda answer: answer.to(torch.int64),
    "int64, by p": lambda answer: answer.to(torch.int64) + PRIME,
    "float64": lambda answer: answer.to(torch.float64),
    "NaN": lambda answer: torch.full_like(answer, float("nan"), dtype=torch.float64),
    "infinity": lambda answer: torch.full_like(answer, float("inf"), dtype=torch.float32),
    "bool": lambda answer: answer > 0,
    "a row more": lambda answer: torch.cat([answer, answer[:1]]),
    "a row less": lambda answer: answer[1:],
    "one row for all": lambda answer: answer[:1],
    "a column less": lambda answer: answer[:, 1:],
    "a dimension more": lambda answer: answer[None],
    "turned": lambda answer: answer.T,
    "no rows": lambda answer: answer[:0],
    "sparse": lambda answer: answer.to_sparse(),
    "no tensor": lambda answer: answer.tolist(),
    "nothing": lambda answer: None,
}
SECRETS: dict[str, Callable[[PublicMatrix, Direction, int], torch.Tensor]] = {
    "zeros": lambda m, way, rows: torch.zeros(rows, m.widths(way)[0], dtype=torch.int32),
    "largest": lambda m, way, rows: (
        torch.full((rows, m.widths(way)[0]), m.largest(way), dtype=torch.int32)
        * m.factor(way)[:, 3].sign().to(torch.int32)
    ),
    "smallest": lambda m, way, rows: (
        torch.full((rows, m.widths(way)[0]), -m.largest(way), dtype=torch.int32)
        * m.factor(way)[:, 3].sign().to(torch.int32)
    ),
    "random": lambda m, way, rows: random_entries(m, way, rows),
}


if not COLLECTING:

    class Known(InGuest):
        """The pads of every engine: of two secrets then nothing else differs."""

        def __init__(self, alter: Altered | None = None) -> None:
            super().__init__(Float64())
            self.alter = alter

        def begin(self) -> Secret:
            return Secret(bytes(range(32)))

        def product(self, *asked: Any) -> Callable[[], Any]:
            honest = super().product(*asked)
            return honest if self.alter is None else lambda: self.alter(honest())


def outcome(
    secret: str, direction: Direction, alter: Altered, *, at: str, rows: int = ROWS, wrong: int = 1
) -> tuple[Any, ...]:
    """What a machine that altered its answer number ``wrong`` sees, and what the guest got."""
    matrix = random_matrix()
    entries = SECRETS[secret](matrix, direction, rows)
    taken = 0

    def lie(answer: torch.Tensor) -> Any:
        nonlocal taken
        taken += 1
        return alter(answer) if taken == wrong else answer

    accelerator = Watched(lie if at == "accelerator" else None)
    engine = UnderPads(accelerator, supplier=Known(alter if at == "dealer" else None), prefetch=0)
    error: SealtrainError | None = None
    try:
        opened = engine.product(matrix, direction, entries)
        assert torch.equal(opened, Inside().product(matrix, direction, entries))
    except SealtrainError as refused:
        error = refused
    told = None if error is None else (error.code, error.check, error.got, error.message)
    return told, len(accelerator.seen), taken, engine.spent.products


@pytest.mark.parametrize("at", ["accelerator", "dealer"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", [*NUMBERS, *FORMS])
def test_an_alteration_ends_alike_for_every_secret(
    name: str, direction: Direction, at: str
) -> None:
    alter = (NUMBERS | FORMS)[name]
    ends = set()
    for secret in SECRETS:
        told, *counts = outcome(secret, direction, alter, at=at)
        assert told is not None
        assert told[0] == ProductAltered.code
        # Pads and so the machine's own answers differ from secret to secret: a form that wraps in
        # 32 bits is another element there, and the check by secret vectors is what refuses it.
        ends.add((told[0], *counts))
    assert len(ends) == 1


@pytest.mark.parametrize("name", ["the same element by p", "all by p", "int64", "a row less"])
def test_a_form_is_refused_before_the_pad_is_taken_off(name: str) -> None:
    alter = (NUMBERS | FORMS)[name]
    told = {outcome(secret, "forward", alter, at="accelerator")[0] for secret in SECRETS}
    ((code, check, _got, _message),) = told
    assert (code, check) == (ProductAltered.code, "elements")


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_an_alteration_in_a_later_request_ends_at_the_same_request(wrong: int) -> None:
    for alter in (NUMBERS["the same element by p"], NUMBERS["bit 0"], FORMS["int64"]):
        ends = {
            outcome(secret, "forward", alter, at="accelerator", rows=MANY_ROWS, wrong=wrong)
            for secret in SECRETS
        }
        ((told, asked, taken, products),) = ends
        assert told[0] == ProductAltered.code
        assert (asked, taken, products) == (wrong + 1, wrong, 0)


def test_an_accelerator_that_undoes_what_it_altered_reads_no_sign() -> None:
    """The attack: one entry after the other by p, and from the guest's going on a sign."""
    matrix = random_matrix(64, 96)
    entries = random_entries(matrix, "forward", 1)
    product = Inside().product(matrix, "forward", entries)
    right = 0
    for column in range(product.shape[1]):
        up = False

        def lie(answer: torch.Tensor, column: int = column) -> torch.Tensor:
            nonlocal up
            up = int(answer[0, column]) <= 0
            answer = answer.clone()
            answer[0, column] += PRIME if up else -PRIME
            return answer

        try:
            UnderPads(Watched(lie), prefetch=0).product(matrix, "forward", entries)
            went_on = True
        except ProductAltered:
            went_on = False
        assert went_on is False  # for either sign
        right += (went_on is not up) == bool(product[0, column] > 0)
    assert 0 < right < product.shape[1]


def test_over_the_network_another_form_ends_alike_too() -> None:
    class Hostile(Multiplier):
        def multiply(self, asked: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            return altered(super().multiply(asked, factor))

    altered: Altered
    matrix = random_matrix()
    cases = {**NUMBERS, **{name: FORMS[name] for name in ("int64", "a row more", "a row less")}}
    for case in cases.values():
        ends, altered = set(), case
        for secret in SECRETS:
            hostile = Hostile(DEVICE, Limits())
            with listening(("127.0.0.1", 0), hostile.serve, what="accelerator") as place:
                remote = RemoteAccelerator(*place)
                engine = UnderPads(remote, prefetch=0)
                engine.admit(matrix)
                with pytest.raises((ProductAltered, AcceleratorUnreachable)) as refused:
                    engine.product(matrix, "forward", SECRETS[secret](matrix, "forward", ROWS))
                remote.close()
            ends.add((refused.value.code, engine.spent.products))
        assert len(ends) == 1


def test_a_difference_is_that_of_the_elements_in_whatever_form_the_left_side_comes() -> None:
    generator = torch.Generator().manual_seed(7)
    left, right = (
        torch.randint(-HALF, HALF + 1, (64, 64), generator=generator, dtype=torch.int32)
        for _ in range(2)
    )
    other = torch.where(left > 0, left - PRIME, left + PRIME)
    assert torch.equal(subtract_centred(other, right), subtract_centred(left, right))

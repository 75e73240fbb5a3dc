"""Pads that are made ahead of their use: none is given out twice, whoever stops, fails or forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from polling import wait_until

from sealtrain.errors import PadsRefused
from sealtrain.sealing.errors import WrongKey
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.errors import ProductAltered

if not COLLECTING:
    import torch
    from pads_world import Watched, masks_seen, random_entries, random_matrix, tiny_model, trained

    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.exact_products import ExactProduct, Float64
    from sealtrain_together.pads.masks import Masks, draw_secret
    from sealtrain_together.pads.matrix import Direction, PublicMatrix
    from sealtrain_together.pads.pads import InGuest
    from sealtrain_together.pads.pool import OwnPool
    from sealtrain_together.pads.prefetch import PREFETCH_BYTES, Prefetch
    from sealtrain_together.pads.protect import protect

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
seen_by = pytest.mark.claim("C60")
altered = pytest.mark.claim("C61")

if not COLLECTING:

    class Noted(InGuest):
        """A supplier that keeps what it was asked for, and may fail.

        Args:
            fails: Given the first row and the number of rows, raises or does not.
        """

        def __init__(self, fails: Callable[[int, int], None] = lambda first, rows: None) -> None:
            super().__init__(Float64())
            self.asked: list[tuple[Direction, int, int]] = []
            self.threads: set[str] = set()
            self._fails = fails

        def product(
            self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
        ) -> Callable[[], torch.Tensor]:
            self._fails(first, len(mask))
            self.asked.append((direction, first, len(mask)))
            self.threads.add(threading.current_thread().name)
            return super().product(matrix, direction, first, mask)


def products(engine: UnderPads, matrix: PublicMatrix, rows: int, count: int) -> None:
    entries = random_entries(matrix, "forward", rows)
    for _ in range(count):
        product = engine.product(matrix, "forward", entries)
        assert torch.equal(product, Inside().product(matrix, "forward", entries))


@seen_by
def test_rows_are_there_before_they_are_asked_for_and_none_comes_twice() -> None:
    matrix, accelerator, supplier = random_matrix(), Watched(), Noted()
    engine = UnderPads(accelerator, supplier=supplier)
    products(engine, matrix, 6, 2)
    for step in range(2, 6):
        wait_until(lambda step=step: sum(rows for _, _, rows in supplier.asked) == 6 * (step + 1))
        products(engine, matrix, 6, 1)
    engine.close()
    assert "pads" in supplier.threads
    ends = [first + rows for _, first, rows in supplier.asked]
    assert [first for _, first, _ in supplier.asked] == [0, *ends[:-1]]
    entries = random_entries(matrix, "forward", 6)
    assert len(masks_seen(accelerator, entries)) == 36


@seen_by
@pytest.mark.parametrize("counts", [(4, 9, 1, 7, 7, 2), (1, 1, 30, 1), (8, 3, 3, 3, 20)])
def test_other_numbers_of_rows_than_were_guessed_are_the_next_rows_of_their_stream(
    counts: tuple[int, ...],
) -> None:
    secret, matrix = draw_secret(), random_matrix()
    ahead = Prefetch(Masks(secret), InGuest(Float64()))
    plain = Masks(secret)
    for number, count in enumerate(counts):
        for direction in ("forward", "backward"):
            if number % 2 and direction == "backward":
                continue  # as in a step that measures
            mask, product = ahead.take(matrix, direction, count)
            _, expected = plain.rows(matrix, direction, count)
            assert torch.equal(mask, expected)
            factor = matrix.factor(direction)
            assert torch.equal(product, Float64().product(expected, factor))
    ahead.close()


@seen_by
def test_training_is_the_same_with_and_without_prefetch() -> None:
    results = []
    for prefetch in (0, PREFETCH_BYTES, 4000):
        model = tiny_model()
        protection = protect(model, Watched(), prefetch=prefetch)
        losses, weights = trained(model, 4)
        protection.engine.close()
        results.append((losses, [weight.numpy().tobytes() for weight in weights]))
    assert results[0] == results[1] == results[2]


@seen_by
def test_what_waits_takes_no_more_room_than_given() -> None:
    matrix, supplier = random_matrix(), Noted()
    row_bytes = 4 * sum(matrix.widths("forward"))
    ahead = Prefetch(Masks(draw_secret()), supplier, room=5 * row_bytes)
    for _ in range(6):
        ahead.take(matrix, "forward", 6)
        time.sleep(0.02)
    assert supplier.threads == {threading.current_thread().name}
    ahead.close()


@seen_by
def test_a_forked_process_gets_none_of_the_rows_that_wait() -> None:
    matrix, supplier = random_matrix(), Noted()
    ahead = Prefetch(Masks(draw_secret()), supplier)
    ahead.take(matrix, "forward", 3)
    ahead.take(matrix, "forward", 3)
    wait_until(lambda: len(supplier.asked) == 3)
    child = os.fork()
    if child == 0:
        try:
            ahead.take(matrix, "forward", 3)
            os._exit(1)
        except PadsRefused:
            os._exit(17)
        except BaseException:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    ahead.close()


@seen_by
def test_a_guess_beyond_the_end_of_a_pool_takes_nothing_from_those_that_are_left(
    tmp_path: Path,
) -> None:
    matrix, accelerator = random_matrix(), Watched()
    pool = OwnPool(tmp_path / "pool", exact=Float64(), block_rows=4)
    engine = UnderPads(accelerator, supplier=pool)
    engine.admit(matrix)
    pool.fill(10)
    products(engine, matrix, 4, 2)
    time.sleep(0.05)  # four more are refused meanwhile
    products(engine, matrix, 2, 1)
    with pytest.raises(PadsRefused, check=carries(got="rows 10 to 11")):
        products(engine, matrix, 1, 1)
    assert sum(map(len, accelerator.seen)) == 10
    pool.close()


@altered
def test_what_broke_while_pads_were_made_ahead_ends_the_next_product_by_name() -> None:
    def broken(first: int, rows: int) -> None:
        if first >= 12:
            raise ChannelBroken("a record was altered", check="channel")

    matrix, accelerator, supplier = random_matrix(), Watched(), Noted(broken)
    engine = UnderPads(accelerator, supplier=supplier)
    products(engine, matrix, 6, 2)
    for _ in range(2):  # and nothing is made after it
        with pytest.raises(ChannelBroken, check=carries(check="channel")):
            products(engine, matrix, 6, 1)
    assert len(accelerator.seen) == 2


if not COLLECTING:

    class Crooked(Noted):
        """A dealer whose rows are wrong from the second request on."""

        def product(self, *asked: Any) -> Callable[[], torch.Tensor]:
            honest = super().product(*asked)
            wrong = len(self.asked) > 2

            def answer() -> torch.Tensor:
                dealt = honest().clone()
                dealt[1, 2] += int(wrong)
                return dealt

            return answer


@altered
def test_wrong_pads_that_waited_are_caught_when_they_are_used() -> None:
    matrix, supplier = random_matrix(), Crooked()
    engine = UnderPads(Watched(), supplier=supplier)
    products(engine, matrix, 6, 2)
    wait_until(lambda: len(supplier.asked) == 3)
    with pytest.raises(ProductAltered):
        products(engine, matrix, 6, 1)


# --- A pool that is filled again ----------------------------------------------------------------

if not COLLECTING:

    class Counted(Float64):
        """Counts the rows that it multiplies."""

        def __init__(self) -> None:
            self.rows = 0

        def product(self, elements: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
            self.rows += len(elements)
            return super().product(elements, matrix)


@seen_by
def test_a_filling_makes_each_row_once_and_takes_over_what_was_left(tmp_path: Path) -> None:
    matrix, accelerator, exact = random_matrix(), Watched(), Counted()
    pool = OwnPool(tmp_path / "pool", exact=exact, block_rows=4)
    engine = UnderPads(accelerator, supplier=pool, prefetch=0)
    engine.admit(matrix)
    made = []
    for _ in range(5):
        before = exact.rows
        pool.fill(10)
        made.append(exact.rows - before)
        products(engine, matrix, 7, 1)
    assert made == [20, 7, 7, 7, 7]  # backward, which nothing used, is made once
    entries = random_entries(matrix, "forward", 7)
    assert len(masks_seen(accelerator, entries)) == 35
    pool.close()


@seen_by
def test_a_filling_that_failed_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = random_matrix()

    class Failing(Float64):
        broken = False

        def product(self, elements: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
            if self.broken:
                raise MemoryError
            return super().product(elements, matrix)

    exact = Failing()
    pool = OwnPool(tmp_path / "pool", exact=exact, block_rows=4)
    engine = UnderPads(Watched(), supplier=pool, prefetch=0)
    engine.admit(matrix)
    pool.fill(9)
    products(engine, matrix, 7, 1)
    exact.broken = True
    with pytest.raises(MemoryError):
        pool.fill(9)
    exact.broken = False
    pool.fill(9)
    products(engine, matrix, 9, 1)
    pool.close()


@seen_by
def test_rows_that_a_host_altered_are_not_taken_over(tmp_path: Path) -> None:
    matrix: PublicMatrix = random_matrix(96, 128)
    exact: ExactProduct = Float64()
    pool = OwnPool(tmp_path / "pool", exact=exact, block_rows=16)
    engine = UnderPads(Watched(), supplier=pool, prefetch=0)
    engine.admit(matrix)
    pool.fill(64)
    products(engine, matrix, 3, 1)
    with (tmp_path / "pool").open("r+b") as file:  # the guest has it open
        file.seek(-20, os.SEEK_END)
        file.write(b"\0" * 8)
    with pytest.raises(WrongKey):
        pool.fill(64)
    pool.close()

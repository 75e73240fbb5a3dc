"""The accelerator, the dealer, the network and the host attack products under pads."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.base.secret import Secret
from sealtrain.errors import PadsRefused, SealtrainError, UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.errors import WrongKey
from sealtrain_together.errors import ProductAltered

if not COLLECTING:
    import torch
    from pads_world import Watched, masks_seen, random_entries, random_matrix, tiny_model, trained

    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.exact_products import Float64
    from sealtrain_together.pads.field import HALF, PRIME
    from sealtrain_together.pads.freivalds import Freivalds
    from sealtrain_together.pads.masks import Masks, MaskStream, draw_secret
    from sealtrain_together.pads.matrix import DIRECTIONS, Direction, PublicMatrix
    from sealtrain_together.pads.pads import InGuest, PadSupply
    from sealtrain_together.pads.pool import OwnPool, Pool, write_pool
    from sealtrain_together.pads.protect import protect

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
seen_by = pytest.mark.claim("C60")
altered = pytest.mark.claim("C61")
in_parts = pytest.mark.claim("C277")
FALSE_ALARM = 1e-9
"""These tests draw fresh pads; so often they may call honest ones uneven."""


# --- What the accelerator sees ------------------------------------------------------------------


def unevenness(sample: torch.Tensor) -> float:
    """Kolmogorov-Smirnov distance of centred elements to uniform."""
    places = ((sample.flatten().double() + HALF + 0.5) / PRIME).sort().values
    steps = torch.arange(1, places.numel() + 1, dtype=torch.float64) / places.numel()
    return float(
        torch.maximum((steps - places).abs(), (steps - 1 / steps.numel() - places).abs()).max()
    )


def bound(count: int) -> float:
    """What an even sample of that size stays below (Dvoretzky, Kiefer, Wolfowitz)."""
    return math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count))


def correlation(left: torch.Tensor, right: torch.Tensor) -> float:
    pair = torch.stack([left.flatten().double(), right.flatten().double()])
    return float(torch.corrcoef(pair)[0, 1])


@seen_by
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("content", ["zeros", "largest", "one row again", "random"])
def test_whatever_is_multiplied_the_accelerator_sees_even_chance(
    content: str, direction: Direction
) -> None:
    matrix, accelerator = random_matrix(96, 128), Watched()
    engine, rows = UnderPads(accelerator), 1500
    entries = {
        "zeros": lambda: torch.zeros(rows, matrix.widths(direction)[0], dtype=torch.int32),
        "largest": lambda: torch.full_like(random_entries(matrix, direction, rows), 2047),
        "one row again": lambda: random_entries(matrix, direction, 1).repeat(rows, 1),
        "random": lambda: random_entries(matrix, direction, rows),
    }[content]()
    engine.product(matrix, direction, entries)
    engine.product(matrix, direction, entries)
    first, second = accelerator.seen
    for sample in (first, second):
        assert unevenness(sample) < bound(sample.numel())
        for byte in range(4):  # each byte of what travels, by a chi-square of its values
            values = (sample.flatten() >> (8 * byte)) & 0xFF
            if byte < 3:
                counts = torch.bincount(values, minlength=256).double()
                even = sample.numel() / 256
                off = float(((counts - even) ** 2 / even).sum())
                assert off < 255 + 8 * math.sqrt(2 * 255)
    difference = (first.long() - second.long()) % PRIME
    centred = torch.where(difference > HALF, difference - PRIME, difference)
    assert unevenness(centred) < bound(centred.numel())
    assert abs(correlation(first, second)) < 7 / math.sqrt(first.numel())
    if content == "random":
        assert abs(correlation(first, entries)) < 7 / math.sqrt(first.numel())


@seen_by
def test_one_alone_of_two_equal_rows_shows_no_likeness() -> None:
    matrix, accelerator = random_matrix(), Watched()
    entries = random_entries(matrix, "forward", 1).repeat(400, 1)
    UnderPads(accelerator).product(matrix, "forward", entries)
    (sample,) = accelerator.seen
    assert len(torch.unique(sample, dim=0)) == 400


@seen_by
def test_the_measure_sees_what_is_not_even() -> None:
    sample = torch.randint(-HALF, HALF + 1, (200_000,), dtype=torch.int32)
    assert unevenness(sample) < bound(sample.numel())
    assert unevenness(sample.clamp(max=int(0.97 * HALF))) > bound(sample.numel())
    assert unevenness(random_entries(random_matrix(), "forward", 2000)) > 0.4


@seen_by
def test_only_base_weights_become_public() -> None:
    model, accelerator = tiny_model(), Watched()
    for name, weight in model.named_parameters():
        if "lora" in name:
            weight.requires_grad_(False)  # a finished adapter is as secret as one that is trained
            weight.data.normal_()
    protection = protect(model, accelerator)
    assert not any("lora" in name for stack in protection.layers for name in stack)
    secret = {weight.shape for name, weight in model.named_parameters() if "lora" in name}
    assert secret.isdisjoint(values.shape for values in accelerator.matrices)


@seen_by
def test_a_layer_with_an_adapter_merged_into_it_is_refused() -> None:
    model, accelerator = tiny_model(), Watched()
    model.merge_adapter()
    with pytest.raises(ModelInvalid, match="q_proj"):
        protect(model, accelerator)
    assert accelerator.matrices == []


# --- No pad twice -------------------------------------------------------------------------------


@seen_by
def test_a_restarted_guest_with_the_same_chance_has_other_pads() -> None:
    matrix, entries = random_matrix(), random_entries(random_matrix(), "forward")
    accelerator = Watched()
    for _ in range(3):
        torch.manual_seed(0)
        UnderPads(accelerator).product(matrix, "forward", entries)
    assert len(masks_seen(accelerator, entries)) == 3 * len(entries)


@seen_by
def test_training_again_from_one_state_shows_the_accelerator_nothing_twice() -> None:
    accelerator = Watched()
    for _ in range(2):  # as after a host restored an older checkpoint
        model = tiny_model()
        protect(model, accelerator)
        trained(model, 1)
    half = len(accelerator.seen) // 2
    for before, after in zip(accelerator.seen[:half], accelerator.seen[half:], strict=True):
        assert before.shape == after.shape
        rows = torch.unique(torch.cat([before, after]), dim=0)
        assert len(rows) == len(before) + len(after)


@seen_by
def test_a_pool_of_an_earlier_beginning_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = random_matrix()
    pool = filled(tmp_path / "pool", matrix)
    put_in_place(monkeypatch, (tmp_path / "pool").read_bytes())
    with pytest.raises(WrongKey):
        filled(tmp_path / "restarted", matrix)
    pool.close()


@seen_by
def test_a_pool_for_other_layers_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = filled(tmp_path / "other", random_matrix(8, 8))
    put_in_place(monkeypatch, (tmp_path / "other").read_bytes())
    with pytest.raises(PadsRefused):
        filled(tmp_path / "pool", random_matrix())
    other.close()


@seen_by
def test_an_older_filling_put_there_before_it_is_opened_gives_no_row_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, accelerator = random_matrix(), Watched()
    entries = random_entries(matrix, "forward", 4)
    pool = OwnPool(tmp_path / "pool", exact=Float64(), block_rows=4)
    engine = UnderPads(accelerator, supplier=pool)
    engine.admit(matrix)
    pool.fill(4)
    older = (tmp_path / "pool").read_bytes()
    engine.product(matrix, "forward", entries)
    put_in_place(monkeypatch, older)
    pool.fill(4)
    with pytest.raises(PadsRefused):
        engine.product(matrix, "forward", entries)
    assert len(accelerator.seen) == 1
    pool.close()


def put_in_place(monkeypatch: pytest.MonkeyPatch, other: bytes) -> None:
    """A host that swaps each pool from now on, between its writing and its opening."""

    def written(path: Path, **settings: Any) -> None:
        write_pool(path, **settings)
        path.write_bytes(other)

    monkeypatch.setattr("sealtrain_together.pads.pool.write_pool", written)


def filled(path: Path, matrix: PublicMatrix, rows: int = 20) -> OwnPool:
    pool = OwnPool(path, exact=Float64(), block_rows=4)
    engine = UnderPads(Watched(), supplier=pool)
    engine.admit(matrix)
    try:
        pool.fill(rows)
    except SealtrainError:
        pool.close()
        raise
    return pool


@seen_by
def test_a_pool_that_is_set_back_gives_no_row_again(tmp_path: Path) -> None:
    matrix, accelerator = random_matrix(), Watched()
    entries = random_entries(matrix, "forward", 4)
    pool = OwnPool(tmp_path / "pool", exact=Float64(), block_rows=4)
    engine = UnderPads(accelerator, supplier=pool)
    engine.admit(matrix)
    pool.fill(8)
    full = (tmp_path / "pool").read_bytes()
    engine.product(matrix, "forward", entries)
    (tmp_path / "pool").write_bytes(full)
    engine.product(matrix, "forward", entries)
    (tmp_path / "pool").write_bytes(full)
    with pytest.raises(PadsRefused, check=carries(check="pads forward", got="rows 8 to 12")):
        engine.product(matrix, "forward", entries)
    assert len(accelerator.seen) == 2
    assert len(masks_seen(accelerator, entries)) == 8
    pool.close()


@seen_by
def test_an_older_filling_put_in_place_of_a_newer_one_does_not_open(tmp_path: Path) -> None:
    matrix, accelerator = random_matrix(), Watched()
    entries = random_entries(matrix, "forward", 4)
    pool = OwnPool(tmp_path / "pool", exact=Float64(), block_rows=4)
    engine = UnderPads(accelerator, supplier=pool)
    engine.admit(matrix)
    pool.fill(4)
    older = (tmp_path / "pool").read_bytes()
    engine.product(matrix, "forward", entries)
    pool.fill(4)
    with (tmp_path / "pool").open("r+b") as file:  # the guest has it open
        file.write(older)
    with pytest.raises(WrongKey):
        engine.product(matrix, "forward", entries)
    assert len(accelerator.seen) == 1
    pool.close()


@seen_by
def test_a_pool_that_fills_itself_gives_no_row_twice(tmp_path: Path) -> None:
    matrix, accelerator = random_matrix(), Watched()
    pool = OwnPool(tmp_path / "pool", exact=Float64(), block_rows=4, lot=6)
    engine = UnderPads(accelerator, supplier=pool)
    engine.admit(matrix)
    rows = (4, 4, 9, 1)  # over the end of a lot, more than a lot, and the rest of one
    for count in rows:
        entries = random_entries(matrix, "forward", count)
        product = engine.product(matrix, "forward", entries)
        assert torch.equal(product, Inside().product(matrix, "forward", entries))
    masks = {
        row.numpy().tobytes()
        for sample, count in zip(accelerator.seen, rows, strict=True)
        for row in (sample.long() - random_entries(matrix, "forward", count).long()) % PRIME
    }
    assert len(masks) == sum(rows)
    pool.close()


@seen_by
def test_when_pads_are_used_up_nothing_is_sent_any_more(tmp_path: Path) -> None:
    matrix, accelerator = random_matrix(), Watched()
    pool = OwnPool(tmp_path / "pool", exact=Float64())
    engine = UnderPads(accelerator, supplier=pool)
    engine.admit(matrix)
    pool.fill(10)
    engine.product(matrix, "forward", random_entries(matrix, "forward", 9))
    with pytest.raises(PadsRefused, check=carries(check="pads forward", got="rows 9 to 11")):
        engine.product(matrix, "forward", random_entries(matrix, "forward", 2))
    with pytest.raises(PadsRefused):  # not even what a row is left for
        engine.product(matrix, "forward", random_entries(matrix, "forward", 1))
    assert len(accelerator.seen) == 1
    pool.close()


@seen_by
def test_a_pool_that_was_never_filled_gives_nothing(tmp_path: Path) -> None:
    matrix, accelerator = random_matrix(), Watched()
    engine = UnderPads(accelerator, supplier=OwnPool(tmp_path / "pool", exact=Float64()))
    engine.admit(matrix)
    with pytest.raises(PadsRefused, check=carries(check="pads")):
        engine.product(matrix, "forward", random_entries(matrix, "forward"))
    assert accelerator.seen == []


@seen_by
def test_a_stream_ends_instead_of_beginning_anew() -> None:
    stream = MaskStream(draw_secret(), 4, max_words=10)
    stream.rows(2)
    with pytest.raises(PadsRefused):
        stream.rows(1)


@seen_by
def test_a_forked_process_has_no_pads() -> None:
    matrix, accelerator = random_matrix(), Watched()
    engine = UnderPads(accelerator)
    entries = random_entries(matrix, "forward")
    engine.product(matrix, "forward", entries)
    child = os.fork()
    if child == 0:  # says by its exit code what happened; nothing else of it comes back
        try:
            engine.product(matrix, "forward", entries)
            os._exit(1)
        except PadsRefused:
            os._exit(17 if len(accelerator.seen) == 1 else 2)
        except BaseException:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    engine.product(matrix, "forward", entries)
    assert len(masks_seen(accelerator, entries)) == 2 * len(entries)


@seen_by
def test_a_copied_model_shares_the_place_in_the_stream() -> None:
    matrix, accelerator = random_matrix(), Watched()
    engine = UnderPads(accelerator)
    entries = random_entries(matrix, "forward")
    for item in (engine, copy.deepcopy(engine), copy.copy(engine)):
        item.product(matrix, "forward", entries)
    assert len(masks_seen(accelerator, entries)) == 3 * len(entries)
    masks = Masks(draw_secret())
    assert copy.deepcopy(masks) is copy.copy(masks) is masks


@seen_by
@pytest.mark.parametrize(
    "secret",
    [
        lambda: UnderPads(Watched()),
        lambda: PadSupply(InGuest(Float64())),
        lambda: Masks(draw_secret()),
        lambda: MaskStream(draw_secret(), 4),
        lambda: Freivalds(draw_secret()),
    ],
)
def test_nothing_that_knows_a_secret_can_be_stored(secret: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(secret())


@seen_by
def test_a_protected_models_state_holds_no_secret_and_a_secret_serves_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[bytes] = []

    def remembered() -> Secret:
        drawn.append(os.urandom(32))
        return Secret(drawn[-1])

    for module in ("engine", "pads"):
        monkeypatch.setattr(f"sealtrain_together.pads.{module}.draw_secret", remembered)
    model = tiny_model()
    protect(model, Watched())
    state = pickle.dumps({name: value.numpy() for name, value in model.state_dict().items()})
    assert len(set(drawn)) == 2
    assert not any(secret in state for secret in drawn)


# --- Altered products ---------------------------------------------------------------------------


def changed(row: int, column: int, by: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def lie(answer: torch.Tensor) -> torch.Tensor:
        answer = answer.clone()
        answer[row, column] += by
        return answer

    return lie


@altered
@pytest.mark.parametrize("checks", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("by", [1, -1, 1 << 16, (1 << 30) - 1, -(1 << 30), 1 << 31])
def test_a_single_altered_entry_is_caught_wherever_it_is(
    direction: Direction, by: int, checks: int
) -> None:
    matrix, entries = random_matrix(), random_entries(random_matrix(), direction)
    wide = matrix.widths(direction)[1]
    for place in range(0, len(entries) * wide, 41):
        accelerator = Watched(changed(*divmod(place, wide), _int32(by)))
        engine = UnderPads(accelerator, checks=checks)
        with pytest.raises(ProductAltered) as refused:
            engine.product(matrix, direction, entries)
        assert refused.value.got == f"1 of {len(entries)} rows altered"
        accelerator.lie = None
        with pytest.raises(ProductAltered):  # no second try with the same secret vectors
            engine.product(matrix, direction, entries)
        assert len(accelerator.seen) == 1


def _int32(value: int) -> int:
    return value - (1 << 32) if value > (1 << 31) - 1 else value


@seen_by
@altered
@pytest.mark.parametrize("place", range(12))
def test_another_form_of_the_right_number_is_refused_whatever_the_product_is(place: int) -> None:
    matrix = random_matrix()
    entries = random_entries(matrix, "forward")

    def other_form(answer: torch.Tensor) -> torch.Tensor:
        answer = answer.clone()
        answer[0, place] += -PRIME if answer[0, place] > 0 else PRIME
        return answer

    with pytest.raises(ProductAltered, check=carries(check="elements")):
        UnderPads(Watched(other_form)).product(matrix, "forward", entries)


LIES: dict[str, Callable[[Any], torch.Tensor]] = {
    "zeros": lambda answer: torch.zeros_like(answer),
    "rows swapped": lambda answer: answer.roll(1, dims=0),
    "columns swapped": lambda answer: answer.roll(1, dims=1),
    "negated": lambda answer: -answer,
    "largest numbers": lambda answer: torch.full_like(answer, (1 << 31) - 1),
    "smallest numbers": lambda answer: torch.full_like(answer, -(1 << 31)),
    "cancelling errors": lambda answer: (
        answer + torch.tensor([1, -1] * (answer.shape[1] // 2), dtype=torch.int32)
    ),
}


@altered
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("lie", LIES)
def test_no_other_answer_passes(lie: str, direction: Direction) -> None:
    matrix = random_matrix()
    engine = UnderPads(Watched(LIES[lie]))
    with pytest.raises(ProductAltered):
        engine.product(matrix, direction, random_entries(matrix, direction))


@altered
def test_an_answer_to_another_question_does_not_pass() -> None:
    matrix, first = random_matrix(), []

    def replay(answer: torch.Tensor) -> torch.Tensor:
        first.append(answer)
        return first[0]

    engine = UnderPads(Watched(replay))
    entries = random_entries(matrix, "forward")
    engine.product(matrix, "forward", entries)
    with pytest.raises(ProductAltered):
        engine.product(matrix, "forward", entries)


@altered
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_training_stops_at_an_altered_product_and_no_weight_has_moved(way: str) -> None:
    model = tiny_model()
    accelerator = Watched()
    protect(model, accelerator)
    before = [weight.detach().clone() for weight in model.parameters() if weight.requires_grad]
    forward = 2 * 4 + 1
    wrong = 3 if way == "forward" else forward + 2

    def lie(answer: torch.Tensor) -> torch.Tensor:
        return changed(0, 0, 1)(answer) if len(accelerator.seen) == wrong else answer

    accelerator.lie = lie
    with pytest.raises(
        ProductAltered, check=carries(check=f"freivalds {way}", expected="exact products")
    ):
        trained(model, 1)
    assert len(accelerator.seen) == wrong
    after = [weight.detach() for weight in model.parameters() if weight.requires_grad]
    assert all(map(torch.equal, before, after))


# --- One product in several requests ------------------------------------------------------------

MANY_ROWS = 30_000
"""Rows of the small matrix that leave in more than three requests."""

if not COLLECTING:

    class InTurn(Watched):
        """Keeps the answers of one product, and may give them out in another order."""

        def __init__(self, order: Callable[[int], int] = lambda place: place) -> None:
            super().__init__()
            self.answers: list[torch.Tensor] = []
            self.order = order
            self.altered: int | None = None
            self.out = self.most_out = 0

        def product(self, *asked: Any) -> Callable[[], torch.Tensor]:
            place = len(self.answers)
            self.answers.append(super().product(*asked)())
            self.out += 1
            self.most_out = max(self.most_out, self.out)

            def answer() -> torch.Tensor:
                self.out -= 1
                found = self.answers[self.order(place)]
                return changed(0, 0, 1)(found) if place == self.altered else found

            return answer


@in_parts
def test_a_product_in_several_requests_is_exact_and_each_row_of_pads_is_used_once() -> None:
    matrix, accelerator = random_matrix(), InTurn()
    entries = random_entries(matrix, "forward", MANY_ROWS)
    engine = UnderPads(accelerator)
    for _ in range(2):
        product = engine.product(matrix, "forward", entries)
        assert torch.equal(product, Inside().product(matrix, "forward", entries))
    assert len(accelerator.seen) > 6
    assert accelerator.most_out == 2
    both = torch.cat([entries, entries])
    masks = (torch.cat(accelerator.seen).long() - both.long()) % PRIME
    assert len(torch.unique(masks, dim=0)) == 2 * MANY_ROWS
    assert engine.spent.products == 2
    assert engine.spent.rows == 2 * MANY_ROWS


@in_parts
def test_answers_of_one_product_in_another_order_do_not_pass() -> None:
    matrix = random_matrix()
    accelerator = InTurn(lambda place: place ^ 1)  # the first two requests are out together
    with pytest.raises(ProductAltered):
        UnderPads(accelerator).product(
            matrix, "forward", random_entries(matrix, "forward", MANY_ROWS)
        )


@in_parts
def test_an_entry_that_is_altered_in_the_last_request_is_caught() -> None:
    matrix, accelerator = random_matrix(), InTurn()
    entries = random_entries(matrix, "forward", MANY_ROWS)
    engine = UnderPads(accelerator)
    engine.product(matrix, "forward", entries)
    accelerator.altered = 2 * len(accelerator.seen) - 1
    with pytest.raises(ProductAltered) as refused:
        engine.product(matrix, "forward", entries)
    assert refused.value.got is not None
    assert refused.value.got.startswith("1 of ")
    assert engine.spent.products == 1


if not COLLECTING:

    class Crooked(InGuest):
        """A dealer that adds something to what it deals: it would come out in the product."""

        def product(self, *asked: Any) -> Callable[[], torch.Tensor]:
            honest = super().product(*asked)
            return lambda: changed(2, 3, 5)(honest())


@altered
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_dealer_that_deals_falsely_is_caught_too(direction: Direction) -> None:
    matrix = random_matrix()
    engine = UnderPads(Watched(), supplier=Crooked(Float64()))
    with pytest.raises(ProductAltered):
        engine.product(matrix, direction, random_entries(matrix, direction))


@altered
def test_there_is_no_way_to_leave_the_check_out() -> None:
    for checks in (0, -1, 5):
        with pytest.raises(UsageError):
            UnderPads(Watched(), checks=checks)


@seen_by
def test_a_pool_begins_where_the_guest_stands_or_not_at_all(tmp_path: Path) -> None:
    matrix, secret = random_matrix(), draw_secret()
    ahead = {(matrix.digest, direction): 3 for direction in DIRECTIONS}
    write_pool(
        tmp_path / "pool", secret=secret, matrices=[matrix], rows=4, exact=Float64(), first=ahead
    )
    pool = Pool(tmp_path / "pool", secret)
    for first in (0, 2, 5):
        with pytest.raises(PadsRefused):
            pool.product(matrix, "forward", first, 3)
    pool.close()

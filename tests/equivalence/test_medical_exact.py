"""Ways of the medical benchmark: a sealed one equals its twin in the clear, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from collecting import COLLECTING
from variants import variants

from medical_split import divided
from sealtrain.training.data.order import Order

if not COLLECTING:
    import torch
    from medical_world import SETTINGS, collection, encoder, medical

    from medical_front import first_token_only
    from medical_ways import WAYS, cell

pytestmark = pytest.mark.long

SEALED = [
    "fedavg-sealed", "exact-sealed", "ffa-sealed", "split2", "split1", "ptuning-pads", "method1",
]  # fmt: skip


def test_no_sealed_way_is_left_out() -> None:
    assert [way for way, how in WAYS.items() if how.twin is not None] == SEALED


@pytest.mark.claim("C240")
@pytest.mark.parametrize("way", variants(SEALED, each_time=["exact-sealed"]))
def test_a_sealed_way_equals_its_twin_to_the_bit(way: str, tmp_path: Path) -> None:
    world = medical(tmp_path)
    twin = WAYS[way].twin
    assert twin is not None
    sealed, clear = (cell(name, world.task(name)) for name in (way, twin))
    assert sealed["states"] == clear["states"]
    assert sealed["at_records"] == clear["at_records"]
    other = cell(twin, world.task("other", seed=2))
    assert other["states"] != clear["states"]


@pytest.mark.nightly
def test_a_central_way_takes_the_steps_of_all_parties(tmp_path: Path) -> None:
    world = medical(tmp_path)
    federated, central = (cell(way, world.task(way)) for way in ("fedavg", "pooled"))
    assert federated["steps"] == SETTINGS.steps
    assert central["steps"] == 3 * SETTINGS.steps
    assert central["at_steps"]["stopped"] <= SETTINGS.steps < central["steps"]
    assert federated["at_steps"] == federated["at_records"]


@pytest.mark.nightly
@pytest.mark.claim("C241")
def test_test_records_choose_nothing(tmp_path: Path) -> None:
    world = medical(tmp_path)
    records = divided(collection)
    names = sorted({row["label"] for row in records.test})
    wrong = [
        row | {"label": names[(names.index(row["label"]) + 1) % len(names)]} for row in records.test
    ]
    honest = cell("fedavg", world.task("honest", records))
    swapped = cell("fedavg", world.task("swapped", replace(records, test=wrong)))
    assert swapped["states"] == honest["states"]
    for name in ("validation", "stopped"):
        assert swapped["at_records"][name] == honest["at_records"][name]


def test_records_of_a_central_way_come_up_equally_often_however_they_were_dealt_out(
    tmp_path: Path,
) -> None:
    records = divided(collection)
    task = medical(tmp_path).task("dealt", records, partition="dirichlet")
    sizes = [len(task.rows[name]) for name in task.names]
    assert max(sizes) > min(sizes)
    sources = task.sources(*task.names)
    order = Order(
        [source.dataset.batch_rows for source in sources],
        [source.weight for source in sources],
        seed=1,
    )
    assert order.epoch_rows() == len(records.train)


def test_the_kept_front_computes_what_the_whole_encoder_does(tmp_path: Path) -> None:
    whole, short = encoder().eval(), encoder().eval()
    short.load_state_dict(whole.state_dict())
    medical(tmp_path).front.put_in(short)
    ids = torch.randint(1000, 2000, (3, 9))
    mask = torch.ones_like(ids)
    ids[2, 6:], mask[2, 6:] = 0, 0
    with torch.no_grad():
        expected = whole(input_ids=ids, attention_mask=mask).logits
        got = short(input_ids=ids, attention_mask=mask).logits
    assert torch.allclose(got, expected, atol=1e-5)


def test_one_query_gives_what_all_queries_give_the_first_token() -> None:
    whole, short = encoder().eval(), encoder().eval()
    short.load_state_dict(whole.state_dict())
    first_token_only(short)
    ids = torch.randint(1000, 2000, (2, 7))
    with torch.no_grad():
        assert torch.allclose(short(input_ids=ids).logits, whole(input_ids=ids).logits, atol=1e-5)

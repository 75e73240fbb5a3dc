"""Ranks are forked in time or not at all, and a checkpoint fits the ranks it was made with."""

from __future__ import annotations

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.distributed.agreement import (
    add_up,
    deal_pieces,
    gather_states,
    own_states,
    same_for_all,
    to_first,
)
from sealtrain.training.distributed.ranks import RankPosition, gather_ranks, place
from sealtrain.training.distributed.sharded import choose_mesh

if not COLLECTING:
    import torch


def never() -> None:
    raise AssertionError


def test_one_rank_alone_needs_no_group() -> None:
    with gather_ranks(1, group=False, prepare=never, secure=never, work=lambda _: never()) as ranks:
        assert ranks.processes == ()
        assert place() == RankPosition(rank=0, world=1)
        assert place().leads
        with ranks.lead(None):
            assert not torch.distributed.is_initialized()


def test_what_one_rank_raises_is_raised() -> None:
    with (
        gather_ranks(1, group=False, prepare=never, secure=never, work=lambda _: never()) as ranks,
        pytest.raises(KeyError, match="row"),
        ranks.lead(None),
    ):
        raise KeyError("row")


def test_ranks_are_not_forked_once_pytorch_runs_threads() -> None:
    with (
        pytest.raises(UsageError, check=carries(check="ranks")),
        gather_ranks(2, group=True, prepare=never, secure=never, work=lambda _: never()),
    ):
        raise AssertionError


def test_alone_everything_is_ones_own() -> None:
    states = {"python": 1, "numpy": 1, "torch": 1}
    assert gather_states(states) is states
    assert own_states(states) is states
    assert to_first("x") == ["x"]
    assert same_for_all("x") == "x"
    assert deal_pieces("ab", lambda number, piece: (number, piece)) == [(0, "a"), (1, "b")]
    one = torch.ones(2)
    add_up([one])
    assert one.tolist() == [1.0, 1.0]


STATES = {"python": 1, "numpy": 1, "torch": 1}


def test_a_checkpoint_of_two_ranks_fits_one_only_where_that_was_approved() -> None:
    two = [STATES, STATES]
    with pytest.raises(CheckpointRefused, check=carries(check="ranks", got="2")):
        own_states(two)
    with pytest.raises(CheckpointRefused, check=carries(check="ranks", got="2")):
        own_states(two, {1, 4})
    assert own_states(two, {1, 2}) is None


@pytest.mark.claim("C153")
@pytest.mark.parametrize(
    "kept",
    [
        [STATES, {}],
        [STATES, None],
        [STATES, {"python": 1, "numpy": 1}],
        [STATES],
        [],
        {},
        None,
    ],
    ids=str,
)
def test_a_checkpoint_without_the_states_of_a_rank_is_refused(kept: object) -> None:
    with pytest.raises(CheckpointRefused):
        own_states(kept, {1, 2})


@pytest.mark.parametrize(
    ("strategy", "guests", "mesh"),
    [
        ("HYBRID_SHARD", 1, (8,)),
        ("HYBRID_SHARD", 4, (4, 2)),
        ("FULL_SHARD", 1, (8,)),
        ("FULL_SHARD", 4, (8,)),
    ],
)
def test_a_strategy_says_who_shares_a_model_out(
    strategy: str, guests: int, mesh: tuple[int, ...]
) -> None:
    assert choose_mesh(strategy, guests=guests, ranks=8) == mesh

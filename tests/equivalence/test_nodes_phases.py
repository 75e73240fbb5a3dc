"""Each phase in two nodes of one rank ends with the weights of one rank, as in one guest."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_compared import in_ranks, same_as_one_rank
from ranks_matrix import refusal
from ranks_world import PLAYS, evaluation, recipe_of, reopened, seal_all
from training_world import checkpoint_store, run, sources_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.claim("C743"),
]


@pytest.mark.parametrize("backend", ["trl", "fsdp"])
def test_every_phase_that_nodes_take_is_one_rank(backend: str, tmp_path: Path) -> None:
    """Over the wire, without keepers: those are in ``test_nodes_run.py``."""
    world = seal_all(tmp_path / "world")
    names = [
        name
        for name, play in PLAYS.items()
        if play.made is not evaluation and refusal(name, {"name": backend, "ranks": 2}) is None
    ]
    done = in_ranks(world, {"name": backend}, *names, timeout=1200, player="nodes_player")
    apart = {}
    for name in names:
        recipe = recipe_of(name)
        sources = sources_of(recipe, reopened(world, name))
        ran = run(recipe, sources, checkpoint_store(tmp_path / name), base_dir=world)
        try:
            same_as_one_rank(done[name], name, world, backend, ran)
        except AssertionError as error:  # all that differ, not the first
            apart[name] = str(error)
    assert not apart

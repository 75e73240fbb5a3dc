"""Activations of a public front give away nearly the whole text: only the channel hides them.

The attacker has what anybody has, the front of the model. It sees one record's activations as they
travel, and guesses tokens from left to right or each by itself: those whose own activations come
nearest. With no layer in front this is a look-up; with one it is a search over the vocabulary.
"""

from __future__ import annotations

import pytest
from collecting import COLLECTING

if not COLLECTING:
    import torch
    from cut_world import SHAPE, batch_of, model_of

    from sealtrain_together.cut.activations import Form, restore_row, rows_of
    from sealtrain_together.cut.cut import Front

pytestmark = pytest.mark.usefixtures("one_thread")

if not COLLECTING:
    WORDS = SHAPE["vocab_size"]


def seen(front: Front, ids: torch.Tensor, form: Form) -> torch.Tensor:
    """What whoever opens a message reads, (tokens, width)."""
    mask = torch.ones_like(ids)
    row = rows_of(front(ids, mask), mask, torch.zeros(len(ids)), form)[0]
    return restore_row(row, torch.float32)


def looked_up(front: Front, activations: torch.Tensor) -> torch.Tensor:
    """Each token by itself: the word whose activation at that place is nearest."""
    places = len(activations)
    table = torch.arange(WORDS)[:, None].expand(WORDS, places)
    words = front(table, torch.ones_like(table))
    nearest: torch.Tensor = (words - activations).norm(dim=2).argmin(0)
    return nearest


def searched(front: Front, activations: torch.Tensor) -> torch.Tensor:
    """From left to right: with causal attention an activation depends on earlier tokens only."""
    found = torch.zeros(1, 0, dtype=torch.int64)
    for place in range(len(activations)):
        tried = torch.cat([found.expand(WORDS, place), torch.arange(WORDS)[:, None]], 1)
        words = front(tried, torch.ones_like(tried))[:, place]
        nearest = (words - activations[place]).norm(dim=1).argmin()
        found = torch.cat([found, nearest[None, None]], 1)
    return found[0]


def share_recovered(ids: torch.Tensor, found: torch.Tensor) -> float:
    return float((ids[0] == found).float().mean())


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_embeddings_are_the_text(kind: str, form: Form) -> None:
    """layers: 0. Rounding for the wire hides nothing."""
    front = Front(model_of(kind), 0)
    ids = batch_of(kind, rows=1, tokens=32)["input_ids"]
    assert share_recovered(ids, looked_up(front, seen(front, ids, form))) == 1.0


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_decoders_activations_are_the_text_whatever_the_depth(layers: int) -> None:
    """Each token is found once those before it are: vocabulary times length calls of the front."""
    front = Front(model_of("llama"), layers)
    ids = batch_of("llama", rows=1, tokens=24)["input_ids"]
    assert share_recovered(ids, searched(front, seen(front, ids, "int8"))) == 1.0


def test_an_encoders_first_layer_hides_little() -> None:
    """layers: 1, without a search: attention mixes tokens, but each one's own part is largest."""
    front = Front(model_of("bert"), 1)
    ids = batch_of("bert", rows=1, tokens=32)["input_ids"]
    recovered = share_recovered(ids, looked_up(front, seen(front, ids, "int8")))
    assert recovered > 0.9 > 10 / WORDS

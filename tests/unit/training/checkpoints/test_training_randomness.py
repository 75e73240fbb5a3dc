"""Draws that follow from a label leave the generators where they were."""

from __future__ import annotations

from collecting import COLLECTING

from sealtrain.training.checkpoints.randomness import seeded

if not COLLECTING:
    import torch


def test_draws_under_a_label_are_its_own_and_move_no_generator_on() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with seeded("a"):
        first = torch.rand(3)
    with seeded("b"):
        other = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded("a"):
        assert torch.equal(torch.rand(3), first)
    assert not torch.equal(first, other)

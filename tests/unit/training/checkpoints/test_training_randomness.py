"""Draws that follow from a label leave the generators where they were."""

from __future__ import annotations

from collecting import COLLECTING

from sealtrain.training.checkpoints.randomness import seed_generators

if not COLLECTING:
    import torch


def test_draws_under_a_label_are_its_own_and_move_no_generator_on() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with seed_generators("a"):
        first = torch.rand(3)
    with seed_generators("b"):
        other = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seed_generators("a"):
        assert torch.equal(torch.rand(3), first)
    assert not torch.equal(first, other)

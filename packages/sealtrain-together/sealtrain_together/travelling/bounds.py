"""Bounds on what holders' data do to the model: noise that hides single sequences, cut movement.

**Privacy of sequences.** Gradients are taken for each sequence, cut to a norm, summed and noised by
the mechanism of ``training.privacy``. The schedule gives every sequence to one step of the run at
most, so what a run tells of it is one Gaussian mechanism, whatever the number of steps: no sampling
is assumed and none is accounted for. Adjacent are two runs in which one sequence of one holder's is
counted or counts as nothing. A sequence is a block of ``seq_len`` tokens as the holder lined them
up: what spans two blocks, or was put in twice, is hidden less.

**Bounded movement.** How far one chunk may move all weights together, L2. A chunk that goes
further is cut back to the bound and leaves the optimizer as it found it, so that no moments of it
steer what is learned from others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sealtrain.base.secret import Random

if TYPE_CHECKING:
    import torch

    from sealtrain.recipe.privacy import SequencePrivacy


def epsilon_spent(privacy: SequencePrivacy) -> float:
    """What a run spends of each holder that gave anything, at ``privacy.delta``."""
    from sealtrain.training.privacy.accounting import epsilon_of

    return epsilon_of(privacy.mechanism(), privacy.noise_multiplier, 1.0, 1)


class PrivateSteps:
    """Gives a model gradients that hide single sequences.

    Args:
        model: A causal language model; hooks are attached to it.
        privacy: How much they hide.
        sequences: Of one step.
        random: Source of the noise's secret, which is drawn once and never leaves.

    Raises:
        ModelInvalid: A layer mixes sequences.
    """

    def __init__(
        self,
        model: Any,
        privacy: SequencePrivacy,
        sequences: int,
        random: Random,
    ) -> None:
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.training.privacy.accounting import Plan
        from sealtrain.training.privacy.noise import NoiseSource
        from sealtrain.training.privacy.steps import RecordGradients

        plan = Plan(
            privacy=privacy.mechanism(),
            noise_multiplier=privacy.noise_multiplier,
            batch=sequences,
            steps=1,
            rates=(1.0,),
        )
        self._model = model
        self._given = 0
        self._gradients = RecordGradients(model, plan, NoiseSource(DataKey(random(32))))

    def backward(self, rows: torch.Tensor) -> None:
        """Leave the private gradient of a step in the model's parameters.

        Args:
            rows: Tokens, int64 (sequences, seq_len).
        """
        import torch

        from sealtrain.training.privacy.steps import record_losses

        # One row of positions for each sequence: gradients of position embeddings need it.
        positions = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape)
        losses = record_losses(
            self._model, {"input_ids": rows, "position_ids": positions, "labels": rows}, 0.0
        )
        with warnings.catch_warnings():
            # Hooks of the embeddings say that token numbers have no gradient.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            torch.autograd.backward(losses.sum())
        self._gradients.take(len(rows))
        # Counted here, not by the model: no noise comes twice, whatever state it went back to.
        self._gradients.give(step=self._given)
        self._given += 1


@contextmanager
def bound_moves(
    model: Any, optimizer: torch.optim.Optimizer, most: float
) -> Iterator[Callable[[], float]]:
    """Cut what the block moves the weights to a norm.

    Weights that are not finite afterwards go back to what they were.

    Args:
        model: Its parameters are looked at.
        optimizer: Its state goes back to what it was when the block went too far.
        most: L2 norm of the movement, > 0.

    Yields:
        A function that gives, after the block, the movement before it was cut; -1 for not finite.
    """
    import torch

    named = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    before = {name: parameter.detach().clone() for name, parameter in named}
    state = {
        parameter: {part: value.clone() for part, value in kept.items()}
        for parameter, kept in optimizer.state.items()
    }
    moved = 0.0

    def movement() -> float:
        return moved

    yield movement
    with torch.no_grad():
        squares = [
            (parameter.detach() - before[name]).double().square().sum() for name, parameter in named
        ]
        norm = float(torch.stack([square.cpu() for square in squares]).sum().sqrt())
        finite = norm < float("inf")
        moved = norm if finite else -1.0
        if finite and norm <= most:
            return
        for name, parameter in named:
            # Not ``before + 0 * movement``: nothing times not-a-number is not a number.
            parameter.copy_(
                torch.lerp(before[name], parameter, most / norm) if finite else before[name]
            )
        optimizer.state.clear()
        optimizer.state.update(state)

"""Gradient sharing: every holder computes on its part of each step, the lead adds up, all learn.

Each holder has an accelerator, the whole model and its optimizer. Of every step it computes the
gradient on ``batch_size / holders`` sequences of its own; the lead sends the mean to all, and each
takes the same step. One channel to each holder, one message each way for each step, float32.

A question is one byte and the mean of the step before, empty at first. ``g`` asks for the next
gradient: ``loss (float64) ‖ seconds of computing (float64) ‖ gradient``. ``s`` asks for the state.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sealtrain.errors import DataInvalid
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.travelling.parties import Progress
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.states import MAX_STATE_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sealtrain_together.channel.channel import AttestedChannel
    from sealtrain_together.travelling.holder import TokenSource
    from sealtrain_together.travelling.schedule import TravelPlan

    Gradient = NDArray[np.float32]

GRADIENT_PURPOSE = "share-gradient"
_HEAD = struct.Struct(">dd")
_GRADIENT, _STATE = b"g", b"s"


def gradient_steps(plan: TravelPlan) -> tuple[int, int]:
    """How many steps a plan has, and how many bytes of each holder a step reads.

    Raises:
        DataInvalid: A step cannot be dealt out evenly.
    """
    holders = len(plan.holders)
    sequences, rest = divmod(plan.program.batch_size, holders)
    if rest or not sequences:
        raise DataInvalid(
            "a step cannot be dealt out to the holders evenly",
            got=f"{plan.program.batch_size} sequences, {holders} holders",
        )
    share = sequences * plan.program.sequence_bytes
    return min(map(plan.limit, plan.holders)) // share, share


class GradientHolder:
    """A holder that computes gradients on its own data.

    Args:
        plan: Of the run.
        source: Its tokens.
        timer: Seconds.
    """

    def __init__(
        self,
        plan: TravelPlan,
        source: TokenSource,
        *,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        _, self._share = gradient_steps(plan)
        self._source = source
        self._timer = timer
        self._program = TravellingModel(plan.program)
        self._chunk = memoryview(bytearray(self._share))
        self._offset = 0

    def serve(self, channel: AttestedChannel) -> None:
        """Answer the lead until it ends the channel.

        Raises:
            DataInvalid: A mean is no gradient of this model, or the data are over.
            SealtrainError: As channels raise.
        """
        while (message := channel.receive(max_bytes=MAX_STATE_BYTES)) is not None:
            channel.send(self.answer(message))

    def answer(self, message: bytes) -> bytes:
        """One answer. Raises ``DataInvalid`` as ``serve``."""
        began = self._timer()
        if len(message) > 1:
            self._program.apply(message[1:])
        if message[:1] == _STATE:
            return self._program.state()
        if self._source.read_into(self._offset, self._chunk) != self._share:
            raise DataInvalid("the holder has no such tokens", got=self._offset)
        self._offset += self._share
        gradient, loss = self._program.gradient(self._chunk)
        return _HEAD.pack(loss, self._timer() - began) + gradient


def train_apart(
    channels: Mapping[str, AttestedChannel],
    steps: int,
    *,
    timer: Callable[[], float] = time.perf_counter,
) -> tuple[Progress, bytes]:
    """Lead: train so many steps.

    Args:
        channels: To each holder, by name.
        steps: Of ``gradient_steps``.
        timer: Seconds.

    Returns:
        ``training`` is the slowest holder's computing of each step, ``transfer`` the rest; and the
        state all holders end with.

    Raises:
        ChannelBroken: A holder answers something else than a gradient.
        DataInvalid: The holders end with different states.
    """
    progress, mean = Progress(), b""
    for _ in range(steps):
        began = timer()
        answers = [_computed(question) for question in _asked(channels, _GRADIENT + mean)]
        mean = _mean([gradient for _, _, gradient in answers])
        computing = max(seconds for _, seconds, _ in answers)
        progress.losses.append(sum(loss for loss, _, _ in answers) / len(answers))
        progress.training += computing
        progress.transfer += timer() - began - computing
    states = set(_asked(channels, _STATE + mean))
    if len(states) != 1:
        raise DataInvalid("the holders ended with different models", check="gradient")
    return progress, states.pop()


def _asked(channels: Mapping[str, AttestedChannel], question: bytes) -> list[bytes]:
    """Everybody's answers; all are asked before one is waited for."""
    for channel in channels.values():
        channel.send(question)
    answers = [channel.receive(max_bytes=MAX_STATE_BYTES) for channel in channels.values()]
    return [answer or b"" for answer in answers]


def _computed(answer: bytes) -> tuple[float, float, Gradient]:
    """Loss, seconds and gradient of an answer."""
    import numpy as np

    if len(answer) <= _HEAD.size or len(answer) % 4:
        raise ChannelBroken("a holder answers with no gradient", check="gradient")
    loss, seconds = _HEAD.unpack_from(answer)
    return loss, seconds, np.frombuffer(answer, dtype="<f4", offset=_HEAD.size)


def _mean(gradients: list[Gradient]) -> bytes:
    total = gradients[0]
    for gradient in gradients[1:]:
        if gradient.shape != total.shape:
            raise ChannelBroken(
                "holders answer with gradients of different models", check="gradient"
            )
        total = total + gradient
    return bytes((total / len(gradients)).astype("<f4").tobytes())

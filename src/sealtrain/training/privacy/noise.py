"""Noise from a cryptographic generator, reproducible for the same run and place.

Differential privacy needs noise that no reader of the model can predict or recompute. PyTorch's
generator is unfit: its state follows from a few hundred outputs, and the recipe names its seed.
Here bits are an AES-256-CTR key stream. The key is derived from the secret of the run; the place
(purpose, step, tensor) chooses the stream. So a resumed run draws the noise that the interrupted
run would have drawn, and a repeated step gets the same noise, which averaging cannot remove.
Callers make what is hidden part of the place: where it differs at all, so does the noise.

Floating-point numbers can betray what noise hides, because a sum ``value + noise`` has low bits
that few pairs could have made (Mironov 2012). Two measures, each enough against known attacks:

1. a normal number is the sum of four, halved: the low bits of a sum have too many origins to
   search (Holohan and Braghin 2021, as in the secure mode of Opacus);
2. ``gaussian_noise`` gives float64 numbers, and ``round_to_grid`` puts the noised sum on a grid far
   coarser than the last place of such a sum, far finer than the noise.

Counts get two-sided geometric noise, made of integers alone up to one comparison of logarithms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sealtrain.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sealtrain.sealing.datakey import DataKey

_SUMMANDS = 4
_GRID_BITS = 20
_BLOCK = 1 << 20


class NoiseSource:
    """Draws for one run. Equal secret and place give equal draws; others are independent."""

    def __init__(self, secret: DataKey) -> None:
        """Derive the source from the run's secret.

        Args:
            secret: 32 bytes that only this run has.
        """
        self._secret = secret

    def derive(self, purpose: str) -> NoiseSource:
        """An independent source for one purpose."""
        return NoiseSource(self._secret.derive(f"noise/{purpose}"))

    def words(self, count: int, *place: int | str) -> NDArray[np.uint64]:
        """Uniform 64-bit words, shape (count,).

        Args:
            count: How many, at least 0.
            place: Purpose of the words; each place must be used for one draw only.
        """
        import numpy as np

        if count < 0:
            raise UsageError("cannot draw a negative number of words", got=count)
        key = self._secret.derive("noise-stream", *map(str, place))
        stream = Cipher(algorithms.AES(key.reveal()), modes.CTR(bytes(16))).encryptor()
        drawn = np.empty(count, dtype="<u8")
        view = memoryview(drawn.view(np.uint8).data)
        zeros = bytes(min(_BLOCK, max(1, len(view))))
        for at in range(0, len(view), _BLOCK):
            size = min(_BLOCK, len(view) - at)
            view[at : at + size] = stream.update(zeros[:size])
        return drawn.astype(np.uint64, copy=False)

    def choose(self, threshold: NDArray[np.uint64], *place: int | str) -> NDArray[np.int64]:
        """Positions whose own coin chooses them, in ascending order.

        Args:
            threshold: Shape (n,); position ``i`` is chosen with probability
                ``threshold[i] / 2**64``.
            place: As for ``words``.
        """
        import numpy as np

        return np.flatnonzero(self.words(len(threshold), *place) < threshold).astype(np.int64)

    def gaussian_noise(
        self, count: int, deviation: float, *place: int | str
    ) -> NDArray[np.float64]:
        """Normal numbers of mean 0, float64, shape (count,).

        Args:
            deviation: Standard deviation, ≥ 0.
            place: As for ``words``.
        """
        import numpy as np

        pairs = (count + 1) // 2
        total = np.zeros(2 * pairs)
        for summand in range(_SUMMANDS):
            words = self.words(2 * pairs, "gaussian", summand, *place)
            # In (0, 1], so that the logarithm is finite; and in [0, 1).
            radius = np.sqrt(-2.0 * np.log(((words[:pairs] >> 11) + np.uint64(1)) * 2.0**-53))
            angle = (2.0 * math.pi * 2.0**-53) * (words[pairs:] >> 11)
            total[:pairs] += radius * np.cos(angle)
            total[pairs:] += radius * np.sin(angle)
        return total[:count] * (deviation / math.sqrt(_SUMMANDS))

    def geometric_noise(self, count: int, epsilon: float, *place: int | str) -> NDArray[np.int64]:
        """Integers ``k`` with probability proportional to ``exp(-epsilon * |k|)``, shape (count,).

        The difference of two geometric numbers; added to a count that one record changes by one,
        it makes the count ``epsilon``-differentially private.

        Args:
            epsilon: > 0.
            place: As for ``words``.
        """
        import numpy as np

        words = self.words(2 * count, "geometric", *place)
        uniform = ((words >> 11) + np.uint64(1)) * 2.0**-53
        waits: NDArray[np.int64] = np.floor(np.log(uniform) / -epsilon).astype(np.int64)
        difference: NDArray[np.int64] = waits[:count] - waits[count:]
        return difference


def round_to_grid(values: NDArray[np.float64], deviation: float) -> NDArray[np.float64]:
    """Noised values on a grid of ``2**-20`` deviations, so that no low bit reveals a summand.

    Args:
        values: Sum of data and noise.
        deviation: Of the noise; 0 leaves the values alone.
    """
    import numpy as np

    if deviation == 0:
        return values
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    return np.asarray(np.round(values / grid) * grid)

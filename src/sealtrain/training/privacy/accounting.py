"""The cost of private training: sampling rates, the noise they need, the epsilon they spend.

Adjacency is presence of one record; the number of records of each dataset is public, because its
signed manifest states it. A record of dataset ``i`` takes part in a step with probability
``rate_i = batch * weight_i / sum_j(weight_j * records_j)``, so each dataset has an epsilon of its
own and the largest is the run's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sealtrain.training.errors import PrivacyBroken

if TYPE_CHECKING:
    from sealtrain.recipe.privacy import PrivateSgd
    from sealtrain.training.data.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a run for one dataset.

    Attributes:
        sample_rate: Probability of a record to take part in a step.
        epsilon: Spent at the run's delta.
    """

    owner: str
    name: str
    records: int
    sample_rate: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the mechanism, fixed before the first step.

    Attributes:
        noise_multiplier: Deviation of the noise over ``max_grad_norm``.
        batch: Expected records in a step; the noised sum is divided by it.
        rates: Sampling rate of each source, in the order of the sources.
    """

    privacy: PrivateSgd
    noise_multiplier: float
    batch: int
    steps: int
    rates: tuple[float, ...]

    def costs(self, sources: Sequence[Source], steps: int) -> tuple[Cost, ...]:
        """The cost of ``steps`` steps for each source."""
        spent = {
            rate: epsilon_of(self.privacy, self.noise_multiplier, rate, steps)
            for rate in set(self.rates)
        }
        return tuple(
            Cost(
                owner=source.owner,
                name=source.name,
                records=sum(source.dataset.batch_rows),
                sample_rate=rate,
                epsilon=spent[rate],
            )
            for source, rate in zip(sources, self.rates, strict=True)
        )


def make_plan(privacy: PrivateSgd, sources: Sequence[Source], *, batch: int, steps: int) -> Plan:
    """Choose the noise, or check that the recipe's own noise keeps its promise.

    Args:
        privacy: The recipe's.
        sources: Training data.
        batch: Expected records in a step.
        steps: Optimizer steps at most.

    Raises:
        PrivacyBroken: The recipe's noise, or any noise, spends more than ``target_epsilon``; or a
            batch is as large as the data.
    """
    rates = sampling_rates(
        [(source.weight, sum(source.dataset.batch_rows)) for source in sources], batch
    )
    if max(rates) > 1:
        raise PrivacyBroken(
            "a step would take more records than a dataset has",
            check="sampling",
            got=f"a sampling rate of {max(rates):.3g}",
            expected="at most 1",
            hint="lower per_device_train_batch_size, or the weight of small datasets",
        )
    noise = privacy.noise_multiplier
    if noise is None:
        noise = smallest_noise(privacy, max(rates), steps)
    spent = epsilon_of(privacy, noise, max(rates), steps)
    if not spent <= privacy.target_epsilon:
        raise PrivacyBroken(
            "the recipe's noise spends more than target_epsilon",
            check="privacy.noise_multiplier",
            got=f"epsilon {spent:.4g}",
            expected=f"at most {privacy.target_epsilon:g}",
            hint="raise noise_multiplier or leave it out; or do fewer steps",
        )
    return Plan(privacy=privacy, noise_multiplier=noise, batch=batch, steps=steps, rates=rates)


def sampling_rates(sources: Sequence[tuple[float, int]], batch: int) -> tuple[float, ...]:
    """Probability of a record of each source to take part in a step.

    Args:
        sources: Weight and records of each.
        batch: Expected records in a step.
    """
    whole = sum(weight * count for weight, count in sources)
    return tuple(batch * weight / whole for weight, _ in sources)


def epsilon_of(privacy: PrivateSgd, noise: float, rate: float, steps: int) -> float:
    """Epsilon at the recipe's delta, by its accountant.

    Args:
        privacy: Names delta and accountant.
        noise: Noise multiplier.
        rate: Sampling rate, 0 to 1.
        steps: Steps done.
    """
    if steps == 0:
        return 0.0
    return _epsilon(privacy.accountant, privacy.delta, noise, rate, steps)


def smallest_noise(privacy: PrivateSgd, rate: float, steps: int) -> float:
    """Noise multiplier that keeps ``steps`` steps to the target epsilon.

    Args:
        privacy: Names target, delta and accountant.
        rate: Sampling rate, 0 to 1.
        steps: Optimizer steps at most.

    Raises:
        PrivacyBroken: No noise keeps to it.
    """
    try:
        return _noise(privacy.accountant, privacy.delta, privacy.target_epsilon, rate, steps)
    except ValueError:
        raise PrivacyBroken(
            "no noise keeps to so small an epsilon",
            check="privacy.target_epsilon",
            got=f"{privacy.target_epsilon:g}",
            hint="spend more, do fewer steps, or bring more records",
        ) from None


@lru_cache(maxsize=1024)  # seconds for many steps, and each answer is asked for again
def _epsilon(accountant: str, delta: float, noise: float, rate: float, steps: int) -> float:
    from opacus.accountants import create_accountant

    counting = create_accountant(mechanism=accountant)
    counting.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(counting.get_epsilon(delta=delta))


@lru_cache(maxsize=1024)
def _noise(accountant: str, delta: float, target: float, rate: float, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(
            get_noise_multiplier(
                target_epsilon=target,
                target_delta=delta,
                sample_rate=rate,
                steps=steps,
                accountant=accountant,
                epsilon_tolerance=min(0.02 * target, 0.1),
            )
        )

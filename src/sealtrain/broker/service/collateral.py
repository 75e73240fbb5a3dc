"""Collateral of the broker's own choosing, never a guest's.

The broker reads files anew for each decision: its operator renews them while it runs. It asks a
service at most once a day for a platform and caches the answer in the state folder.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.guest import load_gpu_collateral
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.tdx.cache import obtain_collateral, verify_platform
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.fetch import fetch_collateral, services_of
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.attest.tdx.tee import QuoteEvidence
from sealtrain.base.clock import Clock
from sealtrain.broker.config import BrokerConfig
from sealtrain.errors import ConfigError, EvidenceRefused, Unreachable

_SERVICE_SECONDS: Final = 5.0
"""Timeout of one answer: a guest waits for the decision."""


def guests_collateral(
    config: BrokerConfig, policy: AppraisalPolicy, clock: Clock, evidence: Evidence
) -> Collateral | None:
    """Collateral for one decision: a file as it is now, or a service behind a cache in the state.

    The broker fetches no collateral for evidence that the policy refuses without it.

    Raises:
        EvidenceRefused: The guest's quote is of no trusted root: the guest is at fault.
        Unreachable: The broker has no collateral to decide with: the guest is not at fault.
    """
    uri, shown = config.collateral, evidence.cpu
    expected = (policy.platform, policy.cpu.tee)
    if uri is None or (evidence.platform, shown.tee) != expected:
        return None
    if not isinstance(shown, QuoteEvidence):
        return None
    quote = parse_quote(shown.quote_bytes) if services_of(uri) else None
    if quote is not None:
        verify_platform(quote, policy.simulator_root)
    try:
        if quote is None:
            return load_collateral(uri)
        return obtain_collateral(
            config.state / "collateral",
            uri,
            quote,
            now=clock(),
            simulator_root=policy.simulator_root,
            fetch=partial(fetch_collateral, timeout=_SERVICE_SECONDS),
        )
    except (ConfigError, EvidenceRefused) as error:
        # The guest learns nothing of the broker's files and services.
        raise Unreachable("the broker has no collateral to decide with") from error


def gpu_collateral(config: BrokerConfig) -> GpuCollateral | None:
    """The same for guests' accelerators, from a file.

    Raises:
        Unreachable: It cannot be read.
    """
    try:
        return load_gpu_collateral(config.gpu_collateral)
    except (ConfigError, EvidenceRefused) as error:
        raise Unreachable("the broker's collateral for accelerators cannot be read") from error

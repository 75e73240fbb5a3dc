"""Collect evidence from a guest API: quote, log, deployment document, optional collateral."""

from __future__ import annotations

from typing import Literal

from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.parse import canonical_quote

__all__ = ["collect"]


def collect(
    client: DstackClient,
    report_data: bytes,
    *,
    platform: Literal["dstack", "simulator"],
    collateral_uri: str | None,
) -> Evidence:
    """Evidence of the guest behind ``client`` over ``report_data``.

    Args:
        client: The guest's API.
        report_data: 64 bytes, from ``attest.report_data.report_data``.
        platform: What this evidence is offered as.
        collateral_uri: ``file:PATH`` of collateral to carry along; ``None`` where the verifier
            brings its own, which it should for live decisions.

    Raises:
        GuestApiUnreachable: The agent does not answer.
        EvidenceMalformed: It answers with something else than evidence.
        QuoteInvalid: The quote has no plausible length.
        TrustInvalid: The collateral cannot be read.
    """
    info = client.info()
    answer = client.get_quote(report_data)
    return Evidence.build(
        platform=platform,
        quote=canonical_quote(answer.quote),
        event_log=answer.event_log,
        app_compose=info.app_compose,
        vm_config=answer.vm_config,
        collateral=None if collateral_uri is None else load_collateral(collateral_uri),
    )

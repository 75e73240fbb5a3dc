"""Collect evidence from a guest API: quote, log and the host's statement."""

from __future__ import annotations

from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.tdx.parse import canonical_quote
from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import to_base64

__all__ = ["collect"]


def collect(client: DstackClient, report_data: bytes) -> dict[str, JsonValue]:
    """What the guest behind ``client`` shows over ``report_data``.

    Args:
        client: The guest's API.
        report_data: 64 bytes, from ``attest.report_data``.

    Returns:
        Fields of ``attest.evidence.DstackEvidence`` but for the deployment document.

    Raises:
        GuestApiUnreachable: The agent does not answer.
        EvidenceMalformed: It answers with something else than evidence.
        QuoteInvalid: The quote has no plausible length.
    """
    answer = client.get_quote(report_data)
    return {
        "tee": "dstack",
        "quote": to_base64(canonical_quote(answer.quote)),
        "event_log": [entry.to_dict() for entry in answer.event_log],
        "vm_config": answer.vm_config,
    }

"""What a dstack guest shows: a TDX quote, and the log that replays to its registers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.statement import MAX_LOG_ENTRIES, LogEntry
from sealtrain.attest.tdx.evidence import QuoteEvidence

__all__ = ["DstackEvidence"]


class DstackEvidence(QuoteEvidence):
    """A dstack guest. ``vm_config`` is the host's unsigned statement, kept for the record."""

    tee: Literal["dstack"]
    event_log: Annotated[tuple[LogEntry, ...], Field(min_length=1, max_length=MAX_LOG_ENTRIES)]
    vm_config: Annotated[str, StringConstraints(max_length=64 << 10)] | None

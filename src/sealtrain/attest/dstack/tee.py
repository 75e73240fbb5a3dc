"""dstack on Intel TDX, for the rest of attest: a guest shows a quote and its event log."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.dstack.policy import RULES
from sealtrain.attest.statement import MAX_LOG_ENTRIES, LogEntry
from sealtrain.attest.tdx.tee import QuoteEvidence
from sealtrain.attest.tee import Tee


class AgentEvidence(QuoteEvidence):
    """A guest on TDX with dstack's agent. ``vm_config`` is the host's unsigned statement."""

    event_log: Annotated[tuple[LogEntry, ...], Field(min_length=1, max_length=MAX_LOG_ENTRIES)]
    vm_config: Annotated[str, StringConstraints(max_length=64 << 10)] | None


class DstackEvidence(AgentEvidence):
    """A dstack guest."""

    tee: Literal["dstack"]


TEE = Tee(
    name="dstack",
    vendor="intel",
    evidence=DstackEvidence,
    rules=RULES,
    kinds=("dstack-quote",),
)

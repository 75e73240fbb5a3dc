"""A dstack guest's quote and event log: verified line by line, explained field by field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim, Group, raising
from sealtrain.attest.dstack import appraise as dstack
from sealtrain.attest.dstack.policy import AgentPolicy, DstackPolicy
from sealtrain.attest.dstack.tee import DstackEvidence
from sealtrain.attest.dstack.verify import (
    LOG,
    MeasuredGuest,
    MeasuredQuote,
    describe_unmeasured,
    replay_log,
)
from sealtrain.attest.errors import PlatformMismatch
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import CPU, Field
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.statement import Collateral, LogEntry
from sealtrain.attest.tdx.exhibit import PINNED_ROOTS, quote_fields, quote_root, verify_signed_quote
from sealtrain.attest.tdx.parse import TdxQuote, canonical_quote, parse_quote
from sealtrain.attest.tdx.verify import QUOTE, VerifiedQuote
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier, verifier_of
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused

if TYPE_CHECKING:
    from sealtrain.attest.dstack.client import DstackClient

Joined = TypeVar("Joined", bound=MeasuredQuote)


@dataclass(frozen=True, slots=True, kw_only=True)
class DstackQuote(StatementExhibit):
    """A TDX quote with the event log of a dstack guest."""

    tee = "dstack"
    kind = "dstack-quote"
    title = "dstack guest: Intel TDX quote and event log"
    quote: TdxQuote
    log: tuple[LogEntry, ...]
    vm_config: str | None

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[MeasuredQuote]:
        """The quote's signature under collateral, and the log's replay."""
        signed = agent_quote(self.quote.raw, beside.collateral, at, DstackPolicy)
        return agent_facts(signed, self.log, MeasuredQuote.of)

    def fields(self, beside: Attachments) -> list[Field]:
        """Of quote, log and the host's statement."""
        return agent_fields(self.quote, self.log, self.vm_config)

    def root(self, beside: Attachments) -> bytes:
        """As the quote carries it."""
        return self.quote.root_der


def agent_quote(
    raw: bytes, collateral: Collateral | None, at: Situation, policy: type[AgentPolicy]
) -> VerifiedQuote:
    """The quote of a dstack guest whose signature holds.

    Args:
        raw: The quote.
        collateral: Intel's data about the platform.
        at: Policy, time, conversation.
        policy: The rules that this kind of guest is compared with.
    """
    rules = None if at.policy is None else at.policy.cpu
    return verify_signed_quote(raw, collateral, rules if isinstance(rules, policy) else None, at)


def agent_facts(
    signed: VerifiedQuote,
    log: tuple[LogEntry, ...],
    joined: Callable[[VerifiedQuote, MeasuredGuest], Joined],
    ties: tuple[Group, ...] = (),
) -> SignedFacts[Joined]:
    """A quote and the event log that replays to its registers.

    Args:
        log: The event log.
        joined: All that was signed, and what the guest measured, as one statement.
        ties: Of a second statement about the same guest, that it is of this quote and log.
    """
    facts: SignedFacts[Joined] = SignedFacts(
        statement=joined(signed, describe_unmeasured(log)),
        root=quote_root(signed),
        report_data=signed.report_data,
        source=QUOTE,
        document=None,
    )
    try:
        measured = replay_log(log, signed.quote.rtmr, signed.quote.mr_config_id)
    except EvidenceRefused as error:
        return replace(facts, ties=(*ties, raising(error)))
    return replace(
        facts,
        statement=joined(signed, measured),
        document=MeasuredDocument(got=measured.compose_hash, source=LOG),
        ties=(*ties, _replays),
        app_id=measured.app_id,
        instance_id=measured.instance_id,
        key_provider=measured.key_provider,
    )


def _replays() -> tuple[Claim, ...]:
    said = "replays to the quote's registers"
    return (Claim(name=LOG, got=said, expected=said, source=QUOTE, outcome="equal"),)


def log_fields(log: tuple[LogEntry, ...], part: str = CPU) -> list[Field]:
    """Every event: firmware's counted, the running system's one by one."""
    found: list[Field] = []
    for register in range(3):
        count = sum(entry.imr == register for entry in log)
        if count:
            found.append(
                Field(
                    part=part,
                    name=f"events of RTMR{register}",
                    value=f"{count} digests",
                    meaning="What the firmware measured; only its digests are covered.",
                )
            )
    for entry in log:
        if entry.imr == 3:
            meaning = _EVENTS.get(entry.event, "An event of the app; counts for nothing here.")
            value = entry.event_payload or "(empty)"
            name = f"event {entry.event!r}"
            found.append(Field(part=part, name=name, value=value, meaning=meaning))
    return found


def agent_fields(quote: TdxQuote, log: tuple[LogEntry, ...], config: str | None) -> list[Field]:
    """Of quote, log and the host's statement."""
    return [*quote_fields(quote), *log_fields(log), *_host_fields(config)]


def _host_fields(config: str | None) -> list[Field]:
    """The host's statement about the machine, where there is one."""
    if config is None:
        return []
    told = "What the host says of the machine; it is not signed."
    return [Field(part=CPU, name="host's statement", value=config, meaning=told)]


_EVENTS = {
    "system-preparing": "The system begins to measure itself.",
    "app-id": "Names the app; its keys hang on it.",
    "compose-hash": "SHA-256 of the deployment document.",
    "instance-id": "Names this one guest.",
    "boot-mr-done": "Measurements of the boot are complete.",
    "mr-kms": "Measurement of the key service that gave the keys.",
    "os-image-hash": "The OS image, as the key provider told the guest.",
    "key-provider": "Who gave the guest its keys: JSON with a name and an id.",
    "gpu-policy-hash": "SHA-256 of the rules for accelerators.",
    "storage-fs": "File system of the guest's disk.",
    "system-ready": "From here on the app measures; later events count for nothing.",
}


def _prove(
    evidence: DstackEvidence, beside: Attachments, at: Situation
) -> SignedFacts[MeasuredQuote]:
    signed = agent_quote(evidence.quote_bytes, beside.collateral, at, DstackPolicy)
    return agent_facts(signed, evidence.event_log, MeasuredQuote.of)


def _own_fields(evidence: DstackEvidence) -> list[Field]:
    return agent_fields(parse_quote(evidence.quote_bytes), evidence.event_log, evidence.vm_config)


def _show(place: Path, report_data: bytes) -> tuple[StatementExhibit, Attachments]:
    """The agent's statement; on a rented machine in the form of its kind."""
    from sealtrain.attest.dstack.client import DstackClient  # an HTTP client: a verifier loads none

    client = DstackClient(str(place))
    found = client.get_statement(report_data)
    if found is not None and found.kind != "tdx":
        show = verifier_of(f"dstack-{found.kind}").show
        return show(place, report_data)
    answer = client.get_quote(report_data)
    raw = canonical_quote(answer.quote)
    shown = DstackQuote(
        raw=raw, quote=parse_quote(raw), log=answer.event_log, vm_config=answer.vm_config
    )
    return shown, Attachments()


def _ask_agent(client: DstackClient, report_data: bytes) -> Shown:
    """Evidence in the form of whichever kind of machine the agent runs on."""
    found = client.get_statement(report_data)
    if found is not None and found.kind == "nitro-enclave":
        raise PlatformMismatch(
            "dstack measures no deployment document in an enclave: such a guest is no evidence",
            check="platform",
            got=found.kind,
            expected="dstack on a machine of another kind, or platform nitro",
            hint="run an image whose init extends PCR16, and ask /dev/nsm: --platform nitro",
        )
    if found is not None and found.kind != "tdx":
        shown = verifier_of(f"dstack-{found.kind}").of_agent
        if shown is not None:
            return shown(found)
    if found is not None:
        return _write_shown(found.statement, found.log, found.config)
    answer = client.get_quote(report_data)
    return _write_shown(answer.quote, answer.event_log, answer.vm_config)


def _write_shown(quote: bytes, log: tuple[LogEntry, ...], config: str | None) -> Shown:
    return {
        "tee": "dstack",
        "quote": to_base64(canonical_quote(quote)),
        "event_log": [entry.to_dict() for entry in log],
        "vm_config": config,
    }


VERIFIER: Verifier[DstackEvidence, DstackPolicy, MeasuredQuote] = Verifier(
    prove=_prove,
    form=DstackPolicy,
    rules=dstack.RULES,
    eat=dstack.eat,
    fields=_own_fields,
    show=_show,
    pinned_roots=PINNED_ROOTS,
    ask_agent=_ask_agent,
)

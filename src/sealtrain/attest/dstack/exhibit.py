"""A dstack guest's quote and event log: verified line by line, explained field by field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim, Group, single, unlooked
from sealtrain.attest.dstack import appraise as dstack
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.dstack.policy import AgentPolicy, DstackPolicy
from sealtrain.attest.dstack.tee import DstackEvidence
from sealtrain.attest.dstack.verify import (
    LOG,
    MeasuredGuest,
    MeasuredQuote,
    replay_log,
    shows_firmware,
)
from sealtrain.attest.field import CPU, Field
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.part import (
    Part,
    Proven,
    Situation,
    bound_groups,
    compose_groups,
    guest_part,
    raising,
)
from sealtrain.attest.statement import Collateral, LogEntry
from sealtrain.attest.tdx import appraise as tdx
from sealtrain.attest.tdx.exhibit import PINNED_ROOTS, proven_quote, quote_fields, signed_quote
from sealtrain.attest.tdx.parse import TdxQuote, canonical_quote, parse_quote
from sealtrain.attest.tdx.verify import QUOTE, VerifiedQuote
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier, verifier_of
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused, PlatformMismatch

__all__ = ["VERIFIER", "Companion", "DstackQuote", "agent_fields", "agent_part", "log_fields"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DstackQuote(StatementExhibit):
    """A TDX quote with the event log of a dstack guest."""

    tee = "dstack"
    kind = "dstack-quote"
    title = "dstack guest: Intel TDX quote and event log"
    quote: TdxQuote
    log: tuple[LogEntry, ...]
    vm_config: str | None

    def part(self, beside: Attachments, at: Situation) -> Part:
        """The quote's signature under collateral, the log's replay, then their lines."""
        return agent_part(self.quote.raw, self.log, beside.collateral, at)

    def fields(self, beside: Attachments) -> list[Field]:
        """Of quote, log and the host's statement."""
        return agent_fields(self.quote, self.log, self.vm_config)

    def root(self, beside: Attachments) -> bytes:
        """As the quote carries it."""
        return self.quote.root_der


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A second statement about the same guest, whose signature leads to a root as well.

    Attributes:
        bound: That it is of this quote and log; compared before anything is said of the guest.
        lines: What the policy asks of it.
        joined: Both statements as one.
    """

    bound: tuple[Group, ...]
    lines: tuple[Group, ...]
    joined: Callable[[VerifiedQuote, MeasuredGuest], MeasuredQuote]


def agent_part(
    raw: bytes,
    log: tuple[LogEntry, ...],
    collateral: Collateral | None,
    at: Situation,
    *,
    policy: type[AgentPolicy] = DstackPolicy,
    second: Callable[[Situation], Companion] | None = None,
) -> Part:
    """A TDX quote and the event log that replays to its registers.

    Args:
        raw: The quote.
        log: The event log.
        collateral: Intel's data about the platform.
        at: Policy, time, conversation.
        policy: The rules that this kind of guest is compared with.
        second: Leads a second statement to its root, where the kind has one; raises
            ``EvidenceRefused`` where it does not hold.
    """

    def prove() -> Proven:
        rules = None if at.policy is None else at.policy.cpu
        own = rules if isinstance(rules, policy) else None
        signed = signed_quote(raw, collateral, own, at)
        companion = None if second is None else second(at)
        names = tdx.eat(signed)
        groups: list[Group] = []
        if own is not None:
            logged = shows_firmware(log)
            groups += map(single, tdx.checks_of(signed, own, at.now, logged=logged))
        bound: list[Group] = []
        replayed = groups if at.shown_compose is None else bound
        lines: tuple[Group, ...] = ()
        if companion is not None:
            replayed += companion.bound
            lines = companion.lines
        found: VerifiedQuote = signed
        ids = None
        try:
            measured = replay_log(log, signed.quote.rtmr, signed.quote.mr_config_id)
        except EvidenceRefused as error:
            replayed.append(raising(error))
            groups += lines
        else:
            replayed.append(_replays)
            bound += bound_groups(at, measured.compose_hash, LOG, lambda digest: digest)
            groups += _measured(measured, own, lines, at)
            image = measured.os_image_hash
            names |= {} if image is None else {"swversion": image}
            ids = measured.ids
            if companion is None:
                found = MeasuredQuote.of(signed, measured)
            else:
                found = companion.joined(signed, measured)
        return proven_quote(found, names, groups, bound, ids)

    return guest_part(prove, at)


def _replays() -> tuple[Claim, ...]:
    said = "replays to the quote's registers"
    return (Claim(name=LOG, got=said, expected=said, source=QUOTE, outcome="equal"),)


def _measured(
    measured: MeasuredGuest,
    rules: AgentPolicy | None,
    lines: tuple[Group, ...],
    at: Situation,
) -> list[Group]:
    """What was measured, then the second statement's lines: the order of decisions."""
    groups: list[Group] = []
    if rules is not None:
        groups += map(single, dstack.measured_checks(measured, rules))
    groups += lines
    groups += compose_groups(at, measured.compose_hash, LOG, lambda digest: digest)
    groups.append(single(partial(unlooked, "app id", measured.app_id, source=LOG)))
    return groups


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


def _own_part(evidence: DstackEvidence, beside: Attachments, at: Situation) -> Part:
    return agent_part(evidence.quote_bytes, evidence.event_log, beside.collateral, at)


def _own_fields(evidence: DstackEvidence) -> list[Field]:
    return agent_fields(parse_quote(evidence.quote_bytes), evidence.event_log, evidence.vm_config)


def _show(place: Path, report_data: bytes) -> tuple[StatementExhibit, Attachments]:
    """The agent's statement; on a rented machine in the form of its kind."""
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
        return _shown(found.statement, found.log, found.config)
    answer = client.get_quote(report_data)
    return _shown(answer.quote, answer.event_log, answer.vm_config)


def _shown(quote: bytes, log: tuple[LogEntry, ...], config: str | None) -> Shown:
    return {
        "tee": "dstack",
        "quote": to_base64(canonical_quote(quote)),
        "event_log": [entry.to_dict() for entry in log],
        "vm_config": config,
    }


VERIFIER = Verifier(
    checks=dstack.checks_of,
    eat=dstack.eat,
    part=_own_part,
    fields=_own_fields,
    show=_show,
    pinned_roots=PINNED_ROOTS,
    ask_agent=_ask_agent,
)

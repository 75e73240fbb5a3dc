"""dstack's attestations of SEV-SNP guests and Nitro enclaves: the platform's statement, wrapped.

The wrapper proves nothing. Report and document are verified and appraised as those of bare guests
(``attest.snp``, ``attest.nitro``), under a policy of that TEE. What dstack adds is compared, too:

1. Report data beside the statement are those that it signed.
2. HOST_DATA of a report commits to ``mr_config``, and its ``compose_hash`` names the deployment
   document. An enclave has no such text: its document is in its image, so PCR0 to 2 stand for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import Field as Limit
from pydantic import StringConstraints

from sealtrain.attest.bundle import Beside
from sealtrain.attest.claims import Claim, Group, single, unlooked
from sealtrain.attest.dstack.parse import AgentStatement
from sealtrain.attest.field import Field, rows_of
from sealtrain.attest.forms import Statement
from sealtrain.attest.nitro.exhibit import document_fields, document_part
from sealtrain.attest.nitro.parse import NitroDocument, parse_document
from sealtrain.attest.nitro.verify import SOURCE as DOCUMENT
from sealtrain.attest.part import (
    Part,
    Situation,
    Vouched,
    committed,
    compose_groups,
    raising,
    report_data_group,
)
from sealtrain.attest.snp.collect import parse_table
from sealtrain.attest.snp.exhibit import report_chain, report_fields, report_part
from sealtrain.attest.snp.parse import SnpReport, parse_report
from sealtrain.attest.snp.verify import REPORT
from sealtrain.base.canonical import parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.errors import (
    ComposeHashMismatch,
    DataInvalid,
    EvidenceMalformed,
    EvidenceRefused,
)

__all__ = ["DstackEnclave", "DstackSnp", "hosted_exhibit", "image_hash", "launch_commitment"]

_DOMAIN = b"dstack-mr-config-v3:\0"
_MAX_CONFIG_BYTES = 64 << 10

_Hex40 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
_Octets = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})*$", max_length=4096)]


class _LaunchConfig(StrictModel):
    """What dstack's host sets at launch, version 3; absent fields pin nothing."""

    version: Literal[3] = 3
    app_id: _Hex40 | None = None
    compose_hash: Hex64
    gpu_policy_hash: Hex64 | None = None
    key_provider: Literal["none", "local", "kms", "tpm"]
    key_provider_id: _Octets | None = None
    instance_id: _Hex40 | None = None
    init_script_hashes: Annotated[tuple[Hex64, ...], Limit(max_length=256)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DstackSnp(Statement):
    """A SEV-SNP report in a dstack attestation."""

    tee = "snp"
    kind = "snp-report"
    title = "dstack guest: AMD SEV-SNP report and launch configuration"
    report: SnpReport
    hosted: AgentStatement

    def part(self, beside: Beside, at: Situation) -> Part:
        """The report's signature and lines, then what dstack adds."""
        return Part(name="cpu0", verify=partial(self._verify, beside, at))

    def _verify(self, beside: Beside, at: Situation) -> Vouched:
        certificates = _certificates(self.report, self.hosted, beside)
        launched = partial(_configured, self.hosted)
        raw = self.hosted.statement
        return report_part(raw, certificates, beside.crl, at, launched=launched).verify()

    def fields(self, beside: Beside) -> list[Field]:
        """Those of the report, and what stands beside it."""
        told = "What the host set at launch; HOST_DATA commits to it."
        rows = [("launch configuration", self.hosted.mr_config, told)]
        found = report_fields(self.report, _known(self.report, self.hosted, beside) or ())
        return [*found, *rows_of(rows), *_host_fields(self.hosted)]

    def root(self, beside: Beside) -> bytes:
        """The last certificate of its chain."""
        return _certificates(self.report, self.hosted, beside)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DstackEnclave(Statement):
    """A Nitro document in a dstack attestation."""

    tee = "nitro"
    kind = "nitro-document"
    title = "dstack guest: AWS Nitro attestation document"
    document: NitroDocument
    hosted: AgentStatement

    def part(self, beside: Beside, at: Situation) -> Part:
        """The document's signature and lines; report data are its user data."""
        return document_part(self.hosted.statement, at, asked=partial(_asked, self.hosted))

    def fields(self, beside: Beside) -> list[Field]:
        """Those of the document, and what stands beside it."""
        return [*document_fields(self.document), *_host_fields(self.hosted)]

    def root(self, beside: Beside) -> bytes:
        """As the document carries it."""
        return self.document.cabundle[0]


def hosted_exhibit(blob: bytes, found: AgentStatement) -> DstackSnp | DstackEnclave | None:
    """The file that holds a statement of these machines; ``None`` of another kind.

    Raises:
        EvidenceMalformed: The document is malformed.
        QuoteInvalid: The report is.
    """
    if found.kind == "sev-snp":
        return DstackSnp(raw=blob, report=parse_report(found.statement), hosted=found)
    if found.kind == "nitro-enclave":
        return DstackEnclave(raw=blob, document=parse_document(found.statement), hosted=found)
    return None


def launch_commitment(mr_config: str) -> bytes:
    """HOST_DATA of a guest that was launched with this text, 32 bytes."""
    return hashlib.sha256(_DOMAIN + mr_config.encode("utf-8")).digest()


def image_hash(document: NitroDocument) -> str:
    """An enclave's image as dstack names it: SHA-256 of PCR0 to PCR2, hex."""
    return sha256_hex(b"".join(document.pcrs[index] for index in (0, 1, 2)))


def _certificates(report: SnpReport, hosted: AgentStatement, beside: Beside) -> tuple[bytes, ...]:
    """Of the attestation, one table or single certificates, and those beside it."""
    inside = hosted.certificates
    table = parse_table(inside[0]) if len(inside) == 1 else {}
    return report_chain(report, table, inside if len(inside) > 1 else (), beside.certificates)


def _known(report: SnpReport, hosted: AgentStatement, beside: Beside) -> tuple[bytes, ...] | None:
    try:
        return _certificates(report, hosted, beside)
    except EvidenceRefused:
        return None


def _configured(hosted: AgentStatement, report: SnpReport, at: Situation) -> Iterator[Group]:
    """HOST_DATA through the text that it commits to, then report data beside the report."""
    try:
        claim, config = _launch_config(report, hosted.mr_config)
    except EvidenceRefused as error:
        yield raising(error)
    else:
        yield lambda: (claim,)
        yield from compose_groups(at, config.compose_hash, REPORT, lambda digest: digest)
        provider = config.key_provider_id or config.key_provider
        for name, value in (("app id", config.app_id or "not pinned"), ("key provider", provider)):
            yield single(partial(unlooked, name, value, source=REPORT))
    yield _stated(hosted, report.report_data, REPORT)


def _launch_config(report: SnpReport, text: str) -> tuple[Claim, _LaunchConfig]:
    expected, got = launch_commitment(text).hex(), report.host_data.hex()
    if got != expected:
        raise ComposeHashMismatch(
            "HOST_DATA commits to another launch configuration than the attestation shows",
            check="launch configuration",
            got=got,
            expected=expected,
            hint="show the text that the host launched the guest with, byte for byte",
        )
    try:
        value = parse_json(text.encode("utf-8"), max_bytes=_MAX_CONFIG_BYTES, max_depth=4)
    except DataInvalid as error:
        raise EvidenceMalformed(
            "launch configuration is not JSON", check="launch configuration"
        ) from error
    config = load_model(_LaunchConfig, value, EvidenceMalformed, "launch configuration")
    claim = Claim(
        name="launch configuration", got=got, expected=expected, source=REPORT, outcome="equal"
    )
    return claim, config


def _asked(hosted: AgentStatement, document: NitroDocument, at: Situation) -> Iterator[Group]:
    """The conversation of a dstack enclave, and its image as dstack names it."""
    yield single(partial(unlooked, "OS image", image_hash(document), source=DOCUMENT))
    yield _stated(hosted, document.user_data, DOCUMENT)
    yield report_data_group(at, document.user_data, DOCUMENT)


def _stated(hosted: AgentStatement, signed: bytes | None, source: str) -> Group:
    """Report data that the attestation shows are those that were signed."""
    return single(partial(committed, "report data", hosted.report_data, signed, source))


def _host_fields(hosted: AgentStatement) -> Iterator[Field]:
    told = "What the host says of the machine; it is not signed."
    yield from rows_of([("host's statement", hosted.config, told)])

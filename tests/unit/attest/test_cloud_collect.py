"""Evidence of TPM, processor and metadata service of a cloud's machine, all played here."""

from __future__ import annotations

import hashlib
import json
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from soft_tpm import PKI, SoftTpm

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.cloudtpm.collect import (
    HCL_INDEX,
    KEY_HANDLE,
    collect_azure,
    collect_google_snp,
)
from sealtrain.attest.errors import (
    CollateralUnreachable,
    EvidenceMalformed,
    GuestApiUnreachable,
    QuoteInvalid,
    ReportDataMismatch,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.facts import Situation
from sealtrain.attest.tpm.device import Tpm
from sealtrain.attest.verifier import verifier_of
from sealtrain_rehearsal.simulator.cloud_machines import Paravisor
from sealtrain_rehearsal.simulator.snp import SimulatedSnp
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm

pytestmark = pytest.mark.claim("C718")

NOW = 1_800_000_000
ASKED = bytes(range(64))
COMPOSE = b"{}"
DEVICE = Path("/dev/tpmrm0")
KINDS = {"snp": 2, "tdx": 4}
KEY = rsa.generate_private_key(65537, 2048)
PARAVISOR = Paravisor(KEY)
SNP = SimulatedSnp(b"seed of the test" * 2)


def signed_for() -> bytes:
    return hashlib.sha256(PARAVISOR.runtime).digest().ljust(64, b"\0")


def hcl(kind: str, report: bytes) -> bytes:
    """What the paravisor keeps in the TPM, around a report."""
    runtime = PARAVISOR.runtime
    size = 20 + len(runtime)
    head = struct.pack("<4sIIII12x", b"HCLA", 1, 32 + 1184 + size, 2, 0)
    data = struct.pack("<5I", size, 1, KINDS[kind], 1, len(runtime)) + runtime
    return head + report.ljust(1184, b"\0") + data


def td_report() -> bytes:
    return bytes(0x80) + signed_for() + bytes(1024 - 0xC0)


class Machine:
    """A machine on Azure: its TPM and its metadata service."""

    def __init__(self, kind: str, indexes: dict[int, bytes] | None = None) -> None:
        report = (
            SNP.report(signed_for(), COMPOSE, host_data=bytes(32)) if kind == "snp" else td_report()
        )
        held = {HCL_INDEX: hcl(kind, report)}
        self.soft = SoftTpm(held if indexes is None else indexes, simulated=SimulatedTpm(PARAVISOR))
        self.soft.simulated.extend(14, COMPOSE)
        self.asked: list[str] = []
        leaf, issuer, root = (
            x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM).decode("ascii")
            for der in SNP.certificates()
        )
        self.answers: dict[str, Any] = {
            "/metadata/THIM/amd/certification": {
                "vcekCert": leaf,
                "certificateChain": issuer + root,
                "tcbm": "DB18000000000004",
            },
            "/acc/tdquote": {"quote": coded(PKI.quote(signed_for()))},
        }

    @contextmanager
    def tpm(self, device: Path) -> Iterator[Tpm]:
        assert device == DEVICE
        yield Tpm(self.soft.transmit)

    def ask(self, path: str, content: bytes | None) -> bytes:
        self.asked.append(path)
        if path == "/acc/tdquote":
            assert content is not None
            text = json.loads(content)["report"]
            assert urlsafe_b64decode(text + "==") == td_report()
        answer = self.answers[path]
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def coded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def collected(kind: str, machine: Machine, options: dict[str, str] | None = None) -> Any:
    return collect_azure(kind, DEVICE, ASKED, options or {}, ask=machine.ask, tpm=machine.tpm)


def proven(tee: str, platform: Any, shown: Any, root: bytes, collateral: Any = None) -> Any:
    evidence = Evidence.build(platform, app_compose=COMPOSE, **shown)
    assert evidence.cpu.tee == tee
    at = Situation(
        policy=None,
        root=root,
        now=NOW,
        nonce=ASKED,
        compose_hashes=(),
        app_id=None,
        every_line=True,
    )
    beside = Attachments(collateral=collateral)
    return verifier_of(tee).prove(evidence.cpu, beside, at)


def test_azure_snp_shows_the_paravisors_report_and_a_fresh_quote() -> None:
    machine = Machine("snp")
    shown = collected("snp", machine)
    found = proven("azure-snp", "snp", shown, SNP.root_der)
    assert found.report_data == ASKED
    assert found.statement.place.vm_id == PARAVISOR.vm_id
    assert machine.soft.keys == [KEY_HANDLE]
    register = hashlib.sha256(bytes(32) + hashlib.sha256(COMPOSE).digest()).hexdigest()
    assert found.document.got == register


def test_azure_tdx_has_its_report_quoted_by_the_metadata_service() -> None:
    shown = collected("tdx", Machine("tdx"))
    found = proven("azure-tdx", "tdx", shown, PKI.root_der, PKI.collateral(NOW))
    assert found.report_data == ASKED


def test_certificates_at_hand_are_not_asked_for(tmp_path: Path) -> None:
    for number, der in enumerate(SNP.certificates()):
        (tmp_path / f"{number}.der").write_bytes(der)
    machine = Machine("snp")
    shown = collected("snp", machine, {"certificates": str(tmp_path)})
    assert not machine.asked
    proven("azure-snp", "snp", shown, SNP.root_der)


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_without_a_paravisor_is_no_confidential_one(kind: str) -> None:
    with pytest.raises(GuestApiUnreachable):
        collected(kind, Machine(kind, {}))


def test_a_machine_of_the_other_processor_is_named() -> None:
    with pytest.raises(GuestApiUnreachable) as caught:
        collected("tdx", Machine("snp"))
    assert (caught.value.got, caught.value.expected) == ("snp", "tdx")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: b"HCLB" + raw[4:],
        lambda raw: raw + b"\1",
        lambda raw: bytes(len(raw)),
        lambda raw: raw * 8,
    ],
)
def test_a_report_of_another_form_is_refused(spoil: Any) -> None:
    held = {HCL_INDEX: spoil(Machine("snp").soft.indexes[HCL_INDEX])}
    with pytest.raises(EvidenceMalformed):
        collected("snp", Machine("snp", held))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"vcekCert": 1, "certificateChain": ""}',
        b"[" * 9000,
        b'{"vcekCert": "x", "certificateChain": "y"}',
    ],
)
def test_a_metadata_service_that_talks_nonsense_is_refused(answer: bytes) -> None:
    machine = Machine("snp")
    machine.answers["/metadata/THIM/amd/certification"] = answer
    with pytest.raises(EvidenceMalformed):
        collected("snp", machine)


def test_a_metadata_service_without_the_issuer_is_refused() -> None:
    machine = Machine("snp")
    told = machine.answers["/metadata/THIM/amd/certification"]
    told["certificateChain"] = told["vcekCert"]
    with pytest.raises(CollateralUnreachable):
        collected("snp", machine)


def test_a_quote_of_another_report_is_refused() -> None:
    machine = Machine("tdx")
    machine.answers["/acc/tdquote"] = {"quote": coded(PKI.quote(bytes(64)))}
    with pytest.raises(ReportDataMismatch):
        collected("tdx", machine)
    machine.answers["/acc/tdquote"] = {"quote": coded(b"no quote")}
    with pytest.raises(QuoteInvalid):
        collected("tdx", machine)
    machine.answers["/acc/tdquote"] = {"quote": "~"}
    with pytest.raises((EvidenceMalformed, QuoteInvalid)):
        collected("tdx", machine)


def test_a_host_that_replays_the_quote_of_another_conversation_is_refused() -> None:
    """The report of a paravisor never changes: only the TPM's quote is fresh."""
    machine = Machine("snp")
    before = collected("snp", machine)
    after = collect_azure("snp", DEVICE, ASKED[::-1], {}, ask=machine.ask, tpm=machine.tpm)
    after["tpm"] = before["tpm"]
    with pytest.raises(ReportDataMismatch):
        proven("azure-snp", "snp", after, SNP.root_der)


# --- Google ---------------------------------------------------------------------------------------


class Reports:
    """configfs of a SEV-SNP guest whose host hands out no certificates."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def make(self, path: Path) -> None:
        self.held = {"generation": b"0\n", "provider": b"sev_guest\n", "auxblob": b""}

    def write(self, path: Path, data: bytes) -> None:
        self.held |= {path.name: data, "generation": b"1\n"}

    def read(self, path: Path) -> bytes:
        if path.name == "outblob":
            return SNP.report(self.held["inblob"], COMPOSE, host_data=bytes(32))
        return self.held[path.name]

    def remove(self, path: Path) -> None:
        self.held = {}


def google(folder: Path, *, issuers: bool = True) -> tuple[SoftTpm, dict[str, str]]:
    for number, der in enumerate(SNP.certificates()):
        (folder / f"{number}.der").write_bytes(der)
    soft = SoftTpm(simulated=SimulatedTpm(SNP, machine=SimulatedMachine()))
    soft.simulated.extend(14, COMPOSE)
    if not issuers:
        soft.indexes[0x01C10002] = soft.simulated.certificates[0]
    return soft, {"certificates": str(folder), "tpm": str(DEVICE)}


def test_google_snp_ties_the_tpms_quote_to_the_report(tmp_path: Path) -> None:
    soft, options = google(tmp_path)

    @contextmanager
    def tpm(device: Path) -> Iterator[Tpm]:
        assert device == DEVICE
        yield Tpm(soft.transmit)

    shown: Any = collect_google_snp(tmp_path, ASKED, options, folders=Reports(), tpm=tpm)
    found = proven("gcp-snp", "snp", shown, SNP.root_der)
    assert found.report_data == ASKED
    # A quote that was made for another report is of another machine or moment.
    later: Any = collect_google_snp(tmp_path, ASKED[::-1], options, folders=Reports(), tpm=tpm)
    with pytest.raises(ReportDataMismatch):
        proven("gcp-snp", "snp", {**shown, "tpm": later["tpm"]}, SNP.root_der)


def test_issuers_of_googles_key_come_from_its_store_alone(tmp_path: Path) -> None:
    soft, options = google(tmp_path, issuers=False)

    @contextmanager
    def tpm(device: Path) -> Iterator[Tpm]:
        yield Tpm(soft.transmit)

    with pytest.raises(CollateralUnreachable):  # the simulated leaf names no place of Google's
        collect_google_snp(
            tmp_path, ASKED, options, folders=Reports(), tpm=tpm, fetch=lambda url: b""
        )

"""Whoever makes evidence chooses every byte of it: whatever they choose ends in a refusal.

A forged algorithm, version or form is no better than a forged signature, and the exit code says so:
3, never 5, which is for files that somebody at this machine has to correct. And no choice costs the
verifier more memory or time than a document of honest size does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import cbor2
import nvidia_world as vendor
import pytest
from exhibit_world import accepted, exhibit_of, gpu_rules, nitro_rules, snp_rules, tdx_rules
from gpu_world import NONCE, machine, nvat_file

from sealtrain.attest.bundle import Attachments, Bundle
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    PlatformMismatch,
    QuoteInvalid,
    RemoteVerdictRefused,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine, make_bundle, unwrap_bundle
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.nvidia.collateral import GpuCollateral, RemoteVerdict
from sealtrain.attest.policy import policy_from_dict
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid, EvidenceRefused, FormatUnknown, LimitExceeded, Refused

pytestmark = [pytest.mark.long, pytest.mark.claim("C117")]

LATE = 1_800_000_000


def refused(data: bytes, policy: dict[str, Any], beside: Attachments | None = None) -> Refused:
    """How a file ends under a policy: it must be a refusal, from whichever step."""
    rules = policy_from_dict(policy)

    def judge() -> None:
        inner, kept = unwrap_bundle(recognise(data), beside or Attachments())
        examine(inner, kept, rules, LATE)

    with pytest.raises(Refused) as ended:
        judge()
    assert ended.value.exit_code == 3
    return ended.value


# --- Algorithms -----------------------------------------------------------------------------------

HEADERS = {
    "ES256": cbor2.dumps({1: -7}),
    "EdDSA": cbor2.dumps({1: -8}),
    "HMAC": cbor2.dumps({1: 5}),
    "ES384 as text": cbor2.dumps({1: "ES384"}),
    "none": cbor2.dumps({}),
    "empty": b"",
    "critical": cbor2.dumps({1: -35, 2: ["x"]}),
    "long": cbor2.dumps({1: -35, 4: b"k" * 100}),
    "null": cbor2.dumps(None),
}


@pytest.mark.negative(30)
@pytest.mark.parametrize("header", HEADERS)
def test_a_forged_algorithm_of_a_nitro_document_is_a_refusal(shared: Path, header: str) -> None:
    raw = (shared / "vectors/nitro/prod_2025_pubkey.cose").read_bytes()
    _, unprotected, payload, signature = cbor2.loads(raw)
    forged = cbor2.dumps([HEADERS[header], unprotected, payload, signature])
    tags = (b"", b"\xd2", b"\xd1", b"\xd8\x62", b"\xd8\x12")
    for form in (*(tag + forged for tag in tags), forged.hex().encode(), b64encode(forged)):
        assert isinstance(refused(form, nitro_rules()), EvidenceMalformed)


@pytest.mark.negative(30)
def test_the_algorithm_in_the_other_header_is_a_refusal(shared: Path) -> None:
    raw = (shared / "vectors/nitro/prod_2025_pubkey.cose").read_bytes()
    protected, _, payload, signature = cbor2.loads(raw)
    for forged in (
        [protected, {1: -35}, payload, signature],
        [b"", {1: -35}, payload, signature],
        [protected, {}, payload],
        [protected, {}, payload, signature, b""],
    ):
        assert isinstance(refused(cbor2.dumps(forged), nitro_rules()), EvidenceMalformed)


def token(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "None", "kid": "nv-eat-kid-test-1"},
        {"alg": "HS256", "kid": "nv-eat-kid-test-1"},
        {"alg": "ES256", "kid": "nv-eat-kid-test-1"},
        {"alg": ["ES384"], "kid": "nv-eat-kid-test-1"},
        {"alg": {"ES384": 1}, "kid": "nv-eat-kid-test-1"},
        {"alg": None, "kid": {"a": 1}},
        {"alg": "ES384", "kid": ["nv-eat-kid-test-1"]},
        {"alg": "ES384", "kid": "nv-eat-kid-test-1", "jwk": {"kty": "EC"}},
        {"alg": "ES384", "kid": "nv-eat-kid-test-1", "crit": ["b64"], "b64": False},
        {},
    ],
    ids=json.dumps,
)
def test_a_forged_algorithm_of_a_verdict_is_a_refusal(header: dict[str, Any]) -> None:
    service = vendor.Service()
    honest = json.loads(service.verdict({"GPU-0": vendor.device_claims()}).token)
    claims = {"x-nvidia-ver": "3.0", "x-nvidia-overall-att-result": True, **vendor.common()}
    for signature in (b"", bytes(96)):
        forged = token(header, claims, signature)
        for answer in (
            [["JWT", forged], honest[1]],
            [honest[0], {"GPU-0": forged}],
            {"detached_eat": [["JWT", forged], honest[1]]},
        ):
            text = json.dumps(answer)
            inner = text if isinstance(answer, list) else json.dumps(answer["detached_eat"])
            archived = GpuCollateral.build(
                rims={}, ocsp=(), nras=RemoteVerdict(token=inner, jwks=service.jwks)
            )
            beside = Attachments(nonce=vendor.NONCE, gpu_collateral=archived)
            rules = gpu_rules(nras="require")
            assert isinstance(refused(text.encode(), rules, beside), RemoteVerdictRefused)
            explain(recognise(text.encode()), beside, policy_from_dict(rules), LATE)


@pytest.mark.parametrize(
    "answer",
    [
        [["JWT"], {}],
        [["JWT", 1], {"GPU-0": "x"}],
        [["JWT", "x"], {}],
        [["jwt", "x"], {"GPU-0": "x"}],
        [[], []],
        {"detached_eat": None},
        {"detached_eat": {"JWT": "x"}},
    ],
    ids=json.dumps,
)
def test_a_verdict_of_another_form_is_a_refusal(answer: Any) -> None:
    assert isinstance(refused(json.dumps(answer).encode(), gpu_rules()), RemoteVerdictRefused)


@pytest.mark.negative(24)
def test_a_forged_kind_of_key_or_version_of_a_quote_is_a_refusal(shared: Path) -> None:
    raw = (shared / "vectors/tdx/tdx_quote").read_bytes()
    for at, value, error in (
        (2, 3, QuoteInvalid),  # ECDSA P-384
        (2, 0, QuoteInvalid),
        (0, 6, QuoteInvalid),
        (0, 1, QuoteInvalid),
        (0, 3, PlatformMismatch),
        (4, 0x82, PlatformMismatch),
        (4, 0, PlatformMismatch),
    ):
        forged = raw[:at] + bytes([value]) + raw[at + 1 :]
        for form in (forged, forged.hex().encode()):
            assert isinstance(refused(form, tdx_rules()), error), (at, value)


@pytest.mark.negative(38)
def test_a_forged_algorithm_of_a_report_is_a_refusal(shared: Path) -> None:
    raw = (shared / "vectors/sev-snp/genoa_azure_v3.report.bin").read_bytes()
    for at, value in ((0x34, 0), (0x34, 2), (0x48, 0x1C), (0, 1), (0, 7), (0, 0x2F)):
        forged = raw[:at] + bytes([value]) + raw[at + 1 :]
        assert isinstance(refused(forged, snp_rules("Genoa", (0, 0, 0, 0))), QuoteInvalid)


@pytest.mark.negative(42)
def test_a_forged_request_of_a_gpu_report_is_a_refusal(shared: Path) -> None:
    raw = (shared / "vectors/nvidia/hopper_535.report.bin").read_bytes()
    for at, value in ((2, 0), (2, 2), (3, 0), (37, 0x12), (38, 0x61), (45, 0)):
        forged = raw[:at] + bytes([value]) + raw[at + 1 :]
        assert refused(forged, gpu_rules()).code == "gpu-report-invalid", at


# --- Forms ----------------------------------------------------------------------------------------


def test_evidence_that_is_not_strict_json_is_a_refusal() -> None:
    text = nvat_file(machine().evidence(NONCE).devices).decode()
    for forged in (
        text[:-1],
        text.replace('"arch"', '"arch": "HOPPER", "arch"', 1),
        text.replace('"HOPPER"', "NaN", 1),
        text.replace('"HOPPER"', '"\\ud800"', 1),
        text.replace('"HOPPER"', "[" * 40 + "]" * 40, 1),
        text.replace('"HOPPER"', "1e999", 1),
        text + "x",
        "{" + text,
        '{"version": 2, "version": 2, "platform": "tdx", "cpu": {}}',
        '{"attestation": "00"}',
        '{"attestation": "zz"}',
        '{"attestation": 7}',
        '{"quote": 7, "event_log": 7}',
        '{"quote": "00", "event_log": []}',
    ):
        assert isinstance(refused(forged.encode(), gpu_rules()), EvidenceRefused), forged[:80]
    # Bytes that no text encoding has, where text is expected.
    assert isinstance(refused(b'{"version": "\xff"}', gpu_rules()), EvidenceMalformed)


def test_certificates_and_attestations_that_cannot_be_read_are_refusals() -> None:
    assert isinstance(
        refused(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", gpu_rules()),
        CertificateChainInvalid,
    )
    many = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" * 100_000
    assert isinstance(refused(many, gpu_rules()), CertificateChainInvalid)
    for variant in (2, 3):  # dstack on another processor
        other = bytes([0, variant]) + bytes(100)
        assert isinstance(refused(other, tdx_rules()), EvidenceMalformed)


def test_a_certificate_with_broken_evidence_in_it_is_a_refusal_and_not_just_a_certificate() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    from sealtrain_rehearsal.simulator.gpu_pki import GpuPki

    signed = GpuPki(b"a key for one certificate").root
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "guest")])
    first, last = signed.certificate.not_valid_before_utc, signed.certificate.not_valid_after_utc
    for number in (1, 2, 8):
        builder = x509.CertificateBuilder(name, name, signed.key.public_key(), 7, first, last)
        oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.62397.1.{number}")
        builder = builder.add_extension(
            x509.UnrecognizedExtension(oid, b"\x04\x03abc"), critical=False
        )
        der = builder.sign(signed.key, hashes.SHA384()).public_bytes(Encoding.DER)
        assert isinstance(refused(der, tdx_rules()), EvidenceMalformed)


def test_a_bundle_of_anything_else_is_a_refusal(shared: Path) -> None:
    one = next(real for real in accepted(shared) if real.file == "nitro/prod_2025_pubkey.cose")
    exhibit = exhibit_of(shared, one.file)
    document = make_bundle(exhibit, one.beside(shared), one.rules(), one.at).to_dict()
    root = (shared / "vectors/nitro/aws_nitro_root_g1.pem").read_bytes()
    for inner in (b"nothing at all", root, b'{"k256_key": "00"}', b"\0" * 100, b"{}"):
        forged = canonical_json({**document, "evidence": to_base64(inner)})
        assert isinstance(refused(forged, one.policy), EvidenceMalformed)
    again = Bundle.from_dict(document).to_bytes()
    nested = canonical_json({**document, "evidence": to_base64(again)})
    assert isinstance(refused(nested, one.policy), EvidenceMalformed)


def test_keys_that_come_in_a_bundle_vouch_for_no_verdict() -> None:
    """Whoever makes a bundle could put keys of their own beside a verdict of their own."""
    service = vendor.Service("an attacker's key")
    verdict = service.verdict({"GPU-0": vendor.device_claims()})
    archived = GpuCollateral.build(rims={}, ocsp=(), nras=verdict)
    policy = policy_from_dict(gpu_rules())
    exhibit = recognise(verdict.token.encode())
    beside = Attachments(nonce=vendor.NONCE, gpu_collateral=archived)
    made = make_bundle(exhibit, beside, policy, vendor.NOW)  # its maker trusts these keys
    inner, kept = unwrap_bundle(recognise(made.to_bytes()), Attachments())
    with pytest.raises(RemoteVerdictRefused):
        examine(inner, kept, policy, vendor.NOW)
    # Somebody who archived the keys names them, and it counts.
    inner, kept = unwrap_bundle(recognise(made.to_bytes()), Attachments(gpu_collateral=archived))
    assert examine(inner, kept, policy, vendor.NOW).compared


def test_files_of_this_machine_are_still_data() -> None:
    """Whoever names the wrong file has to correct it: nobody is refused."""
    for data in (b"", b"plain words", b"\x89PNG\r\n\x1a\n" + bytes(100), b'{"a": 1}', b"[]"):
        with pytest.raises(FormatUnknown):
            recognise(data)
    for data in (b'{"k256_key": "00"}', b"-----BEGIN PRIVATE KEY-----\n"):
        with pytest.raises(DataInvalid):
            recognise(data)


# --- Size -----------------------------------------------------------------------------------------


@pytest.mark.negative(31)
def test_a_document_of_too_many_values_is_refused_before_any_is_built() -> None:
    for data in (
        b"[" + b"{}," * 70_000 + b"{}]",
        b"[" + b"0," * 70_000 + b"0]",
        b'{"a":[' + b"[]," * 70_000 + b"[]]}",
        b"{" + b",".join(b'"%d":0' % number for number in range(70_000)) + b"}",
    ):
        assert isinstance(refused(data, gpu_rules()), EvidenceMalformed)
        with pytest.raises(LimitExceeded):
            parse_json(data, max_values=65_536)
        with pytest.raises(EvidenceMalformed):
            Evidence.from_bytes(data)


HOSTILE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from sealtrain.attest.bundle import Attachments, Bundle
from sealtrain.attest.dstack.msgpack import unpack
from sealtrain.attest.dstack.parse import parse_event_log
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import MAX_FILE_BYTES, recognise
from sealtrain.attest.nvidia.collateral import GpuCollateral, RemoteVerdict
from sealtrain.attest.nvidia.nras import verify_remote_verdict
from sealtrain.attest.nvidia.parse import GpuEvidence, from_nvat
from sealtrain.base.canonical import parse_json
from sealtrain.errors import SealtrainError

def verdict(data):
    text = data.decode("latin-1")[:200_000]
    given = RemoteVerdict(token=text, jwks=text)
    verify_remote_verdict(given, nonce=bytes(32), gpu_count=1, now=1)

length = MAX_FILE_BYTES - 64
many = length // 4
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
bombs = [
    # A string that never ends, each of whose quotes could be taken for another's beginning.
    lambda: b'["' + b'\\\\"' * (length // 2),
    lambda: b'{"version": 2, "x": "' + b'\\\\"' * (length // 2 - 20),
    lambda: b"[" * length,
    lambda: b"[[" + b"[]," * (length // 3) + b"[]]]",
    lambda: b"[" + b"{}," * (length // 3) + b"{}]",
    lambda: b"{" + b",".join(b'"%d":0' % number for number in range(length // 12)) + b"}",
    lambda: b"[" + b"1e9," * many + b"0]",
    lambda: b'{"a":' * (length // 5),
    lambda: b"\\xdf" + many.to_bytes(4, "big") + b"\\xa1a\\xc0" * 1000,
    lambda: b"\\x91" * (1 << 20),
    lambda: b"\\xdd" + (1 << 31).to_bytes(4, "big") + b"\\x90" * (1 << 20),
    lambda: b"\\x84\\x5b" + b"\\xff" * 8 + bytes(1 << 20),
    lambda: b"\\x9f" * (1 << 20),
]
readers = [
    recognise, Evidence.from_bytes, Bundle.from_bytes, GpuEvidence.from_bytes, from_nvat,
    GpuCollateral.from_bytes, unpack, verdict, parse_json,
    lambda data: parse_event_log(data.decode("latin-1")),
]
for build in bombs:
    bomb = build()
    for read in readers:
        try:
            read(bomb)
        except SealtrainError:
            continue
        except MemoryError:
            sys.exit(f"{read} has no memory for {bomb[:20]!r}")
        sys.exit(f"accepted {bomb[:20]!r}")
print("all refused")
"""


@pytest.mark.negative(31)
def test_no_document_takes_memory_or_time_without_bounds() -> None:
    """A gigabyte of address space and a minute of a processor for all of them together."""
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all refused\n"), done.stderr[-2000:]

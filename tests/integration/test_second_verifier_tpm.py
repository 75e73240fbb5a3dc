"""The JavaScript verifier says of a vTPM what ours says: real quotes, RSA, every part altered."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier
from node_judges import judge
from public_evidence import published
from second_evidence import EvidenceQuestion, compare_codes

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.nitro.parse import NITRO_TPM, parse_document
from sealtrain.attest.presets import preset
from sealtrain.attest.tpm.chain import MACHINE_OID
from sealtrain.attest.tpm.form import TpmShown, verify_tpm
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm, tpms_attest

pytestmark = [pytest.mark.claim("C170"), pytest.mark.claim("C401"), pytest.mark.timeout(300)]

DRIVER = Path(__file__).resolve().parents[1] / "support/second_tpm.mjs"
NOW = 1_780_000_000
Shown = dict[str, Any]


def shown_of(
    message: bytes, signature: bytes, values: dict[int, bytes], chain: tuple[bytes, ...]
) -> Shown:
    return {
        "message": to_base64(message),
        "signature": to_base64(signature),
        "registers": [{"index": i, "value": values[i].hex()} for i in sorted(values)],
        "certificates": [to_base64(certificate) for certificate in chain],
        "events": [],
    }


def ours(shown: Shown, root: bytes | None, now: int) -> str:
    try:
        form = load_model(TpmShown, shown, EvidenceMalformed, "TPM quote")
        machine = verify_tpm(form, simulator_root=root, now=now).machine
    except EvidenceRefused as error:
        return error.code
    return f"accepted {machine.zone} {machine.project} {machine.instance_id}"


def compare(asked: list[tuple[str, Shown, bytes | None, int]]) -> Counter[str]:
    """Both verifiers' answers, which must be the same; how many there are of each."""
    lines = [
        json.dumps({"shown": shown, "root": None if root is None else to_base64(root), "now": now})
        for _, shown, root, now in asked
    ]
    theirs = judge(DRIVER, lines, seconds=240)
    said = [ours(shown, root, now) for _, shown, root, now in asked]
    differ = [
        (asked[i][0], value, other)
        for i, (value, other) in enumerate(zip(said, theirs, strict=True))
        if value != other
    ]
    assert differ == []
    return Counter(text.partition(" ")[0] for text in said)


def altered(shown: Shown, step: int) -> Iterator[tuple[str, Shown]]:
    """One bit of each part is another; parts are missing, doubled or exchanged."""
    for field in ("message", "signature"):
        raw = base64.b64decode(shown[field])
        for at in range(0, len(raw), 1 if field == "message" else step):
            changed = bytearray(raw)
            changed[at] ^= 1
            yield f"{field} byte {at}", shown | {field: to_base64(bytes(changed))}
        yield f"{field} short", shown | {field: to_base64(raw[:-1])}
        yield f"{field} long", shown | {field: to_base64(raw + b"\0")}
    for place, text in enumerate(shown["certificates"]):
        raw = base64.b64decode(text)
        for at in range(0, len(raw), step):
            changed, other = bytearray(raw), copy.deepcopy(shown)
            changed[at] ^= 1
            other["certificates"][place] = to_base64(bytes(changed))
            yield f"certificate {place} byte {at}", other
    for name in ("certificates", "registers"):
        yield f"{name} reversed", shown | {name: shown[name][::-1]}
        yield f"{name} short", shown | {name: shown[name][:-1]}
        yield f"{name} one", shown | {name: shown[name][:1]}
    one = copy.deepcopy(shown)
    one["registers"][0]["value"] = "11" * (len(one["registers"][0]["value"]) // 2)
    yield "another register", one
    for index, digest in ((0, "22" * 32), (23, "22" * 32), (0, "22" * 48), (24, "22" * 32)):
        yield f"event of {index}", shown | {"events": [{"index": index, "digest": digest}]}


def asked_of(
    shown: Shown, root: bytes | None, step: int
) -> list[tuple[str, Shown, bytes | None, int]]:
    other = SimulatedPki(b"another vendor, simulated").root_der
    return [
        ("as it is", shown, root, NOW),
        ("before", shown, root, 1),
        ("after", shown, root, 10_000_000_000),
        ("under another root", shown, other if root is None else None, NOW),
        *((label, case, root, NOW) for label, case in altered(shown, step)),
    ]


@pytest.mark.parametrize("tee", ["TDX", "SEV-SNP"])
def test_real_quotes_of_google_end_alike(tee: str) -> None:
    document = json.loads(published(f"the vTPM of a Google machine with {tee}"))
    part = document["attestation"]["tpm"]["ecc_p256"]
    halves = decode_dss_signature(bytes.fromhex(part["signature"]))
    signature = b"\0\x18\0\x0b" + b"".join(
        struct.pack(">H", 32) + half.to_bytes(32, "big") for half in halves
    )
    pem = document["attestation"]["gcp"]["ak_cert_chain"].encode("ascii")
    chain = tuple(
        certificate.public_bytes(Encoding.DER)
        for certificate in x509.load_pem_x509_certificates(pem)
    )
    values = {int(i): bytes.fromhex(value) for i, value in document["pcrs"]["sha256"].items()}
    shown = shown_of(bytes.fromhex(part["attest_data"]), signature, values, chain)
    counted = compare(asked_of(shown, None, 9))
    assert counted["accepted"] == 1
    assert counted["certificate-chain-invalid"] > 100


def test_simulated_quotes_end_alike() -> None:
    pki = SimulatedPki(b"vTPMs for two verifiers, simulated")
    asked = []
    for machine in (SimulatedMachine(), SimulatedMachine(production=False, instance_id=1 << 63)):
        for bank in ("sha256", "sha384"):
            tpm = SimulatedTpm(pki, machine=machine)
            message, signature = tpm.quote(b"nonce", bank=bank, selection=(0, 2, 14))
            values = {i: tpm.registers(bank)[i] for i in (0, 2, 14)}
            asked += asked_of(
                shown_of(message, signature, values, tpm.certificates), pki.root_der, 17
            )
    counted = compare(asked)
    assert counted["accepted"] == 2
    assert counted["debug-guest"] >= 2
    assert counted["simulated-evidence"] == 4


def rsa_chain(machine: bytes) -> tuple[rsa.RSAPrivateKey, tuple[bytes, ...]]:
    """An attestation key on RSA under authorities on RSA, as Google's are."""
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(3)]
    names = ["SIMULATED vTPM", "SIMULATED EK/AK CA Intermediate", "SIMULATED EK/AK CA Root"]
    made = []
    for place, (key, name) in enumerate(zip(keys, names, strict=True)):
        above = min(place + 1, 2)
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "crl_sign",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        builder = (
            x509.CertificateBuilder(_name(names[above]), _name(name), key.public_key(), place + 1)
            .not_valid_before(datetime(2024, 1, 1, tzinfo=UTC))
            .not_valid_after(datetime(2122, 1, 1, tzinfo=UTC))
            .add_extension(x509.BasicConstraints(ca=place > 0, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=place == 0, key_cert_sign=place > 0, **usage),
                critical=True,
            )
        )
        if place == 0:
            value = x509.UnrecognizedExtension(ObjectIdentifier(MACHINE_OID), machine)
            builder = builder.add_extension(value, critical=False)
        signed = builder.sign(keys[above], hashes.SHA256())
        made.append(signed.public_bytes(Encoding.DER))
    return keys[0], tuple(made)


def test_keys_and_authorities_on_rsa_end_alike() -> None:
    """What Google's authorities are, and what Azure's vTPM signs with."""
    key, chain = rsa_chain(SimulatedMachine().der())
    values = {index: hashlib.sha256(bytes([index])).digest() for index in range(24)}
    message = tpms_attest(b"nonce", list(values.values()), "sha256", range(24))
    signed = key.sign(message, padding.PKCS1v15(), hashes.SHA256())
    signature = struct.pack(">HHH", 0x14, 0x0B, len(signed)) + signed
    counted = compare(asked_of(shown_of(message, signature, values, chain), chain[-1], 11))
    assert counted["accepted"] == 1
    assert counted["quote-invalid"] > 20


def test_a_real_nitro_tpm_ends_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """No real instance measured our log: what holds is refused for that alone."""
    published_json = json.loads(published("a NitroTPM without Secure Boot"))
    raw = bytes.fromhex(published_json["attestation"]["nitro"]["document"])
    made = parse_document(raw, NITRO_TPM).timestamp_ms // 1000
    event = {"imr": 3, "event_type": 0x08000001, "digest": "", "event": "app-id"}
    policy: Any = preset("dstack-aws-nitro-tpm").to_dict()
    policy["cpu"]["boots"] = [
        {f"pcr{i}": published_json["pcrs"]["sha384"][str(i)] for i in (4, 7, 12)}
    ]

    def question(label: str, data: bytes, now: int) -> EvidenceQuestion:
        cpu = {
            "tee": "dstack-aws-nitro-tpm",
            "document": to_base64(data),
            "event_log": [{**event, "event_payload": "00", "version": 1}],
            "app_compose": "{}",
            "vm_config": None,
        }
        document = {"version": 2, "platform": "dstack", "cpu": cpu, "gpu": None}
        document |= {"collateral": None, "gpu_collateral": None}
        return EvidenceQuestion(label=label, document=document, policy=policy, now=now)

    asked = [question(f"at {now}", raw, now) for now in (made - 9, made, made + 60, made + 99999)]
    for at in range(0, len(raw), 11):
        changed = bytearray(raw)
        changed[at] ^= 1
        asked.append(question(f"bit of byte {at}", bytes(changed), made))
    counted = compare_codes(asked, capsys)
    assert counted["event-log-mismatch"] >= 2
    assert "accepted" not in counted


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@pytest.mark.claim("C562")
@pytest.mark.parametrize("product", ["Genoa", "Milan"])
def test_a_real_machine_of_azure_ends_alike(
    product: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chip, paravisor's key and quote hold; its nonce is of no conversation of ours."""
    shown: Any = recognise(published(f"an Azure machine with SEV-SNP, {product}"))
    authorities = x509.load_pem_x509_certificates(published(f"AMD's authorities of {product}"))
    chain = [
        *shown.inside,
        *(authority.public_bytes(Encoding.DER) for authority in authorities[:2]),
    ]
    policy: Any = preset("azure-snp").to_dict()
    policy["cpu"]["revocation"] = "any"
    cpu = {
        "tee": "azure-snp",
        "report": to_base64(shown.report.raw),
        "certificates": [to_base64(certificate) for certificate in chain],
        "crl": None,
        "runtime": shown.runtime.text.decode("ascii"),
        "tpm": shown.tpm.to_dict(),
        "report_data": "00" * 64,
        "app_compose": "{}",
    }
    document = {
        "version": 2,
        "platform": "snp",
        "cpu": cpu,
        "gpu": None,
        "collateral": None,
        "gpu_collateral": None,
    }
    asked = [EvidenceQuestion(label="as it is", document=document, policy=policy, now=NOW)]
    for register in (0, 14, 23):
        other = copy.deepcopy(document)
        other["cpu"]["tpm"]["registers"][register]["value"] = "11" * 32  # type: ignore[index]
        asked.append(
            EvidenceQuestion(label=f"PCR {register}", document=other, policy=policy, now=NOW)
        )
    runtime = shown.runtime.text.decode("ascii").replace("true", "false", 1)
    other = {**document, "cpu": {**cpu, "runtime": runtime}}
    asked.append(EvidenceQuestion(label="runtime data", document=other, policy=policy, now=NOW))
    assert compare_codes(asked, capsys) == {"report-data-mismatch": 2, "measurement-mismatch": 3}

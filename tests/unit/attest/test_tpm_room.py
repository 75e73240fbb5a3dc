"""TPM 2.0: quotes, attestation keys, boot logs and HCL reports of simulated machines."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tpm_world import ACTION, BOOT, NO_ACTION, SEPARATOR, Entry, boot_log, hcl_report

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    DebugGuest,
    EventLogMismatch,
    EvidenceMalformed,
    MeasurementMismatch,
    QuoteInvalid,
    QuoteRootUntrusted,
    ReportDataMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.tpm.chain import parse_machine, verify_key_chain
from sealtrain.attest.tpm.hcl import check_runtime, parse_hcl
from sealtrain.attest.tpm.log import MAX_LOG_BYTES, check_replay, parse_log
from sealtrain.attest.tpm.quote import (
    Bank,
    check_key,
    check_registers,
    check_signature,
    parse_quote,
)
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm, tpms_attest

pytestmark = pytest.mark.claim("C401")

PKI = SimulatedPki(b"room of TPM 2.0, simulated")
NOW = 1_780_000_000
MODULUS = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n


@pytest.mark.parametrize("bank", ["sha256", "sha384"])
def test_quote_holds(bank: Bank) -> None:
    """All registers of a bank under a key that chains to the simulator's root."""
    tpm = SimulatedTpm(PKI)
    tpm.extend(14, b"event")
    message, signature = tpm.quote(b"nonce", bank=bank, selection=range(24))
    quote = parse_quote(message)
    assert (quote.qualifying_data, quote.bank, len(quote.selection)) == (b"nonce", bank, 24)
    found = verify_key_chain(tpm.certificates, simulator_root=PKI.root_der, now=NOW)
    assert found.simulated
    assert found.machine.zone == "simulated-a"
    check_signature(quote, signature, found.key)
    registers = tpm.registers(bank)
    check_registers(quote, registers)
    with pytest.raises(MeasurementMismatch):
        check_registers(quote, {**registers, 14: bytes(len(registers[14]))})
    with pytest.raises(EvidenceMalformed):
        check_registers(quote, {index: registers[index] for index in range(23)})
    with pytest.raises(EvidenceMalformed):
        check_registers(quote, {**registers, 14: b"short"})


def test_quote_is_read_strictly() -> None:
    """Every truncation and every further byte is refused, and so is each altered head."""
    message, signature = SimulatedTpm(PKI).quote(b"nonce", bank="sha256", selection=(0, 2, 14))
    quote = parse_quote(message)
    assert quote.selection == (0, 2, 14)
    for cut in range(len(message)):
        with pytest.raises(EvidenceMalformed):
            parse_quote(message[:cut])
    with pytest.raises(EvidenceMalformed):
        parse_quote(message + b"\0")
    with pytest.raises(EvidenceMalformed):
        parse_quote(bytes(1025))
    with pytest.raises(EvidenceMalformed):  # nothing selected
        parse_quote(tpms_attest(b"", [], "sha256", ()))
    safe_at, bank_at = message.index(b"nonce") + 5 + 16, len(message) - 34 - 6
    for at, value in (
        (0, 0),
        (5, 0x14),
        (9, 0x0C),
        (safe_at, 2),
        (bank_at + 1, 4),
        (bank_at + 2, 4),
    ):
        altered = bytearray(message)
        altered[at] = value
        with pytest.raises(EvidenceMalformed):
            parse_quote(bytes(altered))
    key = check_key(SimulatedTpm(PKI).key.public_key())
    check_signature(quote, signature, key)
    for bad in (signature[:-1], signature + b"\0", b"\0\x14" + signature[2:], bytes(600)):
        with pytest.raises(EvidenceMalformed):
            check_signature(quote, bad, key)
    with pytest.raises(EvidenceMalformed):  # r is zero
        check_signature(quote, b"\0\x18\0\x0b\0\1\0" + signature[38:], key)
    with pytest.raises(QuoteInvalid):
        check_signature(quote, signature[:-1] + bytes([signature[-1] ^ 1]), key)
    with pytest.raises(QuoteInvalid):  # RSASSA under a key on a curve
        check_signature(quote, b"\0\x14\0\x0b\0\1\1", key)


def test_attestation_keys() -> None:
    """P-256, or RSA of 2048 to 4096 bits."""
    with pytest.raises(QuoteInvalid):
        check_key(ec.generate_private_key(ec.SECP384R1()).public_key())
    with pytest.raises(QuoteInvalid):
        check_key(rsa.generate_private_key(65537, 1024).public_key())  # noqa: S505  # refused
    with pytest.raises(QuoteInvalid):
        check_key(None)


def test_key_chain_is_looked_at_whole() -> None:
    """Root, order, dates, machine and the word for production."""
    chain = SimulatedTpm(PKI).certificates
    with pytest.raises(SimulatedEvidence):
        verify_key_chain(chain, simulator_root=None, now=NOW)
    other = SimulatedPki(b"another vendor, simulated")
    with pytest.raises(QuoteRootUntrusted):
        verify_key_chain(chain, simulator_root=other.root_der, now=NOW)
    foreign = SimulatedTpm(other).certificates
    for broken in (
        (foreign[0], *chain[1:]),
        (chain[0], foreign[1], chain[2]),
        (chain[1], chain[2]),  # an authority signs no quotes
        (chain[0], chain[2]),
        (chain[0], chain[0], *chain[1:]),
        (chain[2],),
        (b"no certificate", *chain[1:]),
    ):
        with pytest.raises(CertificateChainInvalid):
            verify_key_chain(broken, simulator_root=PKI.root_der, now=NOW)
    with pytest.raises(CertificateChainInvalid):
        verify_key_chain(chain, simulator_root=PKI.root_der, now=4_000_000_000)
    test = SimulatedTpm(PKI, machine=SimulatedMachine(production=False)).certificates
    with pytest.raises(DebugGuest):
        verify_key_chain(test, simulator_root=PKI.root_der, now=NOW)


def test_machine_is_read_strictly() -> None:
    """Google's extension: every truncation, another type, unprintable names."""
    der = SimulatedMachine().der()
    assert parse_machine(der).production
    for cut in range(len(der)):
        with pytest.raises(EvidenceMalformed):
            parse_machine(der[:cut])
    for bad in (
        SimulatedMachine(zone="a\nb"),
        SimulatedMachine(project=""),
    ):
        with pytest.raises(EvidenceMalformed):
            parse_machine(bad.der())
    with pytest.raises(EvidenceMalformed):
        parse_machine(der + b"\0")
    with pytest.raises(EvidenceMalformed):  # a BOOLEAN that is neither
        parse_machine(der.replace(b"\x01\x01\xff", b"\x01\x01\x01"))


def test_boot_log_replays() -> None:
    """Events are found by register and type, wherever they stand."""
    log = parse_log(boot_log(BOOT))
    quoted = {index: log.replay(index, "sha384") for index in range(24)}
    check_replay(log, "sha384", quoted, range(8))
    assert [item.data for item in log.find(4, ACTION)] == [
        b"Calling EFI Application from Boot Option"
    ]
    assert log.find(4, ACTION)[0].shows_data("sha256")
    assert not log.find(4, 0x80000003)[0].shows_data("sha256")
    moved = (BOOT[-1], *BOOT[:-1])  # across registers, which changes nothing
    check_replay(parse_log(boot_log(moved) + b"\xff" * 64), "sha384", quoted, range(8))
    for altered in (
        BOOT[:-1],  # dropped
        (*BOOT, BOOT[-1]),  # added
        (*BOOT[:5], BOOT[9], *BOOT[5:9], *BOOT[10:]),  # moved within its register
        (*BOOT[:-1], replace(BOOT[-1], data=b"another line")),
        (*BOOT[:-1], replace(BOOT[-1], register=10)),
    ):
        with pytest.raises(EventLogMismatch):
            check_replay(parse_log(boot_log(altered)), "sha384", quoted, range(10))
    with pytest.raises(EventLogMismatch):
        check_replay(parse_log(boot_log(BOOT, ("sha256",))), "sha384", quoted, range(8))
    with pytest.raises(EventLogMismatch):  # a register that the quote leaves out
        check_replay(log, "sha384", {0: quoted[0]}, range(8))


def test_boot_log_renamed_event() -> None:
    """A type is covered by no digest: an event under another type shows no data that count."""
    renamed = (*BOOT[:-3], replace(BOOT[-3], kind=0xD), *BOOT[-2:])
    log = parse_log(boot_log(renamed))
    assert log.find(4, ACTION) == ()
    assert not log.find(4, 0xD)[0].shows_data("sha256")
    borrowed = Entry(4, ACTION, b"another action", b"Calling EFI Application from Boot Option")
    assert not parse_log(boot_log((borrowed,))).find(4, ACTION)[0].shows_data("sha256")


def test_boot_log_of_another_locality() -> None:
    """Register 0 begins with how the TPM was started."""
    started = Entry(0, NO_ACTION, b"StartupLocality\0\x03")
    log = parse_log(boot_log((started, *BOOT)))
    assert log.locality == 3
    assert len(log.events) == len(BOOT)
    assert log.replay(0, "sha256") != parse_log(boot_log(BOOT)).replay(0, "sha256")
    for bad in ((*BOOT, started), (Entry(0, NO_ACTION, b"StartupLocality\0\x01"), *BOOT)):
        with pytest.raises(EvidenceMalformed):
            parse_log(boot_log(bad))


def test_boot_log_is_bounded() -> None:
    """16 MiB, 65,536 events, 1 MiB of data, registers and banks that there are."""
    raw = boot_log(BOOT)
    for cut in range(0, len(raw), 7):
        if cut not in _ends(BOOT):
            with pytest.raises(EvidenceMalformed):
                parse_log(raw[:cut])
    with pytest.raises(EvidenceMalformed):
        parse_log(bytes(MAX_LOG_BYTES + 1))
    with pytest.raises(EvidenceMalformed):
        parse_log(boot_log((Entry(24, SEPARATOR, bytes(4)),)))
    with pytest.raises(EvidenceMalformed):
        parse_log(boot_log((Entry(0, SEPARATOR, bytes((1 << 20) + 1)),)))
    with pytest.raises(EvidenceMalformed):
        parse_log(raw + b"\xff" * 4 + b"\0")
    with pytest.raises(EvidenceMalformed):
        parse_log(boot_log((), banks=()))
    with pytest.raises(EvidenceMalformed):
        parse_log(boot_log((), banks=("sha256", "sha256")))
    with pytest.raises(EvidenceMalformed):  # an event with one digest fewer
        parse_log(boot_log(()) + struct.pack("<IIII", 0, SEPARATOR, 0, 0))


def _ends(entries: tuple[Entry, ...]) -> set[int]:
    return {len(boot_log(entries[:count])) for count in range(len(entries) + 1)}


@pytest.mark.parametrize("kind", ["snp", "tdx"])
def test_hcl_report(kind: str) -> None:
    """The processor's report covers the key; another machine's does not."""
    raw = hcl_report(kind, MODULUS)
    report = parse_hcl(raw)
    assert report.kind == kind
    assert report.runtime.secure_boot
    assert report.runtime.vm_id == "SIMULATED"
    check_runtime(report.runtime, report.report_data)
    other = parse_hcl(hcl_report(kind, MODULUS, vm_id="another"))
    with pytest.raises(ReportDataMismatch):
        check_runtime(report.runtime, other.report_data)
    with pytest.raises(ReportDataMismatch):
        check_runtime(report.runtime, report.report_data[:32])
    for cut in range(0, len(raw) - 32, 13):
        with pytest.raises(EvidenceMalformed):
            parse_hcl(raw[:cut])
    for bad in (raw + b"\1", b"X" + raw[1:], raw[:4] + b"\3" + raw[5:], bytes(20000)):
        with pytest.raises(EvidenceMalformed):
            parse_hcl(bad)
    with pytest.raises(QuoteInvalid):
        parse_hcl(hcl_report(kind, 3 * 5))
    nested = raw.replace(b'{"keys"', b"[[[[[[[[[[[")
    with pytest.raises(EvidenceMalformed):
        parse_hcl(nested)

"""Commands to a TPM, and what its answers may be: a guest believes none that is malformed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from soft_tpm import CREATE, FLUSH, PCR_READ, PKI, QUOTE, READ, READ_PUBLIC, SoftTpm

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.rented import VtpmEvidence
from sealtrain.attest.tpm.collect import (
    CERTIFICATE_INDEX,
    quote_registers,
    split_certificates,
    vtpm_shown,
)
from sealtrain.attest.tpm.device import Tpm, open_tpm
from sealtrain.attest.tpm.form import verify_tpm
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine

pytestmark = pytest.mark.claim("C666")
NOW = 1_800_000_000


def test_a_quote_of_the_devices_registers_verifies() -> None:
    soft = SoftTpm()
    soft.simulated.extend(14, b"document")
    shown: Any = vtpm_shown(Tpm(soft.transmit), bytes(range(64)), None)
    evidence = Evidence.build("simulator", app_compose=b"{}", **shown)
    assert isinstance(evidence.cpu, VtpmEvidence)
    boot = verify_tpm(evidence.cpu.tpm, simulator_root=PKI.root_der, now=NOW)
    assert boot.quote.qualifying_data == hashlib.sha256(bytes(range(64))).digest()
    assert boot.registers[14] == soft.simulated.registers("sha256")[14]
    assert soft.asked.count(FLUSH) == soft.asked.count(CREATE) == 1


def test_a_key_that_a_test_root_certified_is_a_tpms() -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    chain = PKI.certify_tpm(key, "1.3.6.1.4.1.11129.2.1.21", SimulatedMachine().der())
    assert split_certificates(b"".join(chain) + bytes(7)) == chain
    assert chain[-1] == PKI.root_der


def test_only_the_banks_that_are_kept_are_named() -> None:
    assert Tpm(SoftTpm().transmit).banks() == ("sha256",)


def test_registers_that_change_while_they_are_read_are_read_again() -> None:
    soft = SoftTpm()
    left = [1]

    def change() -> None:
        if left:
            soft.simulated.extend(left.pop(), b"late")

    soft.before_quote = change
    shown: Any = quote_registers(Tpm(soft.transmit), b"x", None)
    assert soft.asked.count(QUOTE) == 2
    assert shown["registers"][1]["value"] == soft.simulated.registers("sha256")[1].hex()
    soft.before_quote = lambda: soft.simulated.extend(1, b"always")
    with pytest.raises(EvidenceMalformed):
        quote_registers(Tpm(soft.transmit), b"x", None)


@pytest.mark.parametrize(
    "held",
    [
        b"", bytes(100), b"x" * 100, b"\x30\x82\xff\xff", b"\x30\x82\0\0", b"\x30\x81\x10" * 30,
        (b"\x30\x82\0\x01x") * 5, b"\x30\x82\0\x01xtail",
    ],
)  # fmt: skip
def test_an_index_without_certificates_gives_no_quote(held: bytes) -> None:
    with pytest.raises((EvidenceMalformed, GuestApiUnreachable)):
        quote_registers(Tpm(SoftTpm({CERTIFICATE_INDEX: held}).transmit), b"x", None)


def test_a_machine_without_a_certified_key_says_so() -> None:
    soft = SoftTpm()
    del soft.indexes[CERTIFICATE_INDEX]
    with pytest.raises(GuestApiUnreachable) as caught:
        quote_registers(Tpm(soft.transmit), b"x", None)
    assert caught.value.got == "0x18b"


def test_a_long_index_is_refused_before_it_is_read() -> None:
    soft = SoftTpm({CERTIFICATE_INDEX: bytes(5000)})
    with pytest.raises(EvidenceMalformed):
        quote_registers(Tpm(soft.transmit), b"x", None)
    assert READ not in soft.asked


@pytest.mark.parametrize("code", [READ_PUBLIC, READ, CREATE, PCR_READ, QUOTE])
@pytest.mark.parametrize("odd", ["short", "long", "size", "tag", "cut"])
def test_a_malformed_response_is_refused(code: int, odd: str) -> None:
    changes: dict[str, Callable[[bytes], bytes]] = {
        "short": lambda response: response[:9] + b"",
        "long": lambda response: response + b"x",
        "size": lambda response: response[:2] + struct.pack(">I", 9) + response[6:],
        "tag": lambda response: b"\x80\x03" + response[2:],
        "cut": lambda response: (
            response[:2] + struct.pack(">I", 14) + response[6:14]
        ),
    }  # fmt: skip
    soft = SoftTpm()
    soft.spoil = lambda asked, response: changes[odd](response) if asked == code else response
    with pytest.raises((EvidenceMalformed, GuestApiUnreachable)):
        quote_registers(Tpm(soft.transmit), b"x", None)


def test_a_busy_tpm_is_asked_again_and_not_for_ever() -> None:
    soft = SoftTpm()
    busy = struct.pack(">HII", 0x8001, 10, 0x922)
    left = [1, 2]
    soft.spoil = lambda code, response: busy if left and left.pop() else response
    assert Tpm(soft.transmit).registers()
    soft.spoil = lambda code, response: busy
    with pytest.raises(GuestApiUnreachable):
        Tpm(soft.transmit).registers()


def test_a_device_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(GuestApiUnreachable), open_tpm(tmp_path / "tpm0"):
        pass

"""What is fuzzed: each parser of attestation that reads bytes somebody else wrote.

A target is a function on bytes, and examples to start from. It lets errors of sealtrain pass and
nothing else: any other exception, a run over the time limit or over the memory limit is a finding.
Examples come from the simulators, so that the targets run anywhere, and from third-party vectors
where their folder is at hand.
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from targets_disk import DISK_TARGETS
from targets_machines import MACHINE_TARGETS
from targets_tpm import TPM_TARGETS

if TYPE_CHECKING:
    from sealtrain.attest.nvidia.collateral import GpuCollateral
    from sealtrain.attest.nvidia.parse import GpuEvidence
    from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

Target = Callable[[], tuple[Callable[[bytes], object], list[bytes]]]

_NOW = 1_800_000_000
_SEED = b"fuzzing, a seed of 32 bytes ...."


def seeds_from(*patterns: str) -> Iterator[bytes]:
    """Files of the third-party vectors (``SEALTRAIN_SHARED``), none where there is no folder."""
    beside = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("SEALTRAIN_SHARED", beside)) / "vectors"
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and path.stat().st_size <= 1 << 20:
                yield path.read_bytes()


def _tdx_quote() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.tdx.parse import canonical_quote, parse_quote
    from sealtrain.errors import SealtrainError
    from sealtrain_rehearsal.simulator.pki import SimulatedPki

    def act(data: bytes) -> None:
        with suppress(SealtrainError):
            canonical_quote(data)
        parse_quote(data)

    pki = SimulatedPki(_SEED)
    seeds = [pki.quote(bytes(64)), pki.quote(bytes(64), service_td=bytes(48))]
    return act, [*seeds, *seeds_from("tdx/tdx_quote", "tdx/sgx_quote")]


def _dstack_log() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.dstack.parse import parse_event_log
    from sealtrain.base.secret import Secret
    from sealtrain_rehearsal.simulator.guest import SimulatedGuest
    from sealtrain_rehearsal.simulator.pki import SimulatedPki

    guest = SimulatedGuest(SimulatedPki(_SEED), Secret(bytes(32)), b'{"name":"fuzz"}')
    return (
        lambda data: parse_event_log(data.decode("utf-8", "replace")),
        [b"[]", json.dumps(guest.event_log()).encode("ascii")],
    )


def _dstack_attestation() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.dstack.msgpack import pack
    from sealtrain.attest.dstack.parse import parse_attestation

    # Short: a real quote is some thousand integers here, and most of the time would go into them.
    event = {"imr": 3, "event_type": 1, "digest": b"", "event": "a", "event_payload": b""}
    short = {
        "version": 1,
        "platform": {"kind": "tdx", "data": {"quote": b"quote", "event_log": [event]}},
        "stack": {
            "kind": "dstack",
            "data": {"report_data": b"", "runtime_events": [], "config": "{}"},
        },
    }
    return parse_attestation, [pack(short), *seeds_from("dstack/**/attestation*.bin")]


def _dstack_msgpack() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.dstack.msgpack import pack, unpack

    numbers = b"\x94\xff\xcd\x01\x00\xd3" + bytes(8) + b"\xcb" + bytes(8)
    return unpack, [pack({"a": [None, True, b"x", "y"], "b": {"c": []}}), b"\xc0", numbers]


def _ratls() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.dstack.ratls import evidence_of_certificate
    from sealtrain_rehearsal.simulator.pki import SimulatedPki

    return evidence_of_certificate, [SimulatedPki(_SEED).root_der]


def _evidence() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.evidence import Evidence
    from sealtrain.base.canonical import canonical_json
    from sealtrain.base.encoding import to_base64
    from sealtrain_rehearsal.simulator.pki import SimulatedPki
    from sealtrain_rehearsal.simulator.snp import SimulatedSnp

    compose, pki = '{"name":"fuzz"}', SimulatedPki(_SEED)
    shown = SimulatedSnp(_SEED).show(bytes(64), compose.encode(), now=_NOW)
    snp = {**shown, "app_compose": compose}
    tdx = {"tee": "tdx", "quote": to_base64(pki.quote(bytes(64))), "app_compose": compose}
    nitro = {"tee": "nitro", "document": "AAAA", "app_compose": compose}
    seeds = [
        canonical_json(
            {
                "version": 2,
                "platform": "simulator",
                "cpu": cpu,
                "gpu": None,
                "collateral": pki.collateral(_NOW).to_dict() if cpu is tdx else None,
                "gpu_collateral": None,
            }
        )
        for cpu in (snp, tdx, nitro)
    ]

    def act(data: bytes) -> None:
        found = Evidence.from_bytes(data)
        assert found.to_bytes() == data, "evidence has a second spelling"

    return act, seeds


def _nitro_document() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.nitro.collect import attestation
    from sealtrain.attest.nitro.parse import parse_document
    from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm

    module = SimulatedNsm(SimulatedNitroPki(_SEED), clock=lambda: _NOW)
    seed = attestation(module, user_data=bytes(64), nonce=b"nonce", public_key=b"key")
    return parse_document, [seed, *seeds_from("nitro/*.cose")]


def _snp_report() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.snp.collect import distribution_addresses
    from sealtrain.attest.snp.parse import parse_report, tcb_of
    from sealtrain_rehearsal.simulator.snp import SimulatedSnp

    def act(data: bytes) -> None:
        report = parse_report(data)
        assert report.raw == data
        assert tcb_of(report.reported_tcb, report.product or "Milan").parts()
        distribution_addresses(report)

    seeds = [
        SimulatedSnp(_SEED, product="Milan").report(bytes(64), b""),
        SimulatedSnp(_SEED, product="Genoa", signing_key="vlek").report(bytes(64), b""),
        SimulatedSnp(_SEED, product="Turin").report(bytes(64), b""),
    ]
    return act, [*seeds, *seeds_from("sev-snp/*.report.bin")]


def _snp_table() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.snp.collect import CERTIFICATE_GUIDS, parse_table

    head = b"".join(
        guid.bytes + struct.pack("<II", 24 * 6 + at, 1)
        for at, guid in enumerate(CERTIFICATE_GUIDS.values())
    )
    return parse_table, [b"", bytes(48), head + bytes(24) + b"abcde"]


def _snp_chain() -> tuple[Callable[[bytes], object], list[bytes]]:
    """The leaf and the issuer of a chain, both hostile, under a trusted root."""
    from sealtrain.attest.snp.chain import verify_chain
    from sealtrain_rehearsal.simulator.snp import SimulatedSnp

    guest = SimulatedSnp(_SEED)
    leaf, issuer, root = guest.certificates()

    def act(data: bytes) -> None:
        if data[:1] == b"i":
            chain = (leaf, data[1:], root)
        elif data[:1] == b"l":
            chain = (data[1:], issuer, root)
        else:
            chain = (leaf, issuer, data[1:])
        verify_chain(chain, simulator_root=None if data[:1] == b"r" else root, now=_NOW)

    seeds = [b"l" + leaf, b"i" + issuer, b"r" + root]
    return act, [*seeds, *(b"l" + seed for seed in seeds_from("sev-snp/*.cert.der"))]


def _gpus() -> tuple[SimulatedGpus, GpuEvidence, GpuCollateral]:
    """One simulated machine with two GPUs and a switch."""
    from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
    from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

    gpus = SimulatedGpus(_SEED, count=2, switches=1, mode="protected_pcie")
    return gpus, gpus.evidence(bytes(32)), simulate_collateral(gpus, _NOW)


def _nvidia_report() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.nvidia.spdm import canonical_report, parse_report
    from sealtrain.errors import SealtrainError

    def act(data: bytes) -> None:
        with suppress(SealtrainError):
            parse_report(canonical_report(data))
        parse_report(data)

    seeds = [base64.b64decode(device.report) for device in _gpus()[1].devices]
    return act, [*seeds, *seeds_from("nvidia/*.report.bin")]


def _nvidia_rim() -> tuple[Callable[[bytes], object], list[bytes]]:
    """Reference values, signature included: XML is the widest door of all."""
    from sealtrain.attest.nvidia.rim import verify_rim
    from sealtrain.attest.nvidia.swid import parse_rim
    from sealtrain.errors import SealtrainError

    gpus, _, collateral = _gpus()

    def act(data: bytes) -> None:
        with suppress(SealtrainError):
            parse_rim(data)
        verify_rim(data, simulator_root=gpus.rim_root_der, now=_NOW, pinned=False)

    seeds = [base64.b64decode(text) for text in collateral.rims.values()]
    small = [seed for seed in seeds_from("nvidia/rim/*") if len(seed) <= 64 << 10]
    return act, [*seeds, *small]


def _nvidia_chain() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.nvidia.chain import verify_chain

    gpus, evidence, _ = _gpus()

    def act(data: bytes) -> None:
        verify_chain(data.decode("utf-8", "replace"), simulator_root=gpus.root_der, now=_NOW)

    seeds = [device.certificate_chain.encode("ascii") for device in evidence.devices]
    return act, [*seeds, *seeds_from("nvidia/*.chain.pem")]


def _nvidia_evidence() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.nvidia.parse import GpuEvidence

    return GpuEvidence.from_bytes, [_gpus()[1].to_bytes()]


def _nvidia_collateral() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.nvidia.collateral import GpuCollateral

    return GpuCollateral.from_bytes, [_gpus()[2].to_bytes()]


def _nvidia_tools() -> tuple[Callable[[bytes], object], list[bytes]]:
    """The evidence file of NVIDIA's own tools."""
    from sealtrain.attest.nvidia.parse import from_nvat

    device = _gpus()[1].devices[0]
    chain = base64.b64encode(device.certificate_chain.encode("ascii")).decode("ascii")
    item = {"arch": "HOPPER", "nonce": "", "evidence": device.report, "certificate": chain}
    return from_nvat, [json.dumps([item]).encode("ascii"), *seeds_from("nvidia/hopper_single*")]


def _nvidia_ocsp() -> tuple[Callable[[bytes], object], list[bytes]]:
    """One hostile answer among good ones."""
    from sealtrain.attest.nvidia.ocsp import check_answers
    from sealtrain.attest.roots import certificates_of_pem

    _, evidence, collateral = _gpus()
    pem = evidence.devices[0].certificate_chain.encode("ascii")
    chain, answers = certificates_of_pem(pem, limit=8), collateral.ocsp_answers

    def act(data: bytes) -> None:
        check_answers(chain, (data, *answers[1:]), now=_NOW, max_age=1 << 31)

    return act, [*answers, b"\x30\x03\x0a\x01\x06"]


def _nvidia_verdict() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.nvidia.collateral import RemoteVerdict
    from sealtrain.attest.nvidia.nras import verify_remote_verdict

    def act(data: bytes) -> None:
        token, _, jwks = data.decode("utf-8", "replace").partition("\n---\n")
        verdict = RemoteVerdict.model_construct(token=token, jwks=jwks)
        verify_remote_verdict(verdict, nonce=bytes(32), gpu_count=1, now=_NOW)

    part = base64.urlsafe_b64encode(b'{"alg":"ES384","kid":"k"}').rstrip(b"=")
    token = json.dumps([["JWT", f"{part.decode()}.e30.AAAA"], {"GPU-0": "a.b.c"}]).encode()
    key = {"kty": "EC", "crv": "P-384", "kid": "k", "x": "A" * 64, "y": "A" * 64}
    keys = json.dumps({"keys": [key]}).encode()
    return act, [
        token + b"\n---\n" + keys,
        *(seed + b"\n---\n" + keys for seed in seeds_from("nvidia/nras_eat_2025.json")),
    ]


def _policy() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.attest.policy import load_policy

    def act(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix="policy-") as file:
            file.write(data)
            file.flush()
            load_policy(Path(file.name))

    snp = (
        "version: 2\nplatform: snp\ntier: processor\nroot: amd\ngpu: none\n"
        "cpu:\n  tee: snp\n  products: [Genoa]\n"
        "  signing_keys: [vcek]\n  measurements: any\n  minimum_tcb:\n    Genoa: "
        "{bootloader: 1, tee: 0, snp: 2, microcode: 3}\n  mitigations: any\n  extended_tcb: any\n"
        "  platform_flags: any\n  chip_ids: any\n  vmpl: 0\n"
        "  debug: refuse\n  migration: refuse\n  smt: any\n  id_keys: any\n  revocation: any\n"
    )
    hostile = ["a: &a [*a]", "? {}\n: 1", "!!python/name:os.system", "a: 1\na: 2", "- " * 400]
    return act, [snp.encode(), re.sub("snp", "nitro", snp).encode(), *map(str.encode, hostile)]


def _enclave_file() -> tuple[Callable[[bytes], object], list[bytes]]:
    import io

    from sealtrain.image.machine.enclavefile import (
        measure_enclave,
        measure_signer,
        write_enclave,
    )

    def measure(data: bytes) -> None:
        measure_signer(data)
        measure_enclave(data)

    into = io.BytesIO()
    sections = ((1, b"kernel"), (2, b"quiet"), (5, b"{}"), (3, b"init"), (3, b"root"))
    write_enclave(
        into,
        [(kind, io.BytesIO(content)) for kind, content in sections],
        processors=2,
        memory=1 << 30,
    )
    return measure, [into.getvalue()]


def _enclave_parent() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.errors import SealtrainError
    from sealtrain.guest.enclave.launch import EnclaveLaunch
    from sealtrain.guest.enclave.parent import read_started, running, stage_of

    launch = EnclaveLaunch(
        eif=Path("x.eif"),
        document=b"",
        ticket=b"",
        processors=2,
        memory_mib=512,
        servers=frozenset(),
        ports=(),
    )

    def act(data: bytes) -> None:
        stage_of(data)
        with suppress(SealtrainError):
            running(data)
        read_started(data, launch)

    said = {
        "EnclaveID": "i-00000000000000001-enc0000000000000001",
        "EnclaveCID": 16,
        "NumberOfCPUs": 2,
        "MemoryMiB": 512,
    }
    stage = b'{"stage":"ended","status":0,"code":"ended"}'
    return act, [json.dumps(said).encode(), stage, b'[{"State":"RUNNING","EnclaveID":"a"}]']


def _enclave_tunnel() -> tuple[Callable[[bytes], object], list[bytes]]:
    from sealtrain.guest.enclave.tunnels import target_of

    return target_of, [
        b"CONNECT store.example:443 HTTP/1.1\r\nHost: store.example:443\r\n\r\n",
        b"CONNECT [::1]:443 HTTP/1.0\r\n\r\n",
    ]


TARGETS: dict[str, Target] = {
    "tdx-quote": _tdx_quote,
    "dstack-log": _dstack_log,
    "dstack-attestation": _dstack_attestation,
    "dstack-msgpack": _dstack_msgpack,
    "dstack-ratls": _ratls,
    "evidence": _evidence,
    "nitro-document": _nitro_document,
    "snp-report": _snp_report,
    "snp-table": _snp_table,
    "snp-chain": _snp_chain,
    "nvidia-report": _nvidia_report,
    "nvidia-rim": _nvidia_rim,
    "nvidia-chain": _nvidia_chain,
    "nvidia-evidence": _nvidia_evidence,
    "nvidia-collateral": _nvidia_collateral,
    "nvidia-tools": _nvidia_tools,
    "nvidia-ocsp": _nvidia_ocsp,
    "nvidia-verdict": _nvidia_verdict,
    "policy": _policy,
    "enclave-file": _enclave_file,
    "enclave-parent": _enclave_parent,
    "enclave-tunnel": _enclave_tunnel,
    **TPM_TARGETS,
    **DISK_TARGETS,
    **MACHINE_TARGETS,
}
"""By name: makes the function and its examples."""

"""Parts that accelerators sign, what holds for them together, and what NVIDIA says about them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.claims import Claim, Group, compare_commitment, single
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    ReferenceValueInvalid,
    RemoteVerdictRefused,
)
from sealtrain.attest.facts import Situation
from sealtrain.attest.nvidia.chain import read_architecture
from sealtrain.attest.nvidia.collateral import GpuCollateral, RemoteVerdict
from sealtrain.attest.nvidia.nras import verify_remote_verdict
from sealtrain.attest.nvidia.parse import GpuClaims, GpuDevice
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.nvidia.rim import verify_rim
from sealtrain.attest.nvidia.spdm import GpuReport
from sealtrain.attest.nvidia.swid import Rim
from sealtrain.attest.nvidia.verify import (
    SET,
    device_parts,
    no_rules,
)
from sealtrain.attest.parts import Part, Vouched
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import root_name
from sealtrain.base.canonical import parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid

_SERVICE = "key set archived beside the verdict"
_REFERENCE = "NVIDIA CoRIM signing Root CA"


def explain_devices(
    devices: Sequence[GpuDevice],
    claims: GpuClaims | None,
    collateral: GpuCollateral | None,
    at: Situation,
) -> tuple[Part, ...]:
    """The parts of devices, under the rules for accelerators of a situation's policy.

    Args:
        devices: As ``nvidia.verify.device_parts``.
        claims: As there.
        collateral: As there.
        at: ``nonce`` is that of every report.
    """
    return device_parts(
        devices,
        claims,
        collateral,
        _rules(at.policy),
        nonce=at.nonce,
        now=at.now,
        asked=at.policy is not None,
    )


def one_device(
    report: GpuReport,
    certificates: tuple[bytes, ...],
    others: Sequence[GpuDevice],
    collateral: GpuCollateral | None,
    at: Situation,
) -> tuple[Part, ...]:
    """One report and its chain: as a file of one device, which is built when it is verified.

    Args:
        report: The report by itself.
        certificates: Its chain (DER), leaf first.
        others: Further devices of the same machine.
        collateral: As ``device_parts``.
        at: As ``device_parts``.
    """

    def build_parts() -> tuple[Part, ...]:
        if not certificates:
            raise CertificateChainInvalid(
                "no certificates to verify the report with",
                check="GPU certificate chain",
                got="none",
                hint="name the chain with --chain",
            )
        pem = b"".join(
            x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in certificates
        )
        raw = report.signed + report.signature
        device = GpuDevice.build(read_architecture(certificates), raw, pem)
        return explain_devices((device, *others), None, collateral, at)

    return (
        Part(name=f"{report.kind}0", verify=lambda: build_parts()[0].verify()),
        *explain_devices(others, None, collateral, at)[:-1],
        Part(name=SET, verify=lambda: build_parts()[-1].verify()),
    )


def verdict_part(token: str, collateral: GpuCollateral | None, at: Situation) -> Part:
    """An answer of NVIDIA's service, under the keys that were archived with it."""

    def verify() -> Vouched:
        keys = None if collateral is None else collateral.nras
        if keys is None or at.nonce is None:
            missing = "nonce" if keys is not None else "archived key set of the service"
            raise RemoteVerdictRefused(
                f"NVIDIA's verdict cannot be verified without its {missing}",
                check="remote verdict",
                hint="name the nonce with --nonce and the keys (nras.jwks) with --gpu-collateral",
            )
        rules = _rules(at.policy)
        count = _devices_of(token) if rules is None else rules.gpu_count
        verdict = RemoteVerdict(token=token, jwks=keys.jwks)
        found = verify_remote_verdict(verdict, nonce=at.nonce, gpu_count=count, now=at.now)
        claim = Claim(
            name="remote verdict",
            got=f"positive for {', '.join(sorted(found))}",
            expected=f"positive for {count} GPUs",
            source="NRAS token",
            outcome="equal",
        )
        nonce = partial(compare_commitment, "GPU nonce", at.nonce, at.nonce, "NRAS token")
        groups = [single(lambda: claim), single(nonce)]
        if at.policy is not None and rules is None:
            groups.append(no_rules(count))
        return Vouched(
            root=_SERVICE,
            simulated=False,
            identity=sha256_hex(token.encode("utf-8")),
            eat={},
            groups=tuple(groups),
        )

    return Part(name=SET, verify=verify)


def reference_part(xml: bytes, rim: Rim, at: Situation) -> Part:
    """A file of reference values by itself: who signed it, and when that counted."""

    def verify() -> Vouched:
        rules = _rules(at.policy)
        pins = rules.reference_values if rules is not None else "any"
        pinned = isinstance(pins, dict) and any(rim.digest in pin for pin in pins.values())
        root = None if rules is None else rules.simulator_rim_root
        verified = verify_rim(xml, simulator_root=root, now=at.now, pinned=pinned)
        groups: list[Group] = []
        if at.policy is not None and rules is None:
            groups.append(no_rules(0))
        if isinstance(pins, dict):
            groups.append(single(partial(_compare_pin, rim, pinned)))
        return Vouched(
            root=root_name(verified.simulated, _REFERENCE),
            simulated=verified.simulated,
            identity=rim.digest,
            eat={},
            groups=tuple(groups),
        )

    return Part(name="reference values", verify=verify)


def _compare_pin(rim: Rim, pinned: bool) -> Claim:
    if not pinned:
        raise ReferenceValueInvalid(
            "file of reference values is not one that the policy pins",
            check="reference values",
            got=f"sha256 {rim.digest}",
            expected="a file that the policy names",
            hint="review the file, then add its SHA-256 to the policy",
        )
    return Claim(
        name="reference values",
        got=rim.digest,
        expected="a file that the policy names",
        source="policy",
        outcome="allowed",
    )


def _rules(policy: AppraisalPolicy | None) -> NvidiaPolicy | None:
    return policy.gpu if policy is not None and isinstance(policy.gpu, NvidiaPolicy) else None


def _devices_of(token: str) -> int:
    """How many devices an answer of the service is about."""
    try:
        return len(parse_json(token.encode("utf-8"))[1])
    except (DataInvalid, IndexError, KeyError, TypeError):
        return 0

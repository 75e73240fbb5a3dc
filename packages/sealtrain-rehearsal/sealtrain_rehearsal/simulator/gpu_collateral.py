"""What a simulated vendor publishes about its GPUs: reference values and revocation answers.

In the vendor's own forms, signed by ``SIMULATED`` names: SWID tags with an enveloped XML signature,
OCSP answers by each certificate's issuer.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from lxml import etree
from signxml.algorithms import (
    CanonicalizationMethod,
    DigestAlgorithm,
    SignatureConstructionMethod,
    SignatureMethod,
)
from signxml.signer import XMLSigner

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.rim import rim_ids
from sealtrain.base.encoding import to_base64
from sealtrain_rehearsal.simulator.gpu import (
    DRIVER_BLOCKS,
    DRIVER_VERSION,
    GPU_VBIOS,
    SWITCH_VBIOS,
    VBIOS_BLOCKS,
    SimulatedGpus,
)
from sealtrain_rehearsal.simulator.gpu_pki import Signed

_SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
_SHA384 = "http://www.w3.org/2001/04/xmlenc#sha384"
_ANSWER_LIFETIME = 24 * 3600
_SKEW = 60


def simulate_collateral(
    gpus: SimulatedGpus, now: int, *, revoked: x509.ReasonFlags | None = None
) -> GpuCollateral:
    """Reference values for every device's firmware, and an answer for each certificate.

    Args:
        gpus: Whose.
        now: When the answers are made, seconds since 1970.
        revoked: Why the first GPU's own certificate is revoked, where it is.
    """
    rims: dict[str, str] = {}
    evidence = gpus.evidence(bytes(32))
    for device in evidence.devices:
        verified = verify_device(device, simulator_root=gpus.root_der, now=now)
        for rim_id in rim_ids(verified):
            if rim_id not in rims:
                rims[rim_id] = to_base64(_rim_for(gpus, rim_id))
    answers: dict[bytes, str] = {}
    for number, made in enumerate((*gpus.gpu_devices, *gpus.switch_devices)):
        for depth in range(1, len(made.chain) - 1):
            certificate, issuer = made.chain[depth], made.chain[depth + 1]
            reason = revoked if (number, depth) == (0, 1) else None
            if certificate.der not in answers:
                answers[certificate.der] = to_base64(
                    simulate_ocsp(certificate, issuer, now, revoked=reason)
                )
    return GpuCollateral.from_dict({"rims": rims, "ocsp": list(answers.values()), "nras": None})


def simulate_rim(
    chain: tuple[Signed, ...], *, version: str, product: str, values: Mapping[int, bytes]
) -> bytes:
    """A file of reference values.

    Args:
        chain: Signer first, root last.
        version: Firmware it is for.
        product: Chip it is for.
        values: Digest by index, which counts from 0.
    """
    root = etree.Element(
        f"{{{_SWID}}}SoftwareIdentity", {"name": product}, nsmap={None: _SWID, "sha384": _SHA384}
    )
    etree.SubElement(
        root,
        f"{{{_SWID}}}Meta",
        {"colloquialVersion": version, "edition": "GPU", "product": product, "revision": "r1"},
    )
    payload = etree.SubElement(root, f"{{{_SWID}}}Payload")
    for index, digest in sorted(values.items()):
        etree.SubElement(
            payload,
            f"{{{_SWID}}}Resource",
            {
                "type": "Measurement",
                "index": str(index),
                "active": "True",
                "alternatives": "1",
                f"{{{_SHA384}}}Hash0": digest.hex(),
                "name": f"Measurement_{index}",
                "size": "48",
            },
        )
    signer = XMLSigner(
        method=SignatureConstructionMethod.enveloped,
        signature_algorithm=SignatureMethod.ECDSA_SHA384,
        digest_algorithm=DigestAlgorithm.SHA384,
        c14n_algorithm=CanonicalizationMethod.CANONICAL_XML_1_1,
    )
    pem = [signed.certificate.public_bytes(Encoding.PEM).decode("ascii") for signed in chain]
    signed = signer.sign(root, key=chain[0].key, cert=pem)
    return bytes(etree.tostring(signed))


def simulate_ocsp(
    certificate: Signed, issuer: Signed, now: int, *, revoked: x509.ReasonFlags | None = None
) -> bytes:
    """An issuer's answer about a certificate, DER, valid for a day from ``now``."""
    made = datetime.fromtimestamp(now - _SKEW, UTC)
    until = datetime.fromtimestamp(now + _ANSWER_LIFETIME, UTC)
    status = ocsp.OCSPCertStatus.GOOD if revoked is None else ocsp.OCSPCertStatus.REVOKED
    answer = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            cert=certificate.certificate,
            issuer=issuer.certificate,
            algorithm=hashes.SHA384(),
            cert_status=status,
            this_update=made,
            next_update=until,
            revocation_time=None if revoked is None else made,
            revocation_reason=revoked,
        )
        .responder_id(ocsp.OCSPResponderEncoding.NAME, issuer.certificate)
        .sign(issuer.key, hashes.SHA384())
    )
    return answer.public_bytes(Encoding.DER)


def _rim_for(gpus: SimulatedGpus, rim_id: str) -> bytes:
    kind: Literal["gpu", "switch"]
    if rim_id.startswith("NV_SWITCH_BIOS"):
        kind, version, product, blocks = "switch", SWITCH_VBIOS, "LS10", VBIOS_BLOCKS
    elif rim_id.startswith("NV_GPU_VBIOS"):
        kind, version, product, blocks = "gpu", GPU_VBIOS, "GH100", VBIOS_BLOCKS
    elif rim_id.startswith("NV_GPU_DRIVER"):
        kind, version, product, blocks = "gpu", DRIVER_VERSION, "GH100", DRIVER_BLOCKS
    else:
        raise EvidenceMalformed("simulator makes no reference values of this kind", got=rim_id)
    measured = gpus.measurements(kind, DRIVER_VERSION)
    return simulate_rim(
        gpus.pki.rim_signer,
        version=version,
        product=product,
        values={block - 1: measured[block] for block in blocks},
    )

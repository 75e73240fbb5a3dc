"""Files of reference values (RIM): SWID tags in XML with an enveloped signature.

ECDSA P-384 with SHA-384, Canonical XML 1.1, the signer's certificates up to the root beside it.
``signxml`` verifies the signature; values are read from the element it returns and from nowhere
else, so nothing that was moved, wrapped or added outside the signature is ever looked at.

1. Form: UTF-8, no document type, bounded in bytes, elements, attributes and depth.
2. Exactly one signature, a child of the root element, over the whole document.
3. Chain: P-384 and SHA-384 throughout, up to the root that is asked for. Its dates are returned,
   not judged.
4. Values: one Meta, one Payload, each index once, every digest 48 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID
from lxml import etree
from signxml.algorithms import (
    CanonicalizationMethod,
    DigestAlgorithm,
    SignatureConstructionMethod,
    SignatureMethod,
)
from signxml.exceptions import SignXMLException
from signxml.verifier import SignatureConfiguration, XMLVerifier

from sealtrain.attest.errors import ReferenceValueInvalid
from sealtrain.attest.nvidia.collateral import MAX_RIM_BYTES
from sealtrain.attest.roots import X509_ERRORS, load_certificate
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64
from sealtrain.errors import DataInvalid

_SWID = "{http://standards.iso.org/iso/19770/-2/2015/schema.xsd}"
_HASH = "{http://www.w3.org/2001/04/xmlenc#sha384}Hash"
_DS = "{http://www.w3.org/2000/09/xmldsig#}"
_TRANSFORMS = [
    SignatureConstructionMethod.enveloped.value,
    CanonicalizationMethod.CANONICAL_XML_1_1.value,
]
_MAX_ELEMENTS = 1024
_MAX_DEPTH = 8
_MAX_ATTRIBUTES = 64
_MAX_NAMESPACES = 16
_MAX_CERTIFICATES = 5
_MAX_INDEX = 254
_MAX_ALTERNATIVES = 32
_INDEX = re.compile(r"0|[1-9][0-9]{0,2}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9A-Fa-f]{96}")
_SPACE = re.compile(r"[ \t\r\n]+")
_CHECK = "reference values"
_CRITICAL = {ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE}
_CHAIN_ERRORS = (
    *X509_ERRORS,
    InvalidSignature,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_XML_ERRORS = (
    SignXMLException,
    etree.LxmlError,
    InvalidSignature,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
)
"""What the XML signature library raises on documents that are no signed document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rim:
    """What a file of reference values says. Trusted only out of ``authentic_rim``.

    Attributes:
        digest: SHA-256 of the whole file, 64 hex digits.
        version: Firmware version the values are for (``colloquialVersion``).
        edition: NVIDIA's word for the kind of product.
        product: Chip the values are for.
        measurements: For each active index the acceptable digests, 48 bytes each.
    """

    digest: str
    version: str
    edition: str
    product: str
    measurements: Mapping[int, tuple[bytes, ...]]


def parse_rim(xml: bytes) -> Rim:
    """Read a file without judging its signature, to explain it to people.

    Raises:
        ReferenceValueInvalid: Not a bounded, well-formed SWID tag with measurements.
    """
    return _read(_document(xml), sha256_hex(xml))


@lru_cache(maxsize=16)
def authentic_rim(xml: bytes, root_sha256: str) -> tuple[Rim, int, int]:
    """Values of an authentic file, first and last second at which its whole chain is valid.

    Remembered: machines have many GPUs and few firmwares.

    Args:
        xml: The file.
        root_sha256: SHA-256 of the trusted root certificate (DER), hex.

    Raises:
        ReferenceValueInvalid: Form, signature or chain do not hold.
    """
    signature = _signature(_document(xml))
    _check_value(signature)
    certificates = _certificates(signature)
    start, end = _check_chain(certificates, root_sha256)
    configuration = SignatureConfiguration(
        location="./",
        expect_references=1,
        signature_methods=frozenset({SignatureMethod.ECDSA_SHA384}),
        digest_algorithms=frozenset({DigestAlgorithm.SHA384}),
        # Dates are the caller's to judge; the library must not read the machine's clock.
        verification_time=certificates[0].not_valid_before_utc,
    )
    try:
        result = XMLVerifier().verify(
            xml, x509_cert=certificates[0], parser=_parser(), expect_config=configuration
        )
    except _XML_ERRORS as error:
        raise _invalid("signature does not hold", got=type(error).__name__) from error
    if isinstance(result, list) or result.signed_xml is None:
        raise _invalid("signature covers something else than one document")
    _check_whole_document(result.signature_xml)
    return _read(result.signed_xml, sha256_hex(xml)), start, end


def _parser() -> etree.XMLParser:
    # The encoding is ours, whatever the file declares: otherwise a document type could hide from
    # the search for it. Limits of the library stay on (huge_tree).
    return etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
    )


def _document(xml: bytes) -> etree._Element:
    if not 0 < len(xml) <= MAX_RIM_BYTES:
        raise _invalid("file has the wrong length", got=f"{len(xml)} bytes")
    if b"<!DOCTYPE" in xml or b"<!ENTITY" in xml:
        raise _invalid("file declares a document type or an entity")
    try:
        root = etree.fromstring(xml, parser=_parser())
    except (etree.LxmlError, ValueError) as error:
        raise _invalid("file is not XML") from error
    depth = elements = 0
    for event, element in etree.iterwalk(root, events=("start", "end")):
        depth += 1 if event == "start" else -1
        if event == "end":
            continue
        elements += 1
        if (
            elements > _MAX_ELEMENTS
            or depth > _MAX_DEPTH
            or len(element.attrib) > _MAX_ATTRIBUTES
            or len(element.nsmap) > _MAX_NAMESPACES
        ):
            raise _invalid("file is larger or deeper than a list of measurements can be")
    return root


def _signature(root: etree._Element) -> etree._Element:
    found = list(root.iter(f"{_DS}Signature"))
    if len(found) != 1 or found[0].getparent() is not root:
        raise _invalid("file does not hold exactly one signature, below its root element")
    return found[0]


def _check_whole_document(signature: etree._Element) -> None:
    """What was signed is the document, not an element that the signature points at."""
    reference = signature.find(f"{_DS}SignedInfo/{_DS}Reference")
    method = signature.find(f"{_DS}SignedInfo/{_DS}CanonicalizationMethod")
    transforms = signature.findall(f"{_DS}SignedInfo/{_DS}Reference/{_DS}Transforms/{_DS}Transform")
    if (
        reference is None
        or reference.get("URI") != ""
        or method is None
        or method.get("Algorithm") != CanonicalizationMethod.CANONICAL_XML_1_1.value
        or [transform.get("Algorithm") for transform in transforms] != _TRANSFORMS
        or any(len(part) for part in (method, *transforms))
    ):
        raise _invalid("signature does not cover the whole document")


def _certificates(signature: etree._Element) -> list[x509.Certificate]:
    info = signature.findall(f"{_DS}KeyInfo/*")
    if len(info) != 1 or info[0].tag != f"{_DS}X509Data":
        raise _invalid("signature does not carry one chain of certificates")
    parts = list(info[0])
    if not 2 <= len(parts) <= _MAX_CERTIFICATES or any(
        part.tag != f"{_DS}X509Certificate" or len(part) for part in parts
    ):
        raise _invalid("signer's chain has the wrong form", got=f"{len(parts)} parts")
    try:
        return [load_certificate(_decode(part)) for part in parts]
    except (DataInvalid, *X509_ERRORS) as error:
        raise _invalid("signer's chain cannot be parsed") from error


def _check_value(signature: etree._Element) -> None:
    """The library passes over characters that are not base64; nothing signs this text."""
    values = signature.findall(f"{_DS}SignatureValue")
    try:
        for value in values:
            _decode(value)
    except DataInvalid as error:
        raise _invalid("signature is not written in base64") from error


def _decode(element: etree._Element) -> bytes:
    return from_base64(_SPACE.sub("", element.text or ""))


def _check_chain(chain: list[x509.Certificate], root_sha256: str) -> tuple[int, int]:
    """Signer first, root last. Returns the seconds within which all of them are valid."""
    try:
        found = chain[-1].fingerprint(hashes.SHA256()).hex()
        if found != root_sha256:
            raise _invalid(
                "signer's chain leads to a foreign root",
                got=f"root {found[:16]}…",
                expected=f"root {root_sha256[:16]}…",
            )
        for place, certificate in enumerate(chain):
            certificate.verify_directly_issued_by(chain[min(place + 1, len(chain) - 1)])
            _check_certificate(certificate, place)
    except _CHAIN_ERRORS as error:
        raise _invalid("signer's chain does not hold") from error
    start = max(certificate.not_valid_before_utc for certificate in chain)
    end = min(certificate.not_valid_after_utc for certificate in chain)
    return int(start.timestamp()), int(end.timestamp())


def _check_certificate(certificate: x509.Certificate, place: int) -> None:
    key, extensions = certificate.public_key(), certificate.extensions
    constraints = [
        extension.value
        for extension in extensions
        if isinstance(extension.value, x509.BasicConstraints)
    ]
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    authority = place > 0
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise _invalid("a certificate of the signer's chain has another kind of key than P-384")
    if not isinstance(certificate.signature_hash_algorithm, hashes.SHA384):
        raise _invalid("a certificate of the signer's chain is not signed with SHA-384")
    if any(extension.critical and extension.oid not in _CRITICAL for extension in extensions):
        raise _invalid("a certificate of the signer's chain has an unknown critical extension")
    if any(constraint.ca for constraint in constraints) is not authority or not (
        usage.key_cert_sign if authority else usage.digital_signature
    ):
        raise _invalid("a certificate of the signer's chain is used for what it is not made for")
    if any(
        constraint.path_length is not None and constraint.path_length < place - 1
        for constraint in constraints
    ):
        raise _invalid("signer's chain is longer than one of its certificates allows")


def _read(root: etree._Element, digest: str) -> Rim:
    meta, payload = root.findall(f"{_SWID}Meta"), root.findall(f"{_SWID}Payload")
    if root.tag != f"{_SWID}SoftwareIdentity" or len(meta) != 1 or len(payload) != 1:
        raise _invalid("file is not a SWID tag with one Meta and one Payload")
    version = meta[0].get("colloquialVersion", "")
    if not _VERSION.fullmatch(version):
        raise _invalid("file names no firmware version")
    seen: set[int] = set()
    active: dict[int, tuple[bytes, ...]] = {}
    for resource in payload[0].findall(f"{_SWID}Resource"):
        if resource.get("type") != "Measurement":
            continue
        index, is_active, digests = _measurement(resource)
        if index in seen:
            raise _invalid("file lists an index twice", got=index)
        seen.add(index)
        if is_active:
            active[index] = digests
    if not active:
        raise _invalid("file lists no active measurement")
    return Rim(
        digest=digest,
        version=version,
        edition=meta[0].get("edition", "")[:64],
        product=meta[0].get("product", "")[:64],
        measurements=active,
    )


def _measurement(resource: etree._Element) -> tuple[int, bool, tuple[bytes, ...]]:
    index, count = resource.get("index", ""), resource.get("alternatives", "")
    if not _INDEX.fullmatch(index) or int(index) > _MAX_INDEX:
        raise _invalid("a measurement has no index", got=index[:16])
    if not _INDEX.fullmatch(count) or not 1 <= int(count) <= _MAX_ALTERNATIVES:
        raise _invalid("a measurement has no count of alternatives", got=count[:16])
    digests = {name: text for name, text in resource.attrib.items() if str(name).startswith(_HASH)}
    names = [f"{_HASH}{number}" for number in range(int(count))]
    if (
        resource.get("active") not in ("True", "False")
        or resource.get("size") != "48"
        or set(digests) != set(names)
        or not all(_DIGEST.fullmatch(str(text)) for text in digests.values())
    ):
        raise _invalid("a measurement has another form than 48-byte digests", got=f"index {index}")
    values = tuple(bytes.fromhex(str(digests[name])) for name in names)
    return int(index), resource.get("active") == "True", values


def _invalid(problem: str, *, got: object = None, expected: object = None) -> ReferenceValueInvalid:
    return ReferenceValueInvalid(
        f"reference values: {problem}",
        check=_CHECK,
        got=got,
        expected=expected,
        hint="fetch the file from NVIDIA's RIM service again",
    )

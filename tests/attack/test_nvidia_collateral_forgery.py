"""Whoever carries NVIDIA's files forges, wraps or inflates them: a typed refusal, nothing returned.

The attacker holds a PKI of their own and every genuine file. They do not hold the keys of the root
that the policy trusts, except where a test says that a trusted signer made a bad file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from lxml import etree
from nvidia_world import (
    DRIVER,
    DRIVER_RIM,
    HASH,
    NOW,
    PKI,
    SWID,
    VBIOS,
    VBIOS_RIM,
    authority,
    digest,
    policy,
    rim,
    sign_swid,
    swid,
    verified,
)
from signxml.algorithms import CanonicalizationMethod, DigestAlgorithm, SignatureMethod
from signxml.signer import XMLSigner

from sealtrain.attest.errors import ReferenceValueInvalid
from sealtrain.attest.nvidia.collateral import MAX_RIM_BYTES, GpuCollateral
from sealtrain.attest.nvidia.rim import check_reference_values, parse_rim, verify_rim
from sealtrain_rehearsal.simulator.gpu_pki import Signed

pytestmark = [pytest.mark.claim("C41"), pytest.mark.negative(50)]

ROOT = PKI.rim_signer[-1]
GOOD = {3: [digest("good")], 5: [digest("other"), digest("good")]}
EVIL = {3: [digest("evil")], 5: [digest("evil")]}
DS = "http://www.w3.org/2000/09/xmldsig#"
GENUINE = rim(DRIVER, GOOD)
SECONDS = 3.0


@contextmanager
def promptly() -> Iterator[None]:
    start = time.thread_time()
    yield
    assert time.thread_time() - start < SECONDS


def refused(xml: bytes, *, pinned: bool = True) -> None:
    """Neither verifies; pinning a file forgives no more than its signer's age."""
    with promptly(), pytest.raises(ReferenceValueInvalid):
        verify_rim(xml, simulator_root=ROOT.der, now=NOW, pinned=pinned)


def values(xml: bytes) -> Any:
    return verify_rim(xml, simulator_root=ROOT.der, now=NOW, pinned=False).rim.measurements


def tree(xml: bytes = GENUINE) -> etree._Element:
    return etree.fromstring(xml)


def signature(root: etree._Element) -> etree._Element:
    found = root.find(f"{{{DS}}}Signature")
    assert found is not None
    return found


def detached(root: etree._Element) -> etree._Element:
    """The signature, taken out of its document."""
    found = signature(root)
    root.remove(found)
    return found


def test_the_genuine_file_holds() -> None:
    assert values(GENUINE) == {3: (digest("good"),), 5: (digest("other"), digest("good"))}


# --- wrapping: the signed element moves, an unsigned one takes its place


def wrapped_in_a_new_root() -> bytes:
    genuine = tree()
    outer = swid(DRIVER, EVIL)
    outer.append(signature(genuine))
    outer.append(genuine)
    return etree.tostring(outer)


def genuine_inside_the_signature() -> bytes:
    genuine = tree()
    outer, sign = swid(DRIVER, EVIL), detached(genuine)
    etree.SubElement(sign, f"{{{DS}}}Object").append(genuine)
    outer.append(sign)
    return etree.tostring(outer)


def genuine_before_the_evil_payload() -> bytes:
    genuine = tree()
    evil = swid(DRIVER, EVIL).find(f"{{{SWID}}}Payload")
    genuine.insert(0, evil)
    return etree.tostring(genuine)


def evil_after_the_signature() -> bytes:
    genuine = tree()
    genuine.append(swid(DRIVER, EVIL).find(f"{{{SWID}}}Payload"))
    return etree.tostring(genuine)


def evil_inside_the_signature() -> bytes:
    # The enveloped-signature transform takes the signature, and all in it, out of what is signed.
    genuine = tree()
    etree.SubElement(signature(genuine), f"{{{DS}}}Object").append(swid(DRIVER, EVIL))
    return etree.tostring(genuine)


def two_signatures() -> bytes:
    genuine, forged = tree(), tree(rim(DRIVER, EVIL, chain=[authority("forger", None)] * 2))
    genuine.insert(0, signature(forged))
    return etree.tostring(genuine)


def genuine_signature_over_another_file() -> bytes:
    outer = swid(DRIVER, EVIL)
    outer.append(signature(tree()))
    return etree.tostring(outer)


def signature_below_the_payload() -> bytes:
    genuine = tree()
    genuine.find(f"{{{SWID}}}Payload").append(signature(genuine))
    return etree.tostring(genuine)


def signature_is_the_root() -> bytes:
    genuine = tree()
    sign = detached(genuine)
    etree.SubElement(sign, f"{{{DS}}}Object").append(genuine)
    return etree.tostring(sign)


def without_a_signature() -> bytes:
    return etree.tostring(swid(DRIVER, GOOD))


def one_more_resource() -> bytes:
    genuine = tree()
    extra = swid(DRIVER, {9: [digest("evil")]}).find(f"{{{SWID}}}Payload/{{{SWID}}}Resource")
    genuine.find(f"{{{SWID}}}Payload").append(extra)
    return etree.tostring(genuine)


def another_version() -> bytes:
    return GENUINE.replace(b'colloquialVersion="590.12"', b'colloquialVersion="590.13"')


WRAPPINGS = (
    wrapped_in_a_new_root,
    genuine_inside_the_signature,
    genuine_before_the_evil_payload,
    evil_after_the_signature,
    two_signatures,
    genuine_signature_over_another_file,
    signature_below_the_payload,
    signature_is_the_root,
    without_a_signature,
    one_more_resource,
    another_version,
)


@pytest.mark.parametrize("forge", WRAPPINGS, ids=lambda forge: forge.__name__)
def test_what_was_moved_wrapped_or_added_is_refused(forge: Callable[[], bytes]) -> None:
    forged = forge()
    assert forged != GENUINE
    refused(forged)


def test_what_hides_inside_the_signature_is_never_read() -> None:
    try:
        found = values(evil_inside_the_signature())
    except ReferenceValueInvalid:
        return
    assert found == values(GENUINE)


def referring(identity: str) -> Callable[[etree._Element], bytes]:
    """A trusted signer signs one element, not the document."""

    def sign(root: etree._Element) -> bytes:
        root.find(f"{{{SWID}}}Payload").set("Id", identity)
        return sign_swid(root, reference_uri=f"#{identity}")

    return sign


def test_a_signature_over_one_element_is_refused_even_from_a_trusted_signer() -> None:
    partial = referring("values")(swid(DRIVER, GOOD))
    refused(partial)
    # What that would have opened: the signed element elsewhere, an unsigned one in its place.
    root = tree(partial)
    signed = root.find(f"{{{SWID}}}Payload")
    root.replace(signed, swid(DRIVER, EVIL).find(f"{{{SWID}}}Payload"))
    etree.SubElement(root, f"{{{SWID}}}Link").append(signed)
    refused(etree.tostring(root))


# --- algorithms and keys that are not the vendor's


@pytest.mark.parametrize(
    "changes",
    [
        {"signature_algorithm": SignatureMethod.ECDSA_SHA256},
        {"signature_algorithm": SignatureMethod.ECDSA_SHA512},
        {"digest_algorithm": DigestAlgorithm.SHA256},
        {"digest_algorithm": DigestAlgorithm.SHA512},
        {"c14n_algorithm": CanonicalizationMethod.EXCLUSIVE_XML_CANONICALIZATION_1_0},
        {"c14n_algorithm": CanonicalizationMethod.CANONICAL_XML_1_1_WITH_COMMENTS},
    ],
)
def test_other_algorithms_are_refused_even_from_a_trusted_signer(changes: dict[str, Any]) -> None:
    signer = XMLSigner(
        **{
            "signature_algorithm": SignatureMethod.ECDSA_SHA384,
            "digest_algorithm": DigestAlgorithm.SHA384,
            **changes,
        }
    )
    chain = PKI.rim_signer
    signed = signer.sign(
        swid(DRIVER, GOOD),
        key=chain[0].key,
        cert=[certificate.certificate for certificate in chain],
    )
    refused(etree.tostring(signed))


def chains() -> dict[str, Sequence[Signed]]:
    forger = authority("forger", None)
    middle = authority("middle", ROOT)
    intermediate = authority("no authority", ROOT, ca=False)
    narrow = authority("narrow", ROOT, path_length=0)
    below = authority("below", narrow)
    small = authority("small", middle, ca=False, curve=ec.SECP256R1())
    leaf = authority("signer", middle, ca=False)
    return {
        "root of the forger": [authority("signer", forger, ca=False), forger],
        "forger under the trusted root's certificate": [authority("x", forger, ca=False), ROOT],
        "trusted root is missing": [leaf, middle],
        "a link is missing": [leaf, ROOT],
        "links exchanged": [leaf, ROOT, middle],
        "root first": [ROOT, leaf, middle, ROOT],
        "signer is an authority": [middle, ROOT],
        "signer is the root": [ROOT, ROOT],
        "root alone": [ROOT],
        "issuer is no authority": [authority("s", intermediate, ca=False), intermediate, ROOT],
        "path too long": [authority("s", below, ca=False), below, narrow, ROOT],
        "signer on P-256": [small, middle, ROOT],
        "too many": [leaf, middle, ROOT, ROOT, ROOT, ROOT],
        "device signs reference values": list(PKI.device("GH100", 0).chain),
    }


@pytest.mark.parametrize("name", chains())
def test_a_chain_that_does_not_hold_is_refused(name: str) -> None:
    chain = chains()[name]
    if chain[0].key.curve.name == "secp256r1":
        signer = XMLSigner(
            signature_algorithm=SignatureMethod.ECDSA_SHA384,
            digest_algorithm=DigestAlgorithm.SHA384,
        )
        signed = signer.sign(
            swid(DRIVER, GOOD),
            key=chain[0].key,
            cert=[certificate.certificate for certificate in chain],
        )
        refused(etree.tostring(signed))
        return
    refused(rim(DRIVER, GOOD, chain=chain))


def test_a_good_chain_of_the_same_making_holds() -> None:
    middle = authority("middle", ROOT)
    chain = [authority("signer", middle, ca=False), middle, ROOT]
    assert values(rim(DRIVER, GOOD, chain=chain)) == values(GENUINE)


def test_certificates_do_not_stand_in_for_each_other() -> None:
    forger = authority("forger", None)
    forged = tree(rim(DRIVER, EVIL, chain=[forger] * 2))
    holder = signature(forged).find(f"{{{DS}}}KeyInfo/{{{DS}}}X509Data")
    genuine = signature(tree()).find(f"{{{DS}}}KeyInfo/{{{DS}}}X509Data")
    own = next(iter(holder))
    signature(forged).find(f"{{{DS}}}KeyInfo").replace(holder, genuine)
    refused(etree.tostring(forged))  # the forger's signature, the trusted chain
    genuine.insert(0, own)
    refused(etree.tostring(forged))  # the forger's certificate before the trusted chain


def test_a_bare_key_is_no_chain() -> None:
    signer = XMLSigner(
        signature_algorithm=SignatureMethod.ECDSA_SHA384, digest_algorithm=DigestAlgorithm.SHA384
    )
    for key in (PKI.rim_signer[0].key, ec.generate_private_key(ec.SECP384R1())):
        refused(etree.tostring(signer.sign(swid(DRIVER, GOOD), key=key)))
    both = signer.sign(
        swid(DRIVER, GOOD),
        key=PKI.rim_signer[0].key,
        cert=[certificate.certificate for certificate in PKI.rim_signer],
        always_add_key_value=True,
    )
    refused(etree.tostring(both))


def test_a_simulators_file_is_refused_where_nvidia_is_asked_for() -> None:
    with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
        verify_rim(GENUINE, simulator_root=None, now=NOW, pinned=True)


def test_nvidias_file_is_refused_where_a_simulator_is_asked_for(shared: Path) -> None:
    xml = (shared / "vectors/nvidia/rim/driver_GH100_550.144.03.xml").read_bytes()
    assert verify_rim(xml, simulator_root=None, now=1_735_689_600, pinned=False).rim.version
    with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
        verify_rim(xml, simulator_root=ROOT.der, now=NOW, pinned=True)


# --- XML that harms whoever parses it

LAUGHS = b"".join(b'<!ENTITY l%d "%s">' % (level + 1, b"&l%d;" % level * 10) for level in range(9))
BOMBS: dict[str, bytes] = {
    "billion laughs": b'<!DOCTYPE a [<!ENTITY l0 "ha">' + LAUGHS + b"]><a>&l9;</a>",
    "quadratic blow-up": b'<!DOCTYPE a [<!ENTITY l "'
    + b"h" * 50_000
    + b'">]><a>'
    + b"&l;" * 30_000
    + b"</a>",
    "external entity": b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    "external document type": b'<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd"><a/>',
    "parameter entity": b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>',
    "default attributes": b'<!DOCTYPE a [<!ATTLIST a x CDATA "evil">]><a/>',
    "document type in UTF-16": '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE a []><a/>'.encode(
        "utf-16"
    ),
    "document type in UTF-7": b'<?xml version="1.0" encoding="UTF-7"?>+ADwAIQ-DOCTYPE a+AD4-<a/>',
    "undeclared entity": b"<a>&undeclared;</a>",
    "include": b'<a xmlns:x="http://www.w3.org/2001/XInclude"><x:include href="/etc/passwd"/></a>',
    "stylesheet": b'<?xml-stylesheet type="text/xsl" href="http://127.0.0.1:9/"?><a/>',
    "deep": b"<a>" * 30_000 + b"</a>" * 30_000,
    "deep and open": b"<a>" * 80_000,
    "huge attribute": b'<a b="' + b"x" * 200_000 + b'"/>',
    "huge name": b"<" + b"a" * 200_000 + b"/>",
    "many attributes": b"<a " + b" ".join(b'a%d=""' % n for n in range(20_000)) + b"/>",
    "many namespaces": b"<a "
    + b" ".join(b'xmlns:n%d="u"' % n for n in range(9_000))
    + b">"
    + b"<b/>" * 9_000
    + b"</a>",
    "many elements": b"<a>" + b"<b/>" * 60_000 + b"</a>",
    "too long": b"<a>" + b" " * MAX_RIM_BYTES + b"</a>",
    "empty": b"",
    "not XML": b"\x00\xff" * 100,
    "NUL": GENUINE.replace(b"<", b"\0<", 1),
    "CORIM, which is CBOR": bytes.fromhex("d901f4d901f6d28458"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_in_a_refusal_in_bounded_time(name: str) -> None:
    refused(BOMBS[name])
    with promptly(), pytest.raises(ReferenceValueInvalid):
        parse_rim(BOMBS[name])


@pytest.mark.parametrize("name", ["billion laughs", "external entity", "default attributes"])
def test_a_document_type_before_a_genuine_file_is_refused(name: str) -> None:
    prolog = BOMBS[name][: BOMBS[name].index(b"]>") + 2].replace(
        b"DOCTYPE a", b"DOCTYPE SoftwareIdentity"
    )
    refused(prolog + GENUINE)


# --- bad files by a trusted signer: the form is judged whoever signed


def edited(change: Callable[[etree._Element, list[etree._Element]], None]) -> bytes:
    root = swid(DRIVER, GOOD)
    change(root, root.findall(f".//{{{SWID}}}Resource"))
    return sign_swid(root)


def meta(root: etree._Element) -> etree._Element:
    found = root.find(f"{{{SWID}}}Meta")
    assert found is not None
    return found


def doubled(element: etree._Element) -> None:
    element.addnext(etree.fromstring(etree.tostring(element)))


H0 = f"{{{HASH}}}Hash0"
EDITS: dict[str, Callable[[etree._Element, list[etree._Element]], None]] = {
    "index twice": lambda root, rows: rows[0].set("index", "5"),
    "same row twice": lambda root, rows: doubled(rows[0]),
    "index twice, once inactive": lambda root, rows: (
        doubled(rows[0]),
        rows[0].set("active", "False"),
    )[0],
    "index missing": lambda root, rows: rows[0].attrib.pop("index") and None,
    "index negative": lambda root, rows: rows[0].set("index", "-1"),
    "index with a sign": lambda root, rows: rows[0].set("index", "+3"),
    "index padded": lambda root, rows: rows[0].set("index", "03"),
    "index in other digits": lambda root, rows: rows[0].set("index", "\u0663"),
    "index too large": lambda root, rows: rows[0].set("index", "255"),
    "index huge": lambda root, rows: rows[0].set("index", "9" * 5000),
    "active in other letters": lambda root, rows: rows[0].set("active", "true"),
    "active missing": lambda root, rows: rows[0].attrib.pop("active") and None,
    "none active": lambda root, rows: [row.set("active", "False") for row in rows] and None,
    "digest short": lambda root, rows: rows[0].set(H0, "00" * 47),
    "digest not hex": lambda root, rows: rows[0].set(H0, "zz" * 48),
    "digest missing": lambda root, rows: rows[0].attrib.pop(H0) and None,
    "digest of no namespace": lambda root, rows: rows[0].set("Hash0", rows[0].attrib.pop(H0)),
    "more digests than said": lambda root, rows: rows[1].set("alternatives", "1"),
    "fewer digests than said": lambda root, rows: rows[1].set("alternatives", "3"),
    "no alternatives": lambda root, rows: rows[0].set("alternatives", "0"),
    "size of another digest": lambda root, rows: rows[0].set("size", "32"),
    "version missing": lambda root, rows: meta(root).attrib.pop("colloquialVersion") and None,
    "version with a path": lambda root, rows: meta(root).set("colloquialVersion", "../1"),
    "two Metas": lambda root, rows: doubled(meta(root)),
    "two Payloads": lambda root, rows: doubled(rows[0].getparent()),
    "no Payload": lambda root, rows: root.remove(rows[0].getparent()),
    "another root element": lambda root, rows: setattr(root, "tag", f"{{{SWID}}}Other"),
    "another namespace": lambda root, rows: setattr(root, "tag", "{urn:a}SoftwareIdentity"),
    "too deep": lambda root, rows: _nest(meta(root), 10),
}


def _nest(element: etree._Element, depth: int) -> None:
    for _ in range(depth):
        element = etree.SubElement(element, f"{{{SWID}}}Link")


@pytest.mark.parametrize("name", EDITS)
def test_a_trusted_signer_does_not_excuse_the_form(name: str) -> None:
    bad = edited(EDITS[name])
    refused(bad)


# --- sweeps


def test_no_flipped_byte_of_the_signed_part_passes() -> None:
    signed = GENUINE[: GENUINE.index(b"<ds:Signature ")]
    for at in range(0, len(signed), 9):
        altered = GENUINE[:at] + bytes([GENUINE[at] ^ 0x01]) + GENUINE[at + 1 :]
        refused(altered)


def test_a_flipped_byte_of_the_signature_changes_no_value() -> None:
    genuine, accepted = values(GENUINE), 0
    start = GENUINE.index(b"<ds:Signature ")
    for at in range(start, len(GENUINE), 13):
        altered = GENUINE[:at] + bytes([GENUINE[at] ^ 0x02]) + GENUINE[at + 1 :]
        try:
            assert values(altered) == genuine
            accepted += 1
        except ReferenceValueInvalid:
            continue
    # White space between base64 characters is all that may differ.
    assert accepted < 10


def test_no_truncated_file_passes() -> None:
    for end in range(0, len(GENUINE) - 1, 29):
        refused(GENUINE[:end])


def test_no_flipped_byte_of_a_real_file_passes(shared: Path) -> None:
    xml = (shared / "vectors/nvidia/rim/driver_GH100_550.144.03.xml").read_bytes()
    for at in range(0, xml.index(b"<ds:Signature "), 503):
        altered = xml[:at] + bytes([xml[at] ^ 0x01]) + xml[at + 1 :]
        with pytest.raises(ReferenceValueInvalid):
            verify_rim(altered, simulator_root=None, now=1_735_689_600, pinned=True)


def test_a_forged_file_among_collateral_gives_no_claim() -> None:
    device = verified()
    good = {7: [device.measurements[8]]}
    forged = rim(VBIOS, {9: [device.measurements[10]]}, chain=[authority("forger", None)] * 2)
    collateral = GpuCollateral.build(
        rims={DRIVER_RIM: rim(DRIVER, good), VBIOS_RIM: forged}, ocsp=()
    )
    with pytest.raises(ReferenceValueInvalid):
        check_reference_values(device, collateral, policy(), simulator_root=ROOT.der, now=NOW)


def test_the_trusted_root_is_a_whole_certificate_not_its_name() -> None:
    double = authority("NVIDIA CoRIM signing Root CA", None)
    assert double.certificate.subject == ROOT.certificate.subject
    assert isinstance(double.certificate, x509.Certificate)
    refused(rim(DRIVER, EVIL, chain=[authority("signer", double, ca=False), double]))

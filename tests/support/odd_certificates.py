"""Certificates of odd DER: everything a certificate has, written by hand and signed all the same.

The names say what is odd. A chain is an attestation key's of Google's form, on RSA; the oddity is
in the key's own certificate (place 0), the intermediate's (1) or the root's (2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.attest.tpm.chain import MACHINE_OID
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine

PLACES: Final = (0, 1, 2)
NAMES: Final = ("SIMULATED vTPM", "SIMULATED EK/AK CA Intermediate", "SIMULATED EK/AK CA Root")
Fields = dict[str, Any]


def element(tag: int, *parts: bytes) -> bytes:
    """One DER element."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def sequence(*parts: bytes) -> bytes:
    return element(0x30, *parts)


def integer(value: int) -> bytes:
    return element(2, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=value < 0))


def oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    written = b""
    for arc in (40 * first + second, *rest):
        digits = [arc & 0x7F]
        while arc := arc >> 7:
            digits.insert(0, arc & 0x7F | 0x80)
        written += bytes(digits)
    return element(6, written)


def named(text: bytes, tag: int = 0x0C) -> bytes:
    return sequence(element(0x31, sequence(oid("2.5.4.3"), element(tag, text))))


def extension(name: str, value: bytes, critical: bytes = b"") -> bytes:
    return sequence(oid(name), critical, element(4, value))


YES, NO, ONE, NULL = element(1, b"\xff"), element(1, b"\0"), element(1, b"\1"), element(5)
RSA_SHA256: Final = sequence(oid("1.2.840.113549.1.1.11"), NULL)
EARLY, LATE = element(0x17, b"240101000000Z"), element(0x18, b"21220101000000Z")


def basic(*parts: bytes, critical: bytes = YES) -> bytes:
    return extension("2.5.29.19", sequence(*parts), critical)


def usage(bits: bytes) -> bytes:
    return extension("2.5.29.15", element(3, bits), YES)


@cache
def keys() -> tuple[rsa.RSAPrivateKey, ...]:
    """Of the leaf, the intermediate and the root."""
    return tuple(rsa.generate_private_key(65537, 2048) for _ in PLACES)


def _public(place: int) -> bytes:
    return keys()[place].public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip


def _extensions(place: int) -> tuple[bytes, ...]:
    if place:
        return basic(YES), usage(b"\1\6")
    return basic(), usage(b"\7\x80"), extension(MACHINE_OID, SimulatedMachine().der())


def _certificate(place: int, odd: Fields) -> bytes:
    above = min(place + 1, 2)
    fields: Fields = {
        "version": element(0xA0, integer(2)),
        "serial": integer(place + 1),
        "algorithm": RSA_SHA256,
        "issuer": named(NAMES[above].encode()),
        "validity": sequence(EARLY, LATE),
        "subject": named(NAMES[place].encode()),
        "key": _public(place),
        "ids": b"",
        "extensions": element(0xA3, sequence(*_extensions(place))),
        "behind": b"",
    }
    fields |= {name: odd[name] for name in fields.keys() & odd.keys()}
    body = sequence(*fields.values())
    signature = keys()[above].sign(body, padding.PKCS1v15(), hashes.SHA256())
    around: Fields = {"outer": fields["algorithm"], "unused": b"\0", "end": b"", **odd}
    return sequence(body, around["outer"], element(3, around["unused"], signature), around["end"])


def odd_chain(place: int, odd: Fields) -> tuple[bytes, ...]:
    """A chain whose certificate at ``place`` has odd fields; certificates below name it right."""
    changes: list[Fields] = [{}, {}, {}]
    changes[place] = dict(odd)
    if "subject" in odd and place:
        changes[place - 1]["issuer"] = odd["subject"]
        if place == 2:
            changes[2]["issuer"] = odd["subject"]
    return tuple(_certificate(at, changes[at]) for at in PLACES)


def oddities(place: int) -> dict[str, Fields]:
    """What is odd → the fields that make it so; ``as it is`` is not odd."""
    honest = _extensions(place)
    rest = honest[1:]
    says = (YES,) if place else ()

    def with_(*parts: bytes) -> Fields:
        return {"extensions": element(0xA3, sequence(*parts))}

    def more(name: str, value: bytes, critical: bytes = b"") -> Fields:
        return with_(*honest, extension(name, value, critical))

    def bits(written: bytes) -> Fields:
        return with_(honest[0], usage(written), *honest[2:])

    found: dict[str, Fields] = {
        "as it is": {},
        "no version": {"version": b""},
        "version 2": {"version": element(0xA0, integer(1))},
        "version 4": {"version": element(0xA0, integer(3))},
        "serial empty": {"serial": element(2)},
        "serial padded": {"serial": element(2, b"\0\1")},
        "serial negative": {"serial": integer(-5)},
        "no extensions": {"extensions": b""},
        "extensions empty": with_(),
        "bytes behind extensions": {"extensions": element(0xA3, sequence(*honest), NULL)},
        "no basic constraints": with_(*rest),
        "no usage": with_(honest[0], *honest[2:]),
        "constraints twice": with_(*honest, honest[0]),
        "constraints false": with_(basic(NO), *rest),
        "constraints one": with_(basic(ONE), *rest),
        "constraints with depth 0": with_(basic(YES, integer(0)), *rest),
        "constraints with depth -1": with_(basic(YES, integer(-1)), *rest),
        "constraints of depth alone": with_(basic(integer(3)), *rest),
        "constraints and more": with_(basic(YES, integer(0), integer(0)), *rest),
        "constraints of the other role": with_(basic() if place else basic(YES), *rest),
        "constraints explicitly not critical": with_(basic(*says, critical=NO), *rest),
        "constraints critical by one": with_(basic(*says, critical=ONE), *rest),
        "usage of no bit": bits(b"\0"),
        "usage of no byte": bits(b""),
        "usage with a spare bit set": bits(b"\7\xff"),
        "usage with a spare byte": bits(b"\0\x80\0"),
        "usage of all": bits(b"\7\xff\x80"),
        "usage to encipher only": bits(b"\0\x81"),
        "usage of both roles": bits(b"\1\x86"),
        "unknown, critical": more("1.2.3.4", NULL, YES),
        "unknown, not critical": more("1.2.3.4", b"junk"),
        "unknown, explicitly not critical": more("1.2.3.4", b"junk", NO),
        "name constraints": more("2.5.29.30", sequence(), YES),
        "a name in Teletex": {"subject": named(b"SIMULATED", 0x14)},
        "a name that is no UTF-8": {"subject": named(b"SIMULATED\xff")},
        "a name that is not printable": {"subject": named(b"SIM@*", 0x13)},
        "a name beyond ASCII": {"subject": named(b"a\xff", 0x16)},
        "a number for a name": {"subject": named(b"\3", 2)},
        "no name": {"subject": sequence()},
        "an empty name": {"subject": sequence(element(0x31))},
        "names out of order": {
            "subject": sequence(
                element(
                    0x31,
                    sequence(oid("2.5.4.10"), element(0x0C, b"z")),
                    sequence(oid("2.5.4.3"), element(0x0C, b"a")),
                )
            )
        },
        "another issuer": {"issuer": named(b"SIMULATED other")},
        "issuer in another encoding": {"issuer": named(NAMES[min(place + 1, 2)].encode(), 0x13)},
        "times and more": {"validity": sequence(EARLY, LATE, NULL)},
        "times reversed": {"validity": sequence(LATE, EARLY)},
        "algorithms differ": {"outer": sequence(oid("1.2.840.113549.1.1.12"), NULL)},
        "algorithm without parameters": {"algorithm": sequence(oid("1.2.840.113549.1.1.11"))},
        "algorithm with odd parameters": {
            "algorithm": sequence(oid("1.2.840.113549.1.1.11"), element(4, b"x"))
        },
        "spare bits of the signature": {"unused": b"\1"},
        "bytes behind the signature": {"end": NULL},
        "bytes behind the body": {"behind": element(0xA4, NULL)},
        "an id": {"ids": element(0x81, b"\0x")},
        "an id with spare bits set": {"ids": element(0x81, b"\7x")},
        "an empty id": {"ids": element(0x81)},
        "ids reversed": {"ids": element(0x82, b"\0x") + element(0x81, b"\0x")},
    }
    for written in (b"20240101000000Z", b"20240230000000Z", b"20240101240000Z", b"20240101000060Z"):
        found[f"begins {written.decode()}"] = {
            "validity": sequence(element(0x18, written), LATE)
        }  # fmt: skip
    for written in (b"2401010000Z", b"240101000000+0100", b"500101000000Z", b"24010100000 Z"):
        found[f"begins {written.decode()}"] = {"validity": sequence(element(0x17, written), LATE)}
    for content in (b"\x2a\x80\x03", b"\x2a\x83", b"", b"\x2a" + b"\1" * 80):
        odd = sequence(element(6, content), element(4))
        found[f"object identifier {content[:4].hex()}"] = with_(*honest, odd)
    for name in ("2.5.29.37", "2.5.29.17", "2.5.29.35", "2.5.29.14", "2.5.29.32", "2.5.29.31"):
        found[f"truncated {name}"] = more(name, b"\x30\x05")
    for name in ("1.3.6.1.5.5.7.1.1", "1.3.6.1.5.5.7.1.24", "1.3.6.1.4.1.11129.2.4.2"):
        found[f"truncated {name}"] = more(name, b"\x30\x05")
    return {**found, **_keys(place), **(_machines(honest, with_) if not place else {})}


def _keys(place: int) -> dict[str, Fields]:
    number = keys()[place].public_key().public_numbers().n
    kind = sequence(oid("1.2.840.113549.1.1.1"), NULL)
    raw = number.to_bytes(256, "big")
    point = ec.generate_private_key(ec.SECP256R1()).public_key()
    written = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def of(*numbers: bytes, kind: bytes = kind, unused: bytes = b"\0", more: bytes = b"") -> Fields:
        return {"key": sequence(kind, element(3, unused, sequence(*numbers)), more)}

    pair = integer(number), integer(65537)
    return {
        "key without parameters": of(*pair, kind=sequence(oid("1.2.840.113549.1.1.1"))),
        "key for PSS alone": of(*pair, kind=sequence(oid("1.2.840.113549.1.1.10"))),
        "key of three numbers": of(*pair, integer(1)),
        "key and more": of(*pair, more=NULL),
        "key with spare bits": of(*pair, unused=b"\1"),
        "modulus padded": of(element(2, b"\0\0", raw), pair[1]),
        "modulus negative": of(element(2, raw), pair[1]),
        "exponent even": of(pair[0], integer(65536)),
        "exponent one": of(pair[0], integer(1)),
        "curve without a name": {
            "key": sequence(sequence(oid("1.2.840.10045.2.1")), element(3, b"\0", written))
        },
    }


def _machines(
    honest: tuple[bytes, ...], with_: Callable[..., Fields]
) -> dict[str, Fields]:  # fmt: skip
    """Google's name of a machine, in odd forms."""
    zone, number, project = element(0x0C, b"zone-a"), integer(1), element(0x0C, b"project")
    instance, name = integer(7), element(0x0C, b"name")
    made = element(0xA1, YES)

    def of(*fields: bytes) -> Fields:
        return with_(*honest[:2], extension(MACHINE_OID, sequence(*fields)))

    def properties(*held: bytes) -> Fields:
        return of(zone, number, project, instance, name, element(0xA0, sequence(*held)))

    own = honest[2]
    return {
        "machine twice": with_(*honest, own),
        "machine missing": with_(*honest[:2]),
        "machine first": with_(own, honest[1], honest[0]),
        "machine and more": with_(
            *honest[:2], extension(MACHINE_OID, SimulatedMachine().der() + b"\0")
        ),
        "machine by its parts": properties(element(0xA0, integer(0)), made),
        "no properties": of(zone, number, project, instance, name),
        "properties empty": properties(),
        "properties out of order": properties(made, element(0xA0, integer(0))),
        "made twice": properties(made, made),
        "not made for production": properties(element(0xA1, NO)),
        "made by one": properties(element(0xA1, ONE)),
        "made and more": properties(element(0xA1, YES, NULL)),
        "made, primitive": properties(element(0x81, b"\xff")),
        "a later property": properties(made, element(0xA2, b"junk")),
        "a universal tag": properties(NULL, made),
        "a long tag": properties(made, b"\xbf\x1f\0"),
        "a length of three bytes": properties(made, b"\xa2\x83\0\0\1x"),
        "a length without end": properties(made, b"\xa2\x80\0\0"),
        "version beyond 64 bits": properties(element(0xA0, integer(2**80)), made),
        **{
            f"machine {value}": of(
                zone, number, project, integer(value), name, element(0xA0, sequence(made))
            )
            for value in (2**64 - 1, 2**71 - 1, 2**72, -1)
        },
        **{
            f"zone {text[:3]!r} of {len(text)}": of(
                element(0x0C, text), number, project, instance, name, element(0xA0, sequence(made))
            )
            for text in (b"a b", b"a" * 128, b"a" * 129, b"\x7f", b"")
        },
    }

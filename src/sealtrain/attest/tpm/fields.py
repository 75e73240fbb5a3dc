"""The fields of a vTPM's quote, for explanations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.field import CPU, Field, rows_of
from sealtrain.attest.tpm.form import QuotedTpm
from sealtrain.attest.tpm.quote import parse_quote
from sealtrain.base.encoding import from_base64


def tpm_fields(
    shown: QuotedTpm, meanings: Mapping[int, str], certificates: tuple[bytes, ...] = ()
) -> Iterable[Field]:
    """Every field of a vTPM's quote but its signature.

    Args:
        shown: The quote.
        meanings: What registers hold on such a machine, by their number.
        certificates: Chain of the attestation key (DER), where there is one.
    """
    quote = parse_quote(from_base64(shown.message))
    rows = [
        ("qualifying data", quote.qualifying_data.hex(), "What the vTPM was asked to sign for."),
        ("vTPM bank", quote.bank, "How its registers are extended."),
        ("vTPM selection", ", ".join(map(str, quote.selection)), "Which registers it quoted."),
        ("vTPM resets", f"{quote.resets}, {quote.restarts} restarts", "Which boot it quoted."),
        ("vTPM digest", quote.digest.hex(), "SHA-256 of the quoted registers."),
    ]
    for index, value in sorted(shown.values.items()):
        meaning = meanings.get(index, "A register of the vTPM.")
        rows.append((f"PCR {index}", value.hex(), meaning))
    rows.append(("vTPM identity", quote.identity, "SHA-256 of what its signature covers."))
    yield from rows_of(rows)
    yield from certificate_fields(CPU, certificates)

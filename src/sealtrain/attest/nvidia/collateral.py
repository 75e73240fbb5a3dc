"""What NVIDIA publishes about accelerators, archived: reference values, revocation, verdicts.

Everything in it is signed by NVIDIA except the key set (``jwks``) beside a remote verdict: the
archive's owner vouches for it. A verifier therefore takes verdicts from its own archive only, never
from the guest it judges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import StrictModel, load_canonical, load_model
from sealtrain.errors import DataInvalid, EvidenceMalformed

__all__ = [
    "MAX_COLLATERAL_BYTES",
    "MAX_JWKS_CHARS",
    "MAX_OCSP_ANSWERS",
    "MAX_OCSP_BYTES",
    "MAX_RIMS",
    "MAX_RIM_BYTES",
    "MAX_TOKEN_CHARS",
    "RIM_ID",
    "GpuCollateral",
    "RemoteVerdict",
]

MAX_COLLATERAL_BYTES = 8 << 20
_MAX_VALUES = 1 << 10
MAX_RIM_BYTES = 256 << 10
MAX_RIMS = 32
MAX_OCSP_BYTES = 16 << 10
MAX_OCSP_ANSWERS = 128
MAX_TOKEN_CHARS = 256 << 10
MAX_JWKS_CHARS = 512 << 10
RIM_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Form of the name under which NVIDIA publishes a file of reference values."""

_RimId = Annotated[str, StringConstraints(pattern=RIM_ID)]
_Xml = Annotated[str, StringConstraints(min_length=4, max_length=MAX_RIM_BYTES * 4 // 3 + 4)]
_Answer = Annotated[str, StringConstraints(min_length=4, max_length=MAX_OCSP_BYTES * 4 // 3 + 4)]


class RemoteVerdict(StrictModel):
    """NVIDIA's signed opinion about GPUs, and the keys of the day that vouch for it.

    ``token`` is the service's whole answer, ``jwks`` its key set, both as they were received.
    """

    token: Annotated[str, StringConstraints(min_length=2, max_length=MAX_TOKEN_CHARS)]
    jwks: Annotated[str, StringConstraints(min_length=2, max_length=MAX_JWKS_CHARS)]


class GpuCollateral(StrictModel):
    """Reference values by RIM id, revocation answers (DER), an optional remote verdict."""

    rims: Annotated[dict[_RimId, _Xml], Field(max_length=MAX_RIMS)]
    ocsp: Annotated[tuple[_Answer, ...], Field(max_length=MAX_OCSP_ANSWERS)]
    nras: RemoteVerdict | None

    @field_validator("rims")
    @classmethod
    def _rims_are_base64(cls, rims: dict[str, str]) -> dict[str, str]:
        for text in rims.values():
            _require_base64(text)
        return rims

    @field_validator("ocsp")
    @classmethod
    def _answers_are_base64(cls, answers: tuple[str, ...]) -> tuple[str, ...]:
        for text in answers:
            _require_base64(text)
        return answers

    def rim(self, rim_id: str) -> bytes | None:
        """The XML file kept under an id."""
        text = self.rims.get(rim_id)
        return None if text is None else from_base64(text)

    @property
    def ocsp_answers(self) -> tuple[bytes, ...]:
        """DER of every archived OCSP answer."""
        return tuple(from_base64(text) for text in self.ocsp)

    def without_verdict(self) -> GpuCollateral:
        """The same without a remote verdict, because a stranger could have chosen its keys."""
        return self.model_copy(update={"nras": None})

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785)."""
        return canonical_json(self.to_dict())

    def to_file(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the canonical form.

        Raises:
            AlreadyExists: ``path`` exists and ``overwrite`` is false.
        """
        atomic_write(path, self.to_bytes(), overwrite=overwrite)

    @classmethod
    def from_bytes(cls, data: bytes) -> GpuCollateral:
        """Parse canonical JSON of at most ``MAX_COLLATERAL_BYTES``.

        Raises:
            EvidenceMalformed: Too long, not canonical, or not GPU collateral.
        """
        return load_canonical(
            cls,
            data,
            EvidenceMalformed,
            "GPU collateral",
            max_bytes=MAX_COLLATERAL_BYTES,
            max_values=_MAX_VALUES,
            check="GPU collateral",
            hint="it is canonical JSON (RFC 8785), as sealtrain attest fetch writes it",
        )

    @classmethod
    def from_file(cls, path: Path) -> GpuCollateral:
        """Read what ``to_file`` wrote.

        Raises:
            DataInvalid: No such file, or too large.
            EvidenceMalformed: Not GPU collateral.
        """
        return cls.from_bytes(read_bounded(path, MAX_COLLATERAL_BYTES))

    @classmethod
    def from_dict(cls, data: JsonValue) -> GpuCollateral:
        """Validate parsed JSON.

        Raises:
            EvidenceMalformed: A field is missing, unknown, of another form, or too long.
        """
        return load_model(cls, data, EvidenceMalformed, "GPU collateral")

    @classmethod
    def build(
        cls,
        *,
        rims: dict[str, bytes],
        ocsp: tuple[bytes, ...],
        nras: RemoteVerdict | None = None,
    ) -> GpuCollateral:
        """Collateral from its raw parts.

        Raises:
            EvidenceMalformed: A part is over its limit or an id is malformed.
        """
        return cls.from_dict(
            {
                "rims": {rim_id: to_base64(xml) for rim_id, xml in rims.items()},
                "ocsp": [to_base64(answer) for answer in ocsp],
                "nras": None if nras is None else nras.to_dict(),
            }
        )


def _require_base64(text: str) -> None:
    try:
        from_base64(text)
    except DataInvalid as error:
        raise ValueError(error.message) from None

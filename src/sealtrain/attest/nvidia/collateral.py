"""What NVIDIA publishes about accelerators, archived: reference values, revocation, verdicts.

Everything in it is signed by NVIDIA except the key set (``jwks``) beside a remote verdict: the
archive's owner vouches for it. A verifier therefore takes verdicts from its own archive only, never
from the guest it judges.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import ONE_SPELLING, Document, StrictModel

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
_Xml = Annotated[
    str, StringConstraints(min_length=4, max_length=MAX_RIM_BYTES * 4 // 3 + 4), ONE_SPELLING
]
_Answer = Annotated[
    str, StringConstraints(min_length=4, max_length=MAX_OCSP_BYTES * 4 // 3 + 4), ONE_SPELLING
]


class RemoteVerdict(StrictModel):
    """NVIDIA's signed opinion about GPUs, and the keys of the day that vouch for it.

    ``token`` is the service's whole answer, ``jwks`` its key set, both as they were received.
    """

    token: Annotated[str, StringConstraints(min_length=2, max_length=MAX_TOKEN_CHARS)]
    jwks: Annotated[str, StringConstraints(min_length=2, max_length=MAX_JWKS_CHARS)]


class GpuCollateral(Document):
    """Reference values by RIM id, revocation answers (DER), an optional remote verdict."""

    what = "GPU collateral"
    refusal = EvidenceMalformed
    max_bytes = MAX_COLLATERAL_BYTES
    max_values = _MAX_VALUES
    form = ("", "it is canonical JSON (RFC 8785), as sealtrain attest fetch writes it")

    rims: Annotated[dict[_RimId, _Xml], Field(max_length=MAX_RIMS)]
    ocsp: Annotated[tuple[_Answer, ...], Field(max_length=MAX_OCSP_ANSWERS)]
    nras: RemoteVerdict | None

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

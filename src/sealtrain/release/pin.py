"""The broker file: where a broker is and what it must prove before anyone talks to it.

An owner or a guest writes it once, from material reviewed out of band: the broker's URL, the hash
of its deployment document and the appraisal policy for its evidence. Every field is mandatory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import TrustInvalid

__all__ = ["BrokerPin", "load_pin"]

_MAX_BYTES = 1 << 20


class BrokerPin(StrictModel):
    """What a broker must be.

    Attributes:
        version: Format version, 1.
        url: Base URL of its HTTP interface.
        compose_hash: SHA-256 of its ``app-compose.json``.
        appraisal: Policy its evidence must meet.
    """

    version: Literal[1] = 1
    url: str
    compose_hash: Hex64
    appraisal: AppraisalPolicy

    def to_yaml(self) -> str:
        """The broker file's text."""
        return yaml_text(self.to_dict())


def load_pin(path: Path) -> BrokerPin:
    """Read a broker file.

    Raises:
        TrustInvalid: Not the YAML of ``base.yamltext``, a field missing or unknown.
        DataInvalid: The file cannot be read.
    """
    text = read_bounded(path, _MAX_BYTES)
    data = parse_yaml(text, error=TrustInvalid, what="broker file", max_bytes=_MAX_BYTES)
    return load_model(BrokerPin, data, TrustInvalid, "broker file")

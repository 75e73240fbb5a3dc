"""Rules for Intel TDX: what a quote and its collateral must say (spec/evidence.md §6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.statement import GuestPolicy
from sealtrain.base.models import Hex32, StrictModel

__all__ = ["Measurement", "QuotePolicy", "TcbStatus", "TdxPolicy"]

TcbStatus = Literal[
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
]
"""Intel's words for the state of a platform. ``Revoked`` is never acceptable."""

_Register = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$")]
_Advisory = Annotated[str, StringConstraints(pattern=r"^[A-Z0-9-]{3,64}$")]


class Measurement(StrictModel):
    """One accepted guest image on one machine shape: firmware, hardware, kernel, command line."""

    mrtd: _Register
    rtmr0: _Register
    rtmr1: _Register
    rtmr2: _Register


class QuotePolicy(GuestPolicy):
    """What every TDX quote must show. An empty list accepts nothing."""

    tee: Literal["tdx", "dstack"]
    tcb_status: Annotated[tuple[TcbStatus, ...], Field(min_length=1, max_length=8)]
    advisories: Literal["any", "none"] | Annotated[tuple[_Advisory, ...], Field(max_length=256)]
    debug: Literal["refuse"]
    migration: Literal["refuse"]
    measurements: Literal["any"] | Annotated[tuple[Measurement, ...], Field(max_length=1024)]
    platform_ids: Literal["any"] | Annotated[tuple[Hex32, ...], Field(max_length=4096)]
    min_tcb_evaluation_data_number: Annotated[int, Field(ge=0, le=1 << 31)]
    max_collateral_age_s: Literal["any"] | Annotated[int, Field(ge=1, le=1 << 31)]


class TdxPolicy(QuotePolicy):
    """A TDX guest whose MRCONFIGID names its deployment document."""

    tee: Literal["tdx"]

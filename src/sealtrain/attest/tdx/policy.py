"""Rules for Intel TDX: what a quote and its collateral must say (spec/evidence.md §6)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.statement import GuestPolicy
from sealtrain.attest.tee import NONE, SHOWN, Rules
from sealtrain.base.models import Hex32, StrictModel

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
    rtmr0: Literal["log"] | _Register
    """``log``: whatever the guest's event log replays to. No file tells this register, since the
    host's ACPI tables are in it; a bare guest's log is the firmware's (CCEL)."""
    rtmr1: _Register
    rtmr2: _Register


class QuotePolicy(GuestPolicy):
    """What every TDX quote must show. An empty list accepts nothing."""

    tee: Literal["tdx", "dstack", "dstack-gcp-tdx", "azure-tdx"]
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
    boot_log: Literal["any", "require"]
    """``require``: the firmware's event log must come along. Wherever one comes along, it must
    replay to RTMR0 to RTMR2."""

    @model_validator(mode="after")
    def _with_log(self) -> TdxPolicy:
        if (
            self.boot_log == "any"
            and self.measurements != "any"
            and any(measurement.rtmr0 == "log" for measurement in self.measurements)
        ):
            raise ValueError("rtmr0: log needs boot_log: require, or name the value of rtmr0")
        return self


_DAY = 24 * 3600

QUOTE_RULES: Final[dict[str, Any]] = {
    "tcb_status": ["UpToDate"],
    "advisories": "none",
    "debug": "refuse",
    "migration": "refuse",
    "measurements": [],
    "platform_ids": [],
    "min_tcb_evaluation_data_number": 18,
    "max_collateral_age_s": 30 * _DAY,
}
"""What every quote of hardware must show; no image is accepted yet."""
ANY_QUOTE_RULES: Final[dict[str, Any]] = {
    **QUOTE_RULES,
    "measurements": "any",
    "platform_ids": "any",
    "min_tcb_evaluation_data_number": 1,
    "max_collateral_age_s": "any",
}
"""The same for simulated quotes of any image."""
SIMULATED: Final[dict[str, Any]] = {"tee": "tdx", **ANY_QUOTE_RULES, "boot_log": "any"}
COMMENTS: Final = {
    "tcb_status": "Intel's words for the platform's state. SWHardeningNeeded is often met.",
    "advisories": "Open security advisories: none, or a list of INTEL-SA-… ids.",
    "debug": "There is no other value: in debug mode the host reads the guest's memory.",
    "migration": "There is no other value: another guest could move this one elsewhere.",
    "platform_ids": f"Machines by PPID (32 hex digits), {SHOWN}. {NONE}",
    "min_tcb_evaluation_data_number": "Oldest of Intel's reviews that counts; raise it yearly.",
    "max_collateral_age_s": "How old Intel's data may be at the time of the decision.",
}
LINES: Final = {
    "TCB status": "tcb_status",
    "advisories": "advisories",
    "collateral floor": "min_tcb_evaluation_data_number",
    "collateral age": "max_collateral_age_s",
    "debug": "debug",
    "migration": "migration",
    "service guest": "migration",
    "machine": "platform_ids",
    "guest image": "measurements",
}
RULES: Final = Rules(
    form=TdxPolicy,
    lines={**LINES, "boot log": "boot_log"},
    comments={
        **COMMENTS,
        "boot_log": "require asks for the firmware's event log (CCEL) beside the quote.",
    },
    presets={},
    simulated=SIMULATED,
)

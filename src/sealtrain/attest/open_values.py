"""What an appraisal policy leaves open, in plain words (spec/evidence.md §6.2).

A policy leaves a value open by writing ``any``, and only so. Approval pages, reports and both
verifiers name each such value; ``verify/openvalues.js`` has these words from
``tools/verifier_page.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from sealtrain.attest.policy import AppraisalPolicy

OPEN: Final = {
    "advisories": "open security advisory of the processor",
    "measurements": "guest image: firmware, kernel and command line are not compared",
    "key_provider": "key provider for the guest's own keys",
    "os_image_hash": "operating system image",
    "platform_ids": "machine, wherever it stands and whoever can open it",
    "boot_log": "guest without the log of what its firmware measured",
    "max_collateral_age_s": "age of the vendor's collateral",
    "chip_ids": "machine: no chip is named",
    "extended_tcb": "version of what the extended TCB counts",
    "mitigations": "state of the processor's mitigations",
    "platform_flags": "setting of the platform's memory and threads",
    "vmpl": "privilege level of whatever asked for the report",
    "smt": "use of simultaneous threads",
    "id_keys": "key that authorised the launch, or none",
    "revocation": "certificate without looking whether the vendor revoked it",
    "boots": "firmware and image that the machine's TPM measured: they are not compared",
    "projects": "customer of the cloud whose machine the TPM belongs to",
    "zones": "zone of the cloud",
    "instances": "machine of the cloud: no instance is named",
    "vm_ids": "virtual machine: no id is named",
    "config_id": "guest whose TPM does not commit to its configuration",
    "images": "enclave image: it is not compared",
    "signers": "signer of the enclave image, or none",
    "parents": "parent instance",
    "iam_roles": "role of the parent instance",
    "gpu": "accelerators, attested or not",
    "switch_count": "number of switches",
    "devices": "accelerator of the model: none is named",
    "driver_versions": "version of the accelerator's driver",
    "vbios_versions": "version of the accelerator's firmware",
    "reference_values": "accelerator without the vendor's reference values",
}
"""After *accepts any*, by the field of a policy that may be ``any``."""

OPEN_RTMR0: Final = "tables of the host's machine (RTMR0), as the guest's log has them"
"""After *accepts any*: what ``rtmr0: log`` leaves open."""


class OpenValue(NamedTuple):
    """One value that a policy does not look at.

    Attributes:
        field: Its path in the policy, such as ``cpu.measurements``.
        words: What it accepts, after *accepts any*.
    """

    field: str
    words: str


def open_values(policy: AppraisalPolicy) -> Iterator[OpenValue]:
    """What a policy leaves open, in the order of its fields."""
    document = policy.to_dict()
    cpu, gpu = document["cpu"], document["gpu"]
    if not isinstance(cpu, dict):
        raise TypeError("the rules of a processor are a map")
    # Processors and accelerators have fields of one name.
    written = [(f"cpu.{name}", value) for name, value in cpu.items()]
    if isinstance(gpu, dict):
        written += [(f"gpu.{name}", value) for name, value in gpu.items()]
    else:
        written.append(("gpu", gpu))
    for field, value in written:
        if value == "any":
            name = field.rpartition(".")[2]
            yield OpenValue(field, OPEN.get(name, name.replace("_", " ")))
    images = cpu.get("measurements")
    if isinstance(images, list) and any(
        isinstance(image, dict) and image.get("rtmr0") == "log" for image in images
    ):
        yield OpenValue("cpu.measurements.rtmr0", OPEN_RTMR0)

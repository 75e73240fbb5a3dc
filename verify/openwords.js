// What a trust file or policy accepts that leaves a field open: written by
// tools/verifier_page.py from attest/open_values.py and manifest/limits.py.

export const OPEN_WORDS = {
  "compose_hash": "deployment document that embeds the recipe",
  "app_id": "app id",
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
  "reference_values": "accelerator without the vendor's reference values"
};
export const OPEN_RTMR0 = "tables of the host's machine (RTMR0), as the guest's log has them";

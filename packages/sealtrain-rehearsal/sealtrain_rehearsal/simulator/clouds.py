"""Lies of dstack guests on rented machines, one at a time, while all else is right."""

from __future__ import annotations

from sealtrain_rehearsal.simulator.nitro import FAULT_MEANINGS as NITRO_FAULT_MEANINGS

TPM_FAULT_MEANINGS: dict[str, str] = {
    "tpm-other-quote": "the vTPM signed for another TDX quote (report-data-mismatch)",
    "tpm-other-events": "the vTPM's PCR 14 is of another boot (event-log-mismatch)",
    "tpm-altered-register": "a register is shown that was not quoted (measurement-mismatch)",
    "tpm-other-image": "the vTPM's PCR 2 is of another image (measurement-mismatch)",
    "tpm-other-zone": "the vTPM is of a machine in another zone (platform-mismatch)",
    "tpm-test-key": "the vTPM's key was not made for production (debug-guest)",
    "tpm-foreign-root": "another vendor's chain under the vTPM's key (quote-root-untrusted)",
    "tpm-bad-signature": "one bit of the vTPM's signature is wrong (quote-invalid)",
}
"""Of a guest on Google Cloud, besides those of TDX."""
NITRO_TPM_FAULT_MEANINGS: dict[str, str] = {
    "stale-document": "a document of four hours ago (evidence-stale)",
    "future-document": "a document of the next hour (evidence-stale)",
    "wrong-root": "another vendor of the same name (quote-root-untrusted)",
    "bad-signature": "one bit of the signature is wrong (quote-invalid)",
    "expired-leaf": "the NitroTPM's certificate has ended (certificate-chain-invalid)",
    "other-image": "another image was started (measurement-mismatch)",
    "other-events": "PCR 14 is of another boot (event-log-mismatch)",
    "other-config": "PCR 8 commits to another configuration (event-log-mismatch)",
    "enclave": "an enclave's document is shown (evidence-malformed)",
    "wrong-report-data": "the document commits to something else (report-data-mismatch)",
    "other-compose": "another deployment document was measured (compose-hash-mismatch)",
}
"""Of a guest on EC2."""

_CLOUD_TPM: dict[str, str] = {
    "tpm-altered-register": "a register is shown that was not quoted (measurement-mismatch)",
    "tpm-other-image": "the TPM's PCR 4 is of another image (measurement-mismatch)",
    "tpm-other-events": "events are shown that were not measured (event-log-mismatch)",
    "tpm-bad-signature": "one bit of the TPM's signature is wrong (quote-invalid)",
    "other-compose": "another deployment document was measured (compose-hash-mismatch)",
}
AZURE_FAULT_MEANINGS: dict[str, str] = {
    **_CLOUD_TPM,
    "tpm-other-key": "the processor signed for another key of a TPM (quote-invalid)",
    "tpm-other-machine": "runtime data of another machine (report-data-mismatch)",
    "tpm-other-conversation": "the TPM signed for another nonce (report-data-mismatch)",
}
"""Of a guest on Azure, besides those of its processor."""
GOOGLE_SNP_FAULT_MEANINGS: dict[str, str] = {
    **_CLOUD_TPM,
    "tpm-other-quote": "the vTPM signed for another report (report-data-mismatch)",
    "tpm-not-confidential": "PCR 0 is of a machine without encryption (measurement-mismatch)",
    "tpm-other-zone": "the vTPM is of a machine in another zone (platform-mismatch)",
    "tpm-test-key": "the vTPM's key was not made for production (debug-guest)",
    "tpm-foreign-root": "another vendor's chain under the vTPM's key (quote-root-untrusted)",
}
"""Of a guest on Google Cloud with SEV-SNP, besides those of its processor."""
TEST_VTPM_FAULT_MEANINGS: dict[str, str] = {
    **_CLOUD_TPM,
    "tpm-other-conversation": "the TPM signed for another nonce (report-data-mismatch)",
    "tpm-test-key": "the TPM's key was not made for production (debug-guest)",
    "tpm-foreign-root": "another vendor's chain under the TPM's key (quote-root-untrusted)",
}
"""Of a machine with a TPM under a test root."""
TEST_NITRO_FAULT_MEANINGS: dict[str, str] = {
    **NITRO_FAULT_MEANINGS,
    "other-compose": "PCR16 is of another document (compose-hash-mismatch)",
    "wrong-report-data": "the module signed for another conversation (report-data-mismatch)",
}
"""Of an enclave under a test root."""

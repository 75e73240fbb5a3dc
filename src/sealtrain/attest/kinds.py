"""The table of kinds of evidence that rented machines show (``attest.rented``).

dstack's kinds are of its platform, since the same agent shows them. Those of Azure and Google are
of the processor's.
"""

from __future__ import annotations

from typing import Final

from sealtrain.attest.cloudtpm import policy as cloudtpm
from sealtrain.attest.dstacksnp import policy as dstacksnp
from sealtrain.attest.gcp import policy as gcp
from sealtrain.attest.nitrotpm import policy as nitrotpm
from sealtrain.attest.rented import (
    AzureSnpEvidence,
    AzureTdxEvidence,
    DstackSnpEvidence,
    EnclaveTestEvidence,
    GcpEvidence,
    GcpSnpEvidence,
    NitroTpmEvidence,
    VtpmEvidence,
)
from sealtrain.attest.tee import TEST_VENDOR, Tee, TeeDevice
from sealtrain.attest.testnitro import policy as testnitro
from sealtrain.attest.testvtpm import policy as testvtpm

_TPM: Final = "dev/tpmrm0"
_AZURE: Final = ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77")
"""Of every machine on Azure, by Microsoft's documentation of its metadata service."""

TEES: Final = (
    Tee(
        name="dstack-gcp-tdx",
        of="dstack",
        folder="gcp",
        vendor="intel",
        evidence=GcpEvidence,
        rules=gcp.RULES,
        kinds=("dstack-gcp-quote",),
    ),
    Tee(
        name="dstack-aws-nitro-tpm",
        of="dstack",
        folder="nitrotpm",
        vendor="aws",
        evidence=NitroTpmEvidence,
        rules=nitrotpm.RULES,
        kinds=("nitro-tpm-document",),
    ),
    Tee(
        name="dstack-amd-sev-snp",
        of="dstack",
        folder="dstacksnp",
        vendor="amd",
        evidence=DstackSnpEvidence,
        rules=dstacksnp.RULES,
        kinds=("dstack-snp-report",),
    ),
    Tee(
        name="azure-snp",
        of="snp",
        folder="cloudtpm",
        exhibit="AZURE_SNP",
        vendor="amd",
        evidence=AzureSnpEvidence,
        rules=cloudtpm.RULES["azure-snp"],
        kinds=("azure-snp-evidence",),
        device=TeeDevice(
            path=_TPM,
            flag="",
            reports=False,
            options=("certificates",),
            cloud=_AZURE,
            maker="AuthenticAMD",
        ),
    ),
    Tee(
        name="azure-tdx",
        of="tdx",
        folder="cloudtpm",
        exhibit="AZURE_TDX",
        vendor="intel",
        evidence=AzureTdxEvidence,
        rules=cloudtpm.RULES["azure-tdx"],
        kinds=("azure-tdx-evidence",),
        device=TeeDevice(path=_TPM, flag="", reports=False, cloud=_AZURE, maker="GenuineIntel"),
    ),
    Tee(
        name="gcp-snp",
        of="snp",
        folder="cloudtpm",
        exhibit="GCP_SNP",
        vendor="amd",
        evidence=GcpSnpEvidence,
        rules=cloudtpm.RULES["gcp-snp"],
        device=TeeDevice(
            path="dev/sev-guest",
            flag="sev_snp",
            reports=True,
            options=("certificates", "tpm"),
            cloud=("product_name", "Google Compute Engine"),
        ),
    ),
    Tee(
        name="test-vtpm",
        of="simulator",
        folder="testvtpm",
        vendor=TEST_VENDOR,
        evidence=VtpmEvidence,
        rules=testvtpm.RULES,
    ),
    Tee(
        name="test-nitro",
        of="simulator",
        folder="testnitro",
        vendor=TEST_VENDOR,
        evidence=EnclaveTestEvidence,
        rules=testnitro.RULES,
    ),
)

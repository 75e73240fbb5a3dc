"""Evidence of real machines as work to be timed; its files stay outside this repository."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sealtrain.attest.evidence import Collateral
from sealtrain.attest.nitro.verify import verify_document
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.parse import GpuDevice, from_nvat
from sealtrain.attest.presets import preset
from sealtrain.attest.snp.verify import verify_report
from sealtrain.attest.tdx.parse import canonical_quote
from sealtrain.attest.tdx.verify import verify_quote

_LATE = 1_800_000_000
"""When the chains of processors and GPUs, which live for decades, are looked at."""


def evidence_of_machines(vectors: Path) -> dict[str, Callable[[], object]]:
    """Verification of one quote, document, report, GPU, and four GPUs.

    Args:
        vectors: Folder with tdx, nitro, sev-snp and nvidia.
    """
    rules = preset("dstack-h100").cpu.model_copy(update={"min_tcb_evaluation_data_number": 17})
    document = (vectors / "nitro/prod_2025_pubkey.cose").read_bytes()
    known = json.loads((vectors / "nitro/expected.json").read_text())["prod_2025_pubkey.cose"]
    chain = re.findall(
        r"BEGIN CERTIFICATE-----(.*?)-----END",
        (vectors / "sev-snp/roots/ask_ark_genoa.pem").read_text(),
        re.DOTALL,
    )
    authorities = [base64.b64decode(block) for block in chain]
    nvidia = vectors / "nvidia"
    gpu = GpuDevice.build(
        "HOPPER",
        (nvidia / "hopper_580_mpt.report.bin").read_bytes(),
        (nvidia / "hopper_580_mpt.chain.pem").read_bytes(),
    )
    four = from_nvat((nvidia / "hopper_multi4_ppcie.json").read_bytes())
    return {
        "tdx_quote": partial(
            verify_quote,
            canonical_quote((vectors / "tdx/tdx_quote").read_bytes()),
            Collateral.from_dict(
                json.loads((vectors / "tdx/tdx_quote_collateral.json").read_text())
            ),
            rules,  # type: ignore[arg-type]  # of a dstack guest
            simulator_root=None,
            now=1_750_332_747,
        ),
        "nitro": partial(
            verify_document, document, simulator_root=None, now=known["timestamp_ms"] // 1000
        ),
        "snp": partial(
            verify_report,
            (vectors / "sev-snp/genoa_azure_v3.report.bin").read_bytes(),
            ((vectors / "sev-snp/genoa_azure_v3.cert.der").read_bytes(), *authorities),
            simulator_root=None,
            now=_LATE,
        ),
        "gpu": partial(verify_device, gpu, simulator_root=None, now=_LATE),
        "four_gpus": lambda: [
            verify_device(device, simulator_root=None, now=_LATE) for device in four
        ],
    }

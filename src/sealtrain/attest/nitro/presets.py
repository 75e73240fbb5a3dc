"""Policies for Nitro enclaves to begin from, with a comment for each line."""

from __future__ import annotations

from typing import Any, Final

from sealtrain.attest.tee import FILL

__all__ = ["COMMENTS", "LINES", "PRESETS", "SIMULATED"]

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "nitro": {
        "version": 2,
        "platform": "nitro",
        "root": "aws",
        "cpu": {
            "tee": "nitro",
            "images": [],
            "signers": "any",
            "parents": "any",
            "iam_roles": "any",
            "max_age_s": 300,
            "debug": "refuse",
        },
        "gpu": "none",
    },
}
SIMULATED: Final[dict[str, Any]] = {**PRESETS["nitro"]["cpu"], "images": "any"}
COMMENTS: Final = {
    "images": f"{FILL}pcr0, pcr1, pcr2 of each image, as nitro-cli build-enclave prints them.",
    "signers": "PCR8 of who may sign images, or any.",
    "parents": "EC2 instances, i-…, that may run the enclave, or any.",
    "iam_roles": "PCR3 of the parent's IAM role, or any.",
    "max_age_s": "How old a document may be, in seconds.",
    "debug": "There is no other value: in debug mode the host reads the guest's memory.",
}
LINES: Final = {
    "debug": "debug",
    "debug mode": "debug",
    "document age": "max_age_s",
    "guest image": "images",
    "image signer": "signers",
    "parent instance": "parents",
    "IAM role": "iam_roles",
}

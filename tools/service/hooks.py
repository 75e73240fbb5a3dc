"""What schemathesis loads: examples that reach decisions, and requests signed by an owner.

It runs in an environment of its own, without sealtrain: the signature is made by hand here, from
RFC 9421, as whoever writes another client would.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import requests
import schemathesis  # type: ignore[import-not-found]  # it has an environment of its own
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

GIVEN: dict[str, Any] = json.loads(Path(os.environ["SEALTRAIN_SERVICE"]).read_text())
KEY = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(GIVEN["seed"]))
PARTS = ("@method", "@authority", "@target-uri", "content-digest")


class Signed(requests.auth.AuthBase):
    """An owner's signature, or an operator's token, on each request."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the headers of spec/requests.md."""
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        url, headers = str(request.url), request.headers
        scope = "metrics" if "/metrics" in url else "status"
        headers["authorization"] = f"Bearer {GIVEN['tokens'][scope]}"
        if not isinstance(body, bytes):
            return request
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        values = {
            "@method": str(request.method),
            "@authority": GIVEN["authority"],
            "@target-uri": url.partition("#")[0],
            "content-digest": f"sha-256=:{digest}:",
        }
        described = "({}){}".format(
            " ".join(f'"{part}"' for part in PARTS),
            f';created={GIVEN["now"]};keyid="{GIVEN["keyid"]}";alg="ed25519"'
            f';nonce="{os.urandom(16).hex()}";tag="sealtrain-owner"',
        )
        base = "".join(f'"{part}": {values[part]}\n' for part in PARTS)
        signature = KEY.sign(f'{base}"@signature-params": {described}'.encode())
        headers["content-digest"] = values["content-digest"]
        headers["signature-input"] = f"owner={described}"
        headers["signature"] = f"owner=:{base64.b64encode(signature).decode()}:"
        return request


schemathesis.auth.set_from_requests(Signed())


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_load_schema(context: Any, schema: dict[str, Any]) -> None:
    """Give bodies and queries values of the broker that runs."""
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if (value := GIVEN["queries"].get(parameter["name"])) is not None:
                    parameter["example"] = value
            bodies = GIVEN["bodies"].get(path)
            if bodies and "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                content["examples"] = {str(n): {"value": body} for n, body in enumerate(bodies)}

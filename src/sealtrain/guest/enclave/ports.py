"""Numbers that an enclave and its parent instance meet by (spec/enclaves.md §2)."""

from __future__ import annotations

from typing import Final

PARENT: Final = 3
"""Context id of the parent instance, by AWS's documentation of enclaves."""
HEARTBEAT_PORT: Final = 9000
"""Where nitro-cli waits for an enclave's first byte."""
HEARTBEAT: Final = b"\xb7"
DOCUMENT_PORT: Final = 8474
"""Where an enclave takes its deployment document."""
TICKET_PORT: Final = 8475
"""Where it takes its run ticket: a document of platform ``nitro`` names this port."""
FILES_PORT: Final = 8478
"""Where a broker's enclave takes the files that its document names."""
STATUS_PORT: Final = 8476
"""Where the parent is told how far the enclave is: one line, one connection."""
TUNNEL_PORT: Final = 8477
"""Where the parent makes tunnels to servers."""
PROXY: Final = ("127.0.0.1", 3128)
"""Where the enclave's programs find that proxy."""
PROXY_URL: Final = f"http://{PROXY[0]}:{PROXY[1]}"
MAX_STATUS_BYTES: Final = 512

"""TLS under the key of a node, in a process that uses OpenSSL for other things too."""

from __future__ import annotations

import _ssl
import ctypes
import ssl

import pytest

from sealtrain_nodes.wire.identity import NodeKey

PROVIDERS = 57
BAD_DECRYPT = 100
"""``PROV_R_BAD_DECRYPT``, what a library leaves behind that tried the wrong password."""


@pytest.mark.parametrize("side", [ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER])
def test_what_another_library_left_in_the_queue_of_errors_is_no_failure_of_ours(side: int) -> None:
    openssl = ctypes.CDLL(_ssl.__file__)
    if not hasattr(openssl, "ERR_set_error"):
        pytest.skip("this Python has an OpenSSL of its own that no other code can reach")
    openssl.ERR_new()
    openssl.ERR_set_error(PROVIDERS, BAD_DECRYPT, None)
    assert openssl.ERR_peek_last_error() != 0
    key, peers = NodeKey.make(), [NodeKey.make().public_key for _ in range(3)]

    context = key.context(side, peers)

    assert context.cert_store_stats()["x509"] == len(peers)

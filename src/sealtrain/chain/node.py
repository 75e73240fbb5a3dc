"""One node of the chain over JSON-RPC: bounded in bytes and in time, believed in nothing.

1. An answer is read up to a cap, and within one time limit from first to last byte.
2. It is strict JSON of JSON-RPC 2.0 with the id that was asked.
3. Redirects are not followed; the environment (proxies, certificate files) has no influence.
4. Messages name the node's host, never its whole address.
"""

from __future__ import annotations

import ssl
import time

import httpx

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.chain.chainfile import host_of
from sealtrain.errors import ChainUnreachable, DataInvalid

__all__ = ["MAX_ANSWER_BYTES", "Node"]

MAX_ANSWER_BYTES = 2 << 20


class Node:
    """Where one node answers.

    Args:
        url: Its ``http://`` or ``https://`` address.
        timeout: Seconds for one answer.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.host = host_of(url)
        self._url = url
        self._timeout = timeout
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http:") else True
        self._client = httpx.Client(
            verify=trusted, timeout=timeout, trust_env=False, follow_redirects=False
        )

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def ask(self, method: str, *params: JsonValue) -> JsonValue:
        """The result of one method.

        Raises:
            ChainUnreachable: No answer in time, too long or malformed a one, or an error.
        """
        answer = self.exchange(method, list(params))
        if "result" not in answer:
            raise self._failed(f"{method} ends in an error")
        return answer["result"]

    def exchange(self, method: str, params: JsonValue) -> dict[str, JsonValue]:
        """The whole JSON-RPC answer, result or error. Raises as ``ask``."""
        asked = canonical_json({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        try:
            answer = parse_json(self._read(asked), max_bytes=MAX_ANSWER_BYTES)
        except DataInvalid as error:
            raise self._failed(f"its answer to {method} is not JSON") from error
        if not isinstance(answer, dict) or answer.get("id") != 1:
            raise self._failed(f"its answer to {method} is not JSON-RPC")
        return answer

    def _read(self, asked: bytes) -> bytes:
        ends = time.monotonic() + self._timeout
        data = bytearray()
        # Raw bytes: what is compressed could unpack to any size.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        try:
            with self._client.stream("POST", self._url, content=asked, headers=headers) as response:
                if response.status_code != 200:
                    raise self._failed(f"HTTP {response.status_code}")
                for part in response.iter_raw():
                    data += part
                    if len(data) > MAX_ANSWER_BYTES:
                        raise self._failed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
                    if time.monotonic() > ends:
                        raise self._failed(f"no whole answer within {self._timeout:g} s")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            # Not its text: that may hold the address.
            raise self._failed(type(error).__name__) from None
        return bytes(data)

    def _failed(self, why: str) -> ChainUnreachable:
        return ChainUnreachable(
            f"the chain's node {self.host} does not answer as it must",
            check="chain node",
            got=why,
            hint="check the node and its entry in the chain file",
        )

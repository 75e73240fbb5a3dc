"""One node of the chain over JSON-RPC: bounded in bytes and in time, believed in nothing.

1. The bounds are those of ``base.http``; nothing is asked twice, for there are other nodes.
2. An answer is strict JSON of JSON-RPC 2.0 with the id that was asked.
3. Messages name the node's host, never its whole address.
"""

from __future__ import annotations

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.http import Bounds, HttpClient
from sealtrain.consortium.chainfile import host_of
from sealtrain.errors import ChainUnreachable, DataInvalid

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
        self._client = HttpClient(
            Bounds(connect=timeout, read=timeout, total=timeout, tries=1),
            failed=lambda problem: self._fail(problem.reason),
            tls=not url.startswith("http:"),
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
            raise self._fail(f"{method} ends in an error")
        return answer["result"]

    def exchange(self, method: str, params: JsonValue) -> dict[str, JsonValue]:
        """The whole JSON-RPC answer, result or error. Raises as ``ask``."""
        asked = canonical_json({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        try:
            answer = parse_json(self._read(asked), max_bytes=MAX_ANSWER_BYTES)
        except DataInvalid as error:
            raise self._fail(f"its answer to {method} is not JSON") from error
        if not isinstance(answer, dict) or answer.get("id") != 1:
            raise self._fail(f"its answer to {method} is not JSON-RPC")
        return answer

    def _read(self, asked: bytes) -> bytes:
        answer = self._client.ask(
            "POST",
            self._url,
            cap=MAX_ANSWER_BYTES,
            content=asked,
            headers={"content-type": "application/json"},
        )
        if answer.status != 200:
            raise self._fail(f"HTTP {answer.status}")
        return answer.body

    def _fail(self, why: str) -> ChainUnreachable:
        return ChainUnreachable(
            f"the chain's node {self.host} does not answer as it must",
            check="chain node",
            got=why,
            hint="check the node and its entry in the chain file",
        )

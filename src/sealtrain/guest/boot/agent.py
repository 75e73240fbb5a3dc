"""The agent of a guest of our own: the measured document, and quotes, over a unix socket.

It runs as user 0 and alone opens the machine's TPM or an enclave's security module; the document's
command asks it in the words of the simulator's agent (``attest.guest``). It has one caller, whose
requests are short.
"""

from __future__ import annotations

import hashlib
import json
import os
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.report_data import REPORT_DATA_BYTES
from sealtrain.base.canonical import parse_json
from sealtrain.errors import DataInvalid, SealtrainError

MAX_REQUEST_BYTES: Final = 4096
AGENT_SOCKET: Final = "/var/run/dstack.sock"
_TIMEOUT_S: Final = 30
_VERSION: Final = "1-guest-image"
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def answers(
    document: bytes, attest: Callable[[bytes], Mapping[str, Any]], kind: str
) -> dict[str, Answer]:
    """Path → what the agent answers.

    Args:
        document: The deployment document that was measured.
        attest: 64 bytes → evidence of the machine over them.
        kind: Of that evidence.
    """
    digest = hashlib.sha256(document).hexdigest()
    about = {
        "app_id": digest[:40],
        "instance_id": "",
        "app_name": "sealtrain",
        "compose_hash": digest,
        "app_compose": document.decode("utf-8"),
    }

    def show_evidence(fields: Mapping[str, Any]) -> dict[str, Any]:
        text = fields.get("report_data")
        try:
            report_data = bytes.fromhex(text if isinstance(text, str) else "")
        except ValueError as error:
            raise DataInvalid("report_data is not hex") from error
        if len(report_data) != REPORT_DATA_BYTES:
            raise DataInvalid("report_data is not 64 bytes long")
        return dict(attest(report_data))

    return {
        "/v1/Version": lambda fields: {"version": _VERSION, "rev": ""},
        "/v1/Info": lambda fields: about,
        "/simulator/Guest": lambda fields: {"tee": kind},
        "/simulator/Gpus": lambda fields: {"evidence": None},
        "/simulator/Attest": show_evidence,
    }


class GuestAgent(socketserver.ThreadingUnixStreamServer):
    """Serves answers at a socket of mode 0600, whose owner its maker chooses.

    Args:
        path: Of the socket, which is not there yet.
        known: Path of a request → what answers it.
    """

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, path: Path, known: Mapping[str, Answer]) -> None:
        self.known = known
        mask = os.umask(0o177)
        try:
            super().__init__(str(path), _Request)
        finally:
            os.umask(mask)
        self.asking = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that goes away is its own affair."""

    def start(self) -> None:
        """Answer in the background, until the process ends."""
        threading.Thread(target=self.serve_forever, name="agent", daemon=True).start()


class _Request(BaseHTTPRequestHandler):
    """One connection of the caller's."""

    server: GuestAgent
    timeout = _TIMEOUT_S
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a request; any other method is refused by the base."""
        answer = self.server.known.get(self.path)
        if answer is None:
            self._say(404, {"error": "Service not found"})
            return
        try:
            fields = self._fields()
            with self.server.asking:
                found = answer(fields)
        except (DataInvalid, EvidenceMalformed, GuestApiUnreachable) as error:
            self._say(400, {"error": error.message})
        except SealtrainError:
            self._say(500, {"error": "the agent failed"})
        else:
            self._say(200, found)

    def address_string(self) -> str:
        """A unix socket's caller has no address."""
        return "guest"

    def log_message(self, format: str, *args: object) -> None:  # as its base
        """Nothing is logged: a log that the caller fills is a way out."""

    def _fields(self) -> Mapping[str, Any]:
        said = self.headers.get("Content-Length", "")
        whole = said.isascii() and said.isdigit() and len(said) <= len(str(MAX_REQUEST_BYTES))
        if not whole or int(said) > MAX_REQUEST_BYTES:
            self.close_connection = True
            raise DataInvalid("the request has no length, or is too long")
        body = self.rfile.read(int(said))
        value = parse_json(body) if body else {}
        if not isinstance(value, dict):
            raise DataInvalid("request is not an object")
        return value

    def _say(self, status: int, answer: Mapping[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

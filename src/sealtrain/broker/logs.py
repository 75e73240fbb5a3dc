"""The broker's log: one line per event, as text or JSON, and never a secret.

1. An event is one line, even if its values hold line breaks. A request's line holds its id,
   method, path template, status, code and duration; never a body, a query, a key, an address or the
   name of a record.
2. The log names only an exception's kind: its message and frames may hold values.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, Literal

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.visible_text import escape_hidden
from sealtrain.errors import UsageError

LogFormat = Literal["text", "json"]

REQUEST_LOG: Final = logging.getLogger("sealtrain.broker.requests")
_FIELDS: Final = "fields"


class _LogFormatter(logging.Formatter):
    """A record as text or JSON, without what an exception says."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": to_rfc3339(int(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        line |= getattr(record, _FIELDS, {})
        if self._form == "json":
            return json.dumps(line, ensure_ascii=True)
        shown = [f"{key}={value}" for key, value in line.items() if value is not None]
        text = " ".join([line["time"], line["level"], line["logger"], line["message"], *shown[4:]])
        return escape_hidden(text)


def configure(form: LogFormat) -> None:
    """Send the process's log to stderr in one form."""
    # No line shows its module, thread or process, so logging need not look them up.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(_LogFormatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for talkative in ("alembic", "httpx2"):
        logging.getLogger(talkative).setLevel(logging.WARNING)


def log_format_of(name: str) -> LogFormat:
    """Return ``name``, checked.

    Raises:
        UsageError: It is neither ``text`` nor ``json``.
    """
    if name == "text":
        return "text"
    if name == "json":
        return "json"
    raise UsageError(
        "the log format is unknown", check="log format", got=name, expected="text or json"
    )


def request_line(
    *, request_id: str, method: str, path: str, status: int, code: str | None, seconds: float
) -> None:
    """Log one answered request.

    Args:
        request_id: The id in the answer's header.
        method: HTTP method.
        path: Template of the path, without the caller's values.
        status: HTTP status.
        code: Code of the refusal, if it was one.
        seconds: From its head to the end of the answer.
    """
    fields = {
        "request_id": request_id,
        "method": method,
        "path": path,
        "status": status,
        "code": code,
        "duration_ms": round(seconds * 1000, 3),
    }
    REQUEST_LOG.info("request", extra={_FIELDS: fields})

"""The log's two forms, and what never gets into either."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sealtrain.broker.logs import configure, log_format_of, request_line
from sealtrain.errors import UsageError


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)


def line(**changed: Any) -> None:
    fields: dict[str, Any] = {
        "request_id": "ab" * 8,
        "method": "GET",
        "path": "/v1/health",
        "status": 200,
        "code": None,
        "seconds": 0.0123456,
    }
    request_line(**(fields | changed))


def test_a_request_is_one_json_object(log: Callable[[], str]) -> None:
    configure("json")
    line()
    line(status=403, code="approvals-missing")
    first, second = (json.loads(line) for line in log().splitlines())
    assert first["duration_ms"] == 12.346
    assert first["request_id"] == "ab" * 8
    assert (first["level"], first["logger"]) == ("info", "sealtrain.broker.requests")
    assert (second["status"], second["code"]) == (403, "approvals-missing")


def test_text_says_the_same_and_leaves_out_what_is_not_there(log: Callable[[], str]) -> None:
    configure("text")
    line()
    [text] = log().splitlines()
    assert text.endswith("method=GET path=/v1/health status=200 duration_ms=12.346")
    assert "code=" not in text
    assert text[4] == "-"
    assert text[19] == "Z"


@pytest.mark.parametrize("form", ["text", "json"])
def test_of_an_exception_its_kind_is_told_and_no_line_is_broken(
    log: Callable[[], str], form: Any
) -> None:
    configure(form)
    try:
        int("rosebud")
    except ValueError:
        logging.getLogger("sealtrain.broker.test").exception("Exception in\nASGI application")
    text = log()
    assert "rosebud" not in text
    assert "ValueError" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) == 1


def test_other_forms_are_refused() -> None:
    assert [log_format_of(name) for name in ("text", "json")] == ["text", "json"]
    with pytest.raises(UsageError):
        log_format_of("xml")

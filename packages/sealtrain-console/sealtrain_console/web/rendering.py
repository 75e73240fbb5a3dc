"""Templates to pages. Every value that a template gets is escaped, whatever its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.version import VERSION
from sealtrain.base.visible_text import escape_hidden_lines
from sealtrain.errors import SealtrainError


def _plain(value: object) -> str:
    """A value as text that reads as it is written: what no reader sees is shown by number.

    Args:
        value: Anything, from anywhere.
    """
    return escape_hidden_lines(str(value))


def _instant(seconds: int | None) -> str:
    return "-" if seconds is None else to_rfc3339(seconds)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("sealtrain_console.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else _plain(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["instant"] = _instant
    return made


def is_part(request: Request) -> bool:
    """Whether htmx asks for a part of a page that is there already."""
    return request.headers.get("hx-request") == "true"


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A whole page.

    Args:
        request: Being answered; its application names the pages of the navigation.
        template: Its name.
        status: Of the answer.
        **values: For the template.
    """
    state = request.app.state
    known: Mapping[str, Any] = {
        "pages": state.pages,
        "here": request.url.path,
        "version": VERSION,
        "assets": state.assets,
    }
    text = _environment().get_template(template).render({**known, **values})
    return HTMLResponse(text, status_code=status)


def part(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A part of a page, which htmx puts in its place."""
    return HTMLResponse(_environment().get_template(template).render(values), status_code=status)


def error_page(request: Request, error: SealtrainError) -> HTMLResponse:
    """What was refused or is away, typed: its code, what was got and expected, what to do."""
    if is_part(request):
        return part("refusal.html", status=error.http_status, error=error)
    return page(request, "error.html", status=error.http_status, error=error)

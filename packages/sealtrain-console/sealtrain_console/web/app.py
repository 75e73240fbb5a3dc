"""The console's application: a navigation over pages, behind one policy.

A page is a router and its line in the navigation (``NavigationPage``). To add a page, write a
module with a router and a template that extends ``base.html``; ``console_app`` takes the pages in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Scope

from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain_console.web.assets import assets
from sealtrain_console.web.errors import PageUnknown
from sealtrain_console.web.policy import Guarded
from sealtrain_console.web.rendering import error_page


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationPage:
    """A place in the navigation.

    Attributes:
        path: Where it begins, as ``/runs``.
        title: Its word in the navigation.
        router: Answers for it, and for what is below its path.
    """

    path: str
    title: str
    router: APIRouter


def console_app(
    pages: Sequence[NavigationPage], state: Mapping[str, object] | None = None
) -> FastAPI:
    """The application that serves some pages.

    Args:
        pages: In the order of the navigation, at least one.
        state: What routers find in ``request.app.state``.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.pages = tuple(pages)
    app.state.assets = {name: asset.url for name, asset in assets().items()}
    for name, value in (state or {}).items():
        setattr(app.state, name, value)

    @app.get("/")
    def _first() -> RedirectResponse:
        return RedirectResponse(pages[0].path, status_code=307)

    @app.get("/static/{name}")
    def _asset(name: str) -> Response:
        asset = assets().get(name)
        if asset is None:
            raise PageUnknown("the console has no such file", check="path", got=name[:100])
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    for page in pages:
        app.include_router(page.router)
    app.add_exception_handler(SealtrainError, _refusal)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(RequestValidationError, _answer_malformed)
    app.add_middleware(Guarded, refuse=_answer_unrouted(app))
    return app


def _answer_unrouted(app: FastAPI) -> Callable[[Scope, SealtrainError], ASGIApp]:
    """How a request is answered that no router sees."""

    def refuse(scope: Scope, error: SealtrainError) -> ASGIApp:
        scope["app"] = app
        return error_page(Request(scope), error)

    return refuse


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, SealtrainError)  # noqa: S101  # registered for these alone
    return error_page(request, error)


async def _unknown(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return error_page(
        request,
        PageUnknown(
            "the console has no such page",
            check="path",
            got=f"{request.method} {request.url.path[:100]} ({status})",
            hint="begin at its first page",
        ),
    )


async def _answer_malformed(request: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    field = ".".join(str(part) for part in found[0]["loc"])[:100] if found else None
    return error_page(
        request,
        DataInvalid("the request has a value that no page sends", check="request", got=field),
    )

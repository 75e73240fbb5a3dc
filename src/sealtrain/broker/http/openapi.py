"""OpenAPI of the broker: request bodies are ours to parse, so their schemas are added here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sealtrain.release.boot import BootInfo
from sealtrain.release.messages import (
    ChallengeRequest,
    CosignedCheckpoint,
    EnvelopeDocument,
    ErrorBody,
    FailureReport,
    ReleaseRequest,
    RenewalRequest,
)

_BODIES: tuple[type[BaseModel], ...] = (
    BootInfo,
    ChallengeRequest,
    CosignedCheckpoint,
    EnvelopeDocument,
    ErrorBody,
    FailureReport,
    ReleaseRequest,
    RenewalRequest,
)
_ERRORS = {
    "400": "The request cannot be used",
    "403": "Refused",
    "404": "There is none",
    "413": "Body too large",
    "429": "Too many requests",
    "431": "Head too large",
    "408": "The body did not arrive in time",
    "500": "The broker failed",
    "503": "The broker cannot answer this now",
}
_SECURITY: dict[str, dict[str, str]] = {
    "operator": {"type": "http", "scheme": "bearer", "description": "spec/requests.md §2"},
    **{
        role: {
            "type": "apiKey",
            "in": "header",
            "name": "Signature",
            "description": "As an owner's, by a configured key: spec/run-control.md §3",
        }
        for role in ("submitter", "runner")
    },
    "owner": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature",
        "description": "RFC 9421 with Signature-Input, Content-Digest and Sealtrain-Broker: "
        "spec/requests.md §1",
    },
}


def describe(app: FastAPI) -> None:
    """Give ``app`` a schema that names request bodies and error answers."""

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app)
        return app.openapi_schema

    # FastAPI documents this assignment as the way to extend its schema.
    app.openapi = schema  # type: ignore[method-assign]


def _schema(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    _, definitions = models_json_schema(
        [(model, "validation") for model in _BODIES],
        ref_template="#/components/schemas/{model}",
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = _SECURITY
    schemas = components.setdefault("schemas", {})
    for name, body in definitions["$defs"].items():
        schemas.setdefault(name, body)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)  # FastAPI's own, which no answer of ours is
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for status, text in _ERRORS.items():
                told = {"description": text, "content": error}
                operation["responses"].setdefault(status, told)
            if {"operator": []} in operation.get("security", ()):
                told = {"description": "No token, or one that is not good for this"}
                operation["responses"]["401"] = told | {"content": error}
            name = operation.pop("x-body", None)
            if name is not None:
                content = {"schema": {"$ref": f"#/components/schemas/{name}"}}
                operation["requestBody"] = {
                    "required": True,
                    "content": {"application/json": content},
                }
    return document

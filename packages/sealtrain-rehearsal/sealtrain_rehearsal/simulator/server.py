"""The dstack guest API over a unix socket, v0 and v1, for one simulated guest.

The socket has mode 0600 from its first moment and is removed on exit. SIGTERM and SIGINT stop the
server gracefully. Requests are bounded; an error is HTTP 400 with ``{"error": …}`` as the agent's.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket as sockets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.background import Quitters, in_background, serve_on
from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.extras import extra_missing
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.errors import AlreadyExists, DataInvalid, UsageError
from sealtrain.recipe.errors import LockInvalid
from sealtrain_rehearsal.simulator.cloud_guests import agent_fault, cloud_driver
from sealtrain_rehearsal.simulator.devices import devices_of
from sealtrain_rehearsal.simulator.dstack_platforms import nitro_tpm_attestation
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.state import HONEST, ensure

if TYPE_CHECKING:
    from starlette.applications import Starlette

MAX_REQUEST_BYTES = 64 << 10

_Method = Callable[[SimulatedGuest, dict[str, Any]], dict[str, Any]]


def serve(
    socket: Path,
    compose: Path,
    state: Path,
    ready: Callable[[], None] | None = None,
    *,
    clock: Clock = system_clock,
    machine: Machine = HONEST,
) -> None:
    """Serve one guest until SIGTERM or SIGINT.

    Args:
        socket: Path of the unix socket to create.
        compose: The guest's ``app-compose.json``.
        state: State folder, shared by all guests of one simulator.
        ready: Called once the socket answers.
        clock: Issue date of the collateral.
        machine: What is played.

    Raises:
        AlreadyExists: Something else lives at ``socket``.
        UsageError: The path is too long for a unix socket.
        LockInvalid: ``compose`` cannot be read or is not JSON.
        DataInvalid: Numbers of accelerators that do not go together.
        ExtraMissing: The ``simulator`` extra is not installed.
    """
    app = guest_app(_guest(compose, state, clock, machine))
    asyncio.run(_serve(app, Path(socket), lambda _path: ready() if ready else None, None))


@contextmanager
def running(
    socket: Path,
    compose: Path,
    state: Path,
    *,
    clock: Clock = system_clock,
    machine: Machine = HONEST,
) -> Iterator[Path]:
    """The same in a background thread, for tests and for a guest inside one process.

    Yields:
        The socket's path, answering. Raises as ``serve``.
    """
    app = guest_app(_guest(compose, state, clock, machine))
    with in_background("simulated-guest", partial(_serve, app, Path(socket))) as answering:
        yield answering


def guest_app(guest: SimulatedGuest) -> Starlette:
    """ASGI application of one guest.

    Raises:
        ExtraMissing: The ``simulator`` extra is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise extra_missing("the simulator", "simulator", error) from error

    def route(path: str, method: _Method) -> Route:
        async def answer(request: Request) -> Response:
            try:
                result = method(guest, await _fields(request))
            except DataInvalid as error:
                return JSONResponse({"error": error.message}, status_code=400)
            return JSONResponse(result)

        return Route(path, answer, methods=["GET", "POST"])

    async def missing(request: Request, error: Exception) -> Response:
        if guest.emits_events and request.url.path.startswith("/v1/"):
            return Response(status_code=404)  # an agent of 0.5 has nothing mounted there
        return JSONResponse({"error": "Service not found"}, status_code=404)

    newer = {} if guest.emits_events else _V1
    routes = [route(f"/v1/{name}", method) for name, method in newer.items()]
    routes += [route(f"/simulator/{name}", method) for name, method in _MACHINE.items()]
    for prefix in ("", "/v0"):
        routes += [route(f"{prefix}/{name}", method) for name, method in _V0.items()]
    return Starlette(routes=routes, exception_handlers={404: missing})


async def _fields(request: Any) -> dict[str, Any]:
    if request.method == "GET":
        return dict(request.query_params)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_REQUEST_BYTES:
            raise DataInvalid("request is too long")
    value = parse_json(bytes(body)) if body else {}
    if not isinstance(value, dict):
        raise DataInvalid("request is not an object")
    return value


def _report_data(fields: dict[str, Any]) -> bytes:
    text = fields.get("report_data")
    try:
        return bytes.fromhex(text.removeprefix("0x"))  # type: ignore[union-attr]  # not text: 400
    except (ValueError, AttributeError) as error:
        raise DataInvalid("report_data is not hex") from error


def _text(
    fields: dict[str, Any], name: str, default: str | None = None, *, most: int = 1024
) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or len(value) > most:
        raise DataInvalid(f"{name} is missing or not a text")
    return value


def _algorithm(fields: dict[str, Any], default: str | None) -> Any:
    value = _text(fields, "algorithm", default) or default
    if value not in ("secp256k1", "ed25519"):
        raise DataInvalid("algorithm is not supported")
    return value


def _info_v0(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    return {**guest.info(), "app_cert": "", "tcb_info": json.dumps(guest.tcb_info())}


def _quote_v0(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    asked = _report_data(fields)
    return {
        "quote": guest.quote(asked).hex(),
        "event_log": json.dumps(guest.event_log()),
        "report_data": asked.ljust(64, b"\0").hex(),
        "vm_config": guest.vm_config(),
    }


def _key_v0(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    algorithm = _algorithm(fields, "secp256k1")
    return guest.key_v0(_text(fields, "path", ""), _text(fields, "purpose", ""), algorithm)


def _emit_event(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    text = _text(fields, "payload", "", most=MAX_REQUEST_BYTES)
    try:
        payload = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise DataInvalid("payload is not hex") from error
    guest.emit(_text(fields, "event"), payload)
    return {}


def _info_v1(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    return {**guest.info(), "app_compose": guest.compose.decode("utf-8")}


def _attest(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    make = guest.attestation if guest.devices.attestation is None else guest.devices.attestation
    return {
        "attestation": make(_report_data(fields).ljust(64, b"\0")).hex(),
        "boottime_gpu_evidence": [],
    }


def _key_v1(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    return guest.key_v1(_text(fields, "domain", ""), _algorithm(fields, None))


def _version(guest: SimulatedGuest, fields: dict[str, Any]) -> dict[str, Any]:
    version = "0.5.11-simulated" if guest.emits_events else "0.6.0-simulated"
    return {"version": version, "rev": "SIMULATED"}


_MACHINE: dict[str, _Method] = {
    "Guest": lambda guest, fields: guest.devices.guest(),
    "Attest": lambda guest, fields: guest.devices.ask_driver(fields),
    "Nsm": lambda guest, fields: guest.devices.ask_nsm(fields),
    "Gpus": lambda guest, fields: guest.devices.ask_gpus(fields),
}
_V0: dict[str, _Method] = {
    "Info": _info_v0,
    "GetKey": _key_v0,
    "GetQuote": _quote_v0,
    "EmitEvent": _emit_event,
    "Version": _version,
}
_V1: dict[str, _Method] = {
    "Info": _info_v1,
    "GetKey": _key_v1,
    "Attest": _attest,
    "AttestGpu": lambda guest, fields: guest.devices.ask_agent(fields),
    "Version": _version,
}


def _guest(compose: Path, state: Path, clock: Clock, machine: Machine) -> SimulatedGuest:
    try:
        document = read_bounded(Path(compose), MAX_DEPLOYMENT_BYTES)
    except DataInvalid as error:
        raise LockInvalid(error.message, check="app-compose.json", hint=error.hint) from error
    opened = ensure(Path(state), clock(), machine=machine)
    guest = SimulatedGuest(
        opened.pki,
        opened.seed,
        document,
        devices=devices_of(machine, opened, document, clock=clock),
        emit_events=machine.emit_events,
        fault=agent_fault(machine),
    )
    attest = cloud_driver(machine, opened, guest, clock=clock)
    if attest is not None:
        guest.devices = replace(guest.devices, attest=attest)
        if machine.tee == "dstack-aws-nitro-tpm":
            agent = partial(nitro_tpm_attestation, attest)
            guest.devices = replace(guest.devices, attestation=agent)
    return guest


async def _serve(
    app: Starlette,
    path: Path,
    ready: Callable[[Path], None],
    quitters: Quitters | None,
) -> None:
    try:
        import uvicorn
    except ImportError as error:
        raise extra_missing("the simulator", "simulator", error) from error

    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    with _bind_socket(path) as listener:
        await serve_on(listener, config, lambda: ready(path), quitters)


@contextmanager
def _bind_socket(path: Path) -> Iterator[sockets.socket]:
    """A listening socket of mode 0600 at ``path``, removed at the end."""
    _clear_stale(path)
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot create the socket {path}: {error.strerror or error}",
            hint="use a writable folder and a path under 100 characters",
        ) from error
    finally:
        os.umask(mask)
    try:
        listener.listen(128)
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _clear_stale(path: Path) -> None:
    """Remove a socket that no process listens on; refuse anything else at that path."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                    return
                except OSError:
                    pass
        raise AlreadyExists(
            f"{path} already exists", hint="another guest may be running; choose another socket"
        )

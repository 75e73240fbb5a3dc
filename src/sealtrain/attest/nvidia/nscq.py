"""Reports of NVSwitches, through NVIDIA's library for them (NSCQ, ``libnvidia-nscq.so.2``).

What is asked for is a path, and the answer comes to a callback. There is no binding to install, so
the library's functions are declared here: ``Library`` says which, and their shapes are those of
NVIDIA's header. The library is an argument, so that tests hand in one of their own.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sealtrain.attest.errors import EvidenceMalformed, GpuReportInvalid, GuestApiUnreachable
from sealtrain.attest.nvidia.parse import MAX_DEVICES, GpuDevice
from sealtrain.attest.nvidia.spdm import NONCE_BYTES

LIBRARY: Final = "libnvidia-nscq.so.2"
CONTROL: Final = Path("/dev/nvidia-nvswitchctl")
"""There where a guest was given NVSwitches."""

_MOUNT_DEVICES = 1
_LS10 = 2
_LABEL = re.compile(r"[0-9A-Za-z-]{1,63}")
_CHECK = "NVSwitches"


class _Uuid(ctypes.Structure):
    _fields_ = (("octets", ctypes.c_uint8 * 16),)


class _Label(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char * 64),)


class _Session(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int8), ("session", ctypes.c_void_p))


class _Report(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("data", ctypes.c_uint8 * 0x2000))


class _Chain(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint8 * 0x1400), ("size", ctypes.c_uint32))


class Switches:
    """The NVSwitches of a machine, in one session of the library."""

    def __init__(self, library: ctypes.CDLL, session: int) -> None:
        self._library = library
        self._session = ctypes.c_void_p(session)

    def names(self) -> list[str]:
        """Names of all switches, as the library writes them.

        Raises:
            GuestApiUnreachable: The library does not answer.
            EvidenceMalformed: It answers with something else.
        """
        found = self._observe(
            "/drv/nvswitch/{device}/uuid", ctypes.POINTER(_Uuid), lambda one: bytes(one[0])
        )
        return [self._name(octets) for octets in found]

    def is_ls10(self, name: str) -> bool:
        """Whether a switch is of the family that makes reports. Raises as ``names``."""
        return bool(self._one(name, "id/arch", ctypes.c_int8, int) == _LS10)

    def report(self, name: str, nonce: bytes) -> bytes:
        """Report of a switch over a nonce. Raises as ``names``."""
        given = (ctypes.c_uint8 * NONCE_BYTES).from_buffer_copy(nonce)
        _check_answer(
            "taking the nonce",
            self._library.nscq_session_set_input(
                self._session, ctypes.c_uint32(0), ctypes.byref(given), ctypes.c_uint32(NONCE_BYTES)
            ),
        )
        found: bytes = self._one(name, "config/attestation_report", _Report, _octets)
        return found

    def chain(self, name: str) -> bytes:
        """Certificates of a switch, PEM. Raises as ``names``."""
        found: bytes = self._one(name, "config/certificate", _Chain, _octets)
        return found

    def _name(self, octets: bytes) -> str:
        uuid, label = _Uuid.from_buffer_copy(octets), _Label()
        asked = self._library.nscq_uuid_to_label
        code = asked(ctypes.byref(uuid), ctypes.byref(label), ctypes.c_uint32(0))
        _check_answer("naming a switch", code)
        name = bytes(label.text).decode("ascii", "replace")
        if not _LABEL.fullmatch(name):
            raise EvidenceMalformed(
                "NVSwitch has a name that cannot be used", check=_CHECK, got=repr(name)
            )
        return name

    def _one(self, name: str, what: str, kind: Any, read: Callable[[Any], Any]) -> Any:
        found = self._observe(f"/{name}/{what}", kind, read)
        if len(found) != 1:
            raise EvidenceMalformed(
                "NVSwitch does not answer once", check=_CHECK, got=f"{len(found)} answers to {what}"
            )
        return found[0]

    def _observe(self, path: str, kind: Any, read: Callable[[Any], Any]) -> list[Any]:
        """Values that the callback received; a structure is valid only while it runs."""
        told: list[Any] = []
        codes: list[int] = []

        def on_answer(_device: Any, code: int, value: Any, _more: Any) -> None:
            codes.append(code)
            if code >= 0 and len(told) <= MAX_DEVICES:
                told.append(read(value))

        heard = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Uuid), ctypes.c_int8, kind, ctypes.c_void_p)(
            on_answer
        )
        code = self._library.nscq_session_path_observe(
            self._session, ctypes.c_char_p(path.encode()), heard, None, ctypes.c_uint32(0)
        )
        for answered in (code, *codes):
            _check_answer(f"reading {path}", answered)
        return told


@contextmanager
def open_switches(library: str = LIBRARY) -> Iterator[Switches]:
    """The machine's NVSwitches, for the length of a block.

    Args:
        library: Name or path of NVIDIA's library.

    Raises:
        GuestApiUnreachable: There is no such library, or it finds no switches.
    """
    try:
        loaded = ctypes.CDLL(library)
        for name, kind in _SHAPES.items():
            getattr(loaded, name).restype = kind
    except (OSError, AttributeError) as error:
        raise GuestApiUnreachable(
            "NVSwitches cannot be asked for reports",
            check=_CHECK,
            got=str(error)[:200],
            expected=library,
            hint="install libnvidia-nscq of the same version as the driver",
        ) from error
    opened = loaded.nscq_session_create(ctypes.c_uint32(_MOUNT_DEVICES))
    _check_answer("opening a session", opened.code)
    try:
        yield Switches(loaded, opened.session)
    finally:
        loaded.nscq_session_destroy(ctypes.c_void_p(opened.session))


_SHAPES: dict[str, Any] = {
    "nscq_session_create": _Session,
    "nscq_session_destroy": None,
    "nscq_session_path_observe": ctypes.c_int8,
    "nscq_session_set_input": ctypes.c_int8,
    "nscq_uuid_to_label": ctypes.c_int8,
}
"""Functions that are called, and what they return."""


def collect_switches(nonce: bytes, *, library: str = LIBRARY) -> tuple[GpuDevice, ...]:
    """Evidence of every NVSwitch of the guest over one nonce.

    Args:
        nonce: 32 bytes that stand in every report.
        library: Name or path of NVIDIA's library.

    Raises:
        GuestApiUnreachable: The library is missing, or does not answer.
        EvidenceMalformed: No switch, a family that makes no reports, or a malformed answer.
        GpuReportInvalid: A report is truncated or for another nonce.
    """
    if len(nonce) != NONCE_BYTES:
        raise EvidenceMalformed(
            "GPU nonce has the wrong length", got=len(nonce), expected=NONCE_BYTES
        )
    with open_switches(library) as switches:
        names = switches.names()
        if not 0 < len(names) <= MAX_DEVICES:
            raise EvidenceMalformed("impossible number of NVSwitches", check=_CHECK, got=len(names))
        return tuple(_device(switches, name, nonce) for name in names)


def _device(switches: Switches, name: str, nonce: bytes) -> GpuDevice:
    if not switches.is_ls10(name):
        raise EvidenceMalformed(
            "NVSwitch is of a family that makes no attestation reports",
            check=_CHECK,
            expected="LS10",
            hint="protected PCIe needs the third generation of NVSwitches",
        )
    device = GpuDevice.build(
        "LS10", switches.report(name, nonce), switches.chain(name).rstrip(b"\0")
    )
    if device.report_bytes[4 : 4 + NONCE_BYTES] != nonce:
        raise GpuReportInvalid("NVSwitch made a report for another nonce", check=_CHECK)
    return device


def _octets(answer: Any) -> bytes:
    """Octets of a structure; too many become no octets, which no report is."""
    return bytes(answer.data)[: answer.size] if answer.size <= len(answer.data) else b""


def _check_answer(doing: str, code: int) -> None:
    """Negative codes are errors; positive ones warn of what concerns other callers."""
    if code < 0:
        raise GuestApiUnreachable(
            f"NVSwitches do not answer while {doing}",
            check=_CHECK,
            got=f"NSCQ error {code}",
            hint="check that libnvidia-nscq has the driver's version",
        )

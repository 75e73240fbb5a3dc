"""Errors that name the extra of sealtrain whose packages are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sealtrain.errors import ExtraMissing

if TYPE_CHECKING:
    from collections.abc import Collection

    from packaging.requirements import Requirement

MODULES: Final = {
    "PIL": "pillow",
    "dcap_qvl": "dcap-qvl",
    "jwt": "pyjwt",
    "pkcs11": "python-pkcs11",
    "pynvml": "nvidia-ml-py",
    "sevsnpmeasure": "sev-snp-measure",
    "sklearn": "scikit-learn",
    "stdnum": "python-stdnum",
    "yaml": "pyyaml",
}
"""Distribution by the module that it brings, where the two have different names."""


def extra_missing(what: str, extra: str, error: ImportError) -> ExtraMissing:
    """The error for packages that are absent.

    Args:
        what: What needs them, as the beginning of a sentence.
        extra: Name of the extra that brings them.
        error: What importing them raised.
    """
    return ExtraMissing(
        f"{what} needs packages that are not installed",
        got=error.name,
        hint=f"pip install 'sealtrain[{extra}]'",
    )


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra of the installed sealtrain that brings a module which is absent.

    Args:
        error: What importing the module raised.

    Returns:
        The extra with the fewest packages; ``None`` where no extra brings the module.
    """
    from packaging.utils import canonicalize_name

    top = (error.name or "").partition(".")[0]
    wanted = canonicalize_name(MODULES.get(top, top))
    brought = _extras_of_wheel()
    bringing = [extra for extra, names in brought.items() if wanted in names]
    return min(bringing, key=lambda extra: len(brought[extra]), default=None)


def require_extras(what: str, *extras: str) -> None:
    """Return if every package of these extras is installed; nothing is imported.

    Args:
        what: What needs them, as the beginning of a sentence.
        extras: Their names.

    Raises:
        ExtraMissing: Some are not, by name.
    """
    from importlib.metadata import PackageNotFoundError, version

    absent = []
    brought = _extras_of_wheel(extras)
    for name in sorted({name for names in brought.values() for name in names}):
        try:
            version(name)
        except PackageNotFoundError:
            absent.append(name)
    if absent:
        raise ExtraMissing(
            f"{what} needs packages that are not installed",
            got=", ".join(absent),
            hint=f"pip install 'sealtrain[{','.join(extras)}]'",
        )


def _extras_of_wheel(only: Collection[str] | None = None) -> dict[str, set[str]]:
    """Distributions by extra, as the installed sealtrain lists them; of these extras, or of all."""
    from importlib.metadata import PackageNotFoundError, metadata

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        described = metadata("sealtrain")
    except PackageNotFoundError:
        return {}
    lines = [Requirement(line) for line in described.get_all("Requires-Dist", [])]
    return {
        extra: {canonicalize_name(line.name) for line in lines if belongs(line, extra)}
        for extra in described.get_all("Provides-Extra", [])
        if only is None or extra in only  # each costs milliseconds, and every command asks for one
    }


def belongs(wanted: Requirement, extra: str) -> bool:
    """Whether a requirement line of sealtrain is part of an extra, and not of the core."""
    marker = wanted.marker
    return (
        marker is not None
        and marker.evaluate({"extra": extra})
        and not marker.evaluate({"extra": ""})
    )

"""``image eif``: the enclave image file of a container image, written in one way only."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, cast

import typer

from sealtrain.base.files import atomic_writer, read_bounded
from sealtrain.cli.image import ImagePath, reading
from sealtrain.cli.output import Json, emit
from sealtrain.errors import ImageRefused, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sealtrain.image.machine.enclavebuild import BuiltEnclave

_MAX_KERNEL_BYTES: Final = 64 << 20
_MAX_MODULE_BYTES: Final = 16 << 20
_MAX_BYTES: Final = 2 << 30
_SUFFIX: Final = ".ko"
_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}")


def eif(
    image: ImagePath,
    kernel: Annotated[Path, typer.Option(help="Kernel of the enclave, a bzImage.")],
    module: Annotated[
        list[Path] | None,
        typer.Option(help="A .ko that init loads, each after those that it needs. Repeat it."),
    ] = None,
    processors: Annotated[
        int, typer.Option(min=1, max=1024, help="Default of the enclave's processors.")
    ] = 2,
    memory_mib: Annotated[
        int | None,
        typer.Option(
            min=64, max=1 << 24, help="Default of the enclave's memory, in MiB; else the least."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Enclave image file to write.")] = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="An enclave image file that must have exactly the same bytes."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an image's enclave image file (EIF), or compare with one; the same bytes anywhere.

    Owners pin its PCR 0 to 2, which are printed. It is the same for every deployment document.
    """
    from sealtrain.image.machine.enclavebuild import MEMORY_FACTOR, EnclaveParts, build_enclave
    from sealtrain.image.machine.enclavefile import measure_enclave

    if (out is None) == (compare is None):
        raise UsageError(
            "say what becomes of the enclave image file",
            check="--out, --compare",
            got="none of them" if out is None else "both",
            expected="--out FILE to write it, or --compare FILE to compare one with it",
        )
    theirs = None if compare is None else read_bounded(compare, _MAX_BYTES)
    parts = EnclaveParts(
        kernel=read_bounded(kernel, _MAX_KERNEL_BYTES),
        modules=_modules(module or []),
        processors=processors,
        memory_mib=memory_mib or 0,
    )
    with _file(out) as file, reading(image) as progress:
        built = build_enclave(image, parts, file, progress=progress)
        file.seek(0)
        ours = file.read()
        registers = measure_enclave(ours)
        if theirs is not None:
            _require_same(ours, theirs)
    values = {f"pcr{number}": value for number, value in registers.items()}
    emit(
        as_json,
        {
            "eif": None if out is None else str(out),
            "image": built.image,
            "size": built.size,
            "memory_mib": built.memory_mib,
            "values": values,
        },
        [
            *_describe(built, out or compare, written=out is not None),
            f"memory     {built.memory_mib} MiB; an enclave needs {MEMORY_FACTOR} times its image",
            *(f"{name}       {value}" for name, value in values.items()),
        ],
    )


def _describe(built: BuiltEnclave, path: Path | None, *, written: bool) -> list[str]:
    how = "written" if written else "has the same bytes"
    return [f"eif        {path}: {how}, {built.size} bytes", f"image      {built.image}"]


def _file(out: Path | None) -> AbstractContextManager[BinaryIO]:
    if out is not None:
        return atomic_writer(out)
    return cast("AbstractContextManager[BinaryIO]", tempfile.TemporaryFile())


def _modules(paths: list[Path]) -> dict[str, bytes]:
    """Modules by the names that the kernel gives them, in the order of loading."""
    found: dict[str, bytes] = {}
    for path in paths:
        name = path.name.removesuffix(_SUFFIX)
        if name == path.name or not _NAME.fullmatch(name):
            raise UsageError(
                "no kernel module",
                check="--module",
                got=path.name[:100],
                expected="NAME.ko, unpacked",
                hint="unpack it first: xz --decompress NAME.ko.xz",
            )
        known = name.replace("-", "_")
        if known in found:
            raise UsageError("a kernel module is named twice", check="--module", got=known)
        found[known] = read_bounded(path, _MAX_MODULE_BYTES)
    return found


def _require_same(ours: bytes, theirs: bytes) -> None:
    """Compare an EIF with ours; a difference is named by its place.

    Raises:
        ImageRefused: The file is no EIF, or another one.
    """
    from sealtrain.image.machine.enclavefile import NAMES, EnclaveFile

    if ours == theirs:
        return
    different = ["number of sections"]
    expected, got = EnclaveFile(ours).sections, EnclaveFile(theirs).sections
    if [kind for kind, _ in expected] == [kind for kind, _ in got]:
        different = [
            f"{NAMES[kind]} (section {number})"
            for number, ((kind, own), (_, other)) in enumerate(zip(expected, got, strict=True), 1)
            if own != other
        ]
    raise ImageRefused(
        "the enclave image file is another than these parts give",
        check="EIF",
        got=f"differs in {', '.join(different) or 'its header'}",
        expected="the same bytes",
        hint="name the kernel, modules, processors and memory that it was made with",
    )

"""Paths and addresses of a run, kept in its folder so that it can resume. They hold no secret.

Paths are written from the run's folder, where it has a folder in common with them: a project that
is moved or copied as a whole is resumed where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Hex32, StrictModel, load_model
from sealtrain.base.platforms import Platform
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lockfile import Lock, LockSource
from sealtrain.signing.continues import Continues
from sealtrain.storage.address import is_url

FILE_NAME = "run.json"
_PATHS_OF_GUESTS = ("compose", "certificates")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Paths and addresses of one run; relative ones become absolute.

    A script of a run has another working directory, and a resumed run may have.

    Attributes:
        lock: ``recipe.lock.json``.
        platform: The TEE that proves the guest. Always chosen explicitly.
        guest: Where evidence comes from (``attest.guest``): a socket, or a device by its TEE.
        collateral: Source of the collateral for the guest's quotes (``file:…`` or the URL of a
            service), ``None`` for TEEs that have none.
        gpu_collateral: The same for its accelerators.
        accelerator: ``HOST:PORT`` of the accelerator; ``None`` for recipes without pads.
        dealer: ``HOST:PORT`` of the dealer; ``None`` where the guest makes the pads.
        listen: ``HOST:PORT`` where other nodes join; ``None`` for recipes without nodes.
        brokers: A broker file (spec/key-release.md §2) for each broker that the run asks.
        data: Sealed datasets, or folders that hold them; a URL, as text, of a dataset elsewhere.
        base: Folder that relative paths of the recipe start from.
        out: The run's folder: sealed checkpoints, sealed model, manifest.
        continues: Manifest of the run before, where this one is the next of a chain: the
            operator's word, which the manifest repeats and brokers and verifiers compare.
        previous: Folder of that run's outputs, where this one begins with its model.
        submission_id: Which submission the run is for: the guest states it to the brokers.
        lock_source: What was read of ``lock``; made here unless the caller has read it before.
    """

    lock: Path
    platform: Platform
    guest: str
    collateral: str | None
    brokers: tuple[Path, ...]
    data: tuple[Path | str, ...]
    base: Path
    out: Path
    gpu_collateral: str | None = None
    accelerator: str | None = None
    dealer: str | None = None
    listen: str | None = None
    continues: Continues | None = None
    previous: Path | None = None
    submission_id: str | None = None
    lock_source: LockSource | None = field(default=None, repr=False, compare=False)

    @property
    def recipe_lock(self) -> Lock:
        """The lock, parsed once for all steps of a run. Raises as ``load_lock``."""
        return self._source.lock

    @property
    def lock_bytes(self) -> bytes:
        """The bytes that ``recipe_lock`` was parsed from."""
        return self._source.lock_bytes

    @property
    def _source(self) -> LockSource:
        if self.lock_source is None:
            raise AssertionError("settings have a source of their lock")
        return self.lock_source

    def __post_init__(self) -> None:
        """Make paths absolute, and read the lock of another path anew."""
        if self.lock_source is None or self.lock_source.path != self.lock.absolute():
            object.__setattr__(self, "lock_source", LockSource(self.lock))
        data = tuple(place if isinstance(place, str) else place.absolute() for place in self.data)
        lasting = {
            "lock": self.lock.absolute(),
            "guest": _lasting_address(self.guest),
            "collateral": _lasting_source(self.collateral),
            "gpu_collateral": _lasting_source(self.gpu_collateral),
            "brokers": tuple(broker.absolute() for broker in self.brokers),
            "data": data,
            "base": self.base.absolute(),
            "out": self.out.absolute(),
            "previous": None if self.previous is None else self.previous.absolute(),
        }
        for name, value in lasting.items():
            object.__setattr__(self, name, value)


class _RunFile(StrictModel):
    version: Literal[1]
    run_id: Hex32
    lock: str
    platform: Platform
    guest: str
    collateral: str | None
    gpu_collateral: str | None
    brokers: tuple[str, ...]
    data: tuple[str, ...]
    base: str
    accelerator: str | None = None
    dealer: str | None = None
    listen: str | None = None
    continues: Continues | None = None
    previous: str | None = None
    submission_id: Hex32 | None = None


def place_of(text: str) -> Path | str:
    """The text as a path, unless it is a URL."""
    return text if is_url(text) else Path(text)


def save_run(settings: RunSettings, run_id: str) -> None:
    """Write ``run.json`` into the run's folder."""
    document = {
        "version": 1,
        "run_id": run_id,
        "platform": settings.platform,
        "accelerator": settings.accelerator,
        "dealer": settings.dealer,
        "listen": settings.listen,
        "continues": None if settings.continues is None else settings.continues.to_dict(),
        "submission_id": settings.submission_id,
    }
    document |= _places(settings, partial(_from_folder, settings.out.resolve()))
    atomic_write(settings.out / FILE_NAME, canonical_json(document), overwrite=True)


def _places(settings: RunSettings, written: Callable[[Path], str]) -> dict[str, Any]:
    """The paths of a run, each as ``written`` writes it."""
    guest = settings.guest
    return {
        "lock": written(settings.lock.resolve()),
        "guest": guest if ":" in guest else written(Path(guest)),
        "collateral": _of_source(settings.collateral, written),
        "gpu_collateral": _of_source(settings.gpu_collateral, written),
        "brokers": [written(broker.resolve()) for broker in settings.brokers],
        "data": [
            place if isinstance(place, str) else written(place.resolve()) for place in settings.data
        ],
        "base": written(settings.base.resolve()),
        "previous": None if settings.previous is None else written(settings.previous.resolve()),
    }


def _of_source(uri: str | None, written: Callable[[Path], str]) -> str | None:
    """A source of collateral with its path as ``written`` writes it."""
    scheme, _, rest = (uri or "").partition(":")
    return f"file:{written(Path(rest))}" if scheme == "file" and rest else uri


def _from_folder(folder: Path, path: Path) -> str:
    """The path from a folder, or the whole path where the two share none but the root."""
    shared = os.path.commonpath([folder, path])
    return str(path) if shared == os.sep else os.path.relpath(path, folder)


def move_run(out: Path, former: Path) -> None:
    """Have an interrupted run whose folder alone was moved find its files again.

    Args:
        out: The run's folder.
        former: Where it lay; its files are sought from there. It need not be there any more.

    Raises:
        UsageError, LockInvalid: As ``name_brokers``.
        UsageError: The run's lock is not where it would be if the folder had lain there. Nothing
            was written: another word would be taken for the former folder for good.
    """
    settings, run_id = load_run(out, former)
    if settings.lock.is_file():
        save_run(settings, run_id)
    elif not load_run(out)[0].lock.is_file():  # else it was moved already: asked for once more
        raise UsageError(
            "the run did not lie there: its lock is not where it would be",
            check="--from",
            got=str(settings.lock),
            expected="the folder in which the run began, by its whole path",
            hint="name that folder, or put the lock, brokers and data where they lay from it",
        )


def require_files(settings: RunSettings) -> None:
    """Refuse to go on with an interrupted run whose files are not where it finds them.

    Raises:
        UsageError: Its lock, a broker file, data or the outputs before are missing.
    """
    places: list[tuple[str, Path | str | None]] = [
        ("lock", settings.lock),
        *(("broker file", broker) for broker in settings.brokers),
        *(("data", place) for place in settings.data),
        ("folder of paths", settings.base),
        ("outputs before", settings.previous),
    ]
    for what, place in places:
        if isinstance(place, Path) and not place.exists():
            raise UsageError(
                f"the run's {what} is not where the run finds it",
                check=what,
                got=str(place),
                expected="files that lie from the run's folder as they lay when it began",
                hint="put it there; if the run's folder alone was moved: sealtrain resume "
                "FOLDER --from THE-FOLDER-IN-WHICH-IT-BEGAN",
            )


def name_brokers(out: Path, brokers: Sequence[Path]) -> None:
    """Have an interrupted run ask these brokers from now on.

    Args:
        out: The run's folder.
        brokers: A broker file each, at least one.

    Raises:
        UsageError: The folder holds no run.
        LockInvalid: Its ``run.json`` is malformed.
    """
    settings, run_id = load_run(out)
    save_run(replace(settings, brokers=tuple(brokers)), run_id)


def _lasting_address(guest: str) -> str:
    """A guest's address (``attest.guest``), valid from any working directory."""
    if ":" not in guest:
        return str(Path(guest).absolute())
    device, mark, words = guest.partition("?")
    named = [
        (name, str(Path(value).absolute()) if name in _PATHS_OF_GUESTS else value)
        for name, value in parse_qsl(words, keep_blank_values=True)
    ]
    return f"{device}{mark}{urlencode(named, safe='/')}"


def _lasting_source(uri: str | None) -> str | None:
    """The same for a source of collateral: ``file:PATH``, or a URL."""
    scheme, _, rest = (uri or "").partition(":")
    if scheme != "file" or not rest:
        return uri
    return f"file:{Path(rest.removeprefix('//')).absolute()}"


def holds_run(out: Path) -> bool:
    """Whether the folder belongs to a run that has already obtained keys."""
    return (out / FILE_NAME).is_file()


def read_held_run(out: Path) -> str | None:
    """Id of the run that a run folder holds; ``None`` where it holds none.

    Raises:
        LockInvalid: As ``load_run``.
    """
    return load_run(out)[1] if holds_run(out) else None


def load_run(out: Path, former: Path | None = None) -> tuple[RunSettings, str]:
    """Settings and run id of an interrupted run.

    Args:
        out: The run's folder.
        former: Folder that the run's paths start from, where that is another.

    Raises:
        UsageError: The folder holds no run.
        LockInvalid: Its ``run.json`` is malformed.
    """
    path = out / FILE_NAME
    if not holds_run(out):
        raise UsageError(f"{out} holds no run", hint="name the --out folder of the training run")
    try:
        document = parse_json(read_bounded(path, _MAX_BYTES))
    except DataInvalid as error:
        raise LockInvalid(
            f"{path}: {error.message}",
            check=FILE_NAME,
            got=error.got,
            expected=error.expected,
            hint="copy the run's folder whole, byte for byte; without this file a run begins anew",
        ) from None
    run = load_model(_RunFile, document, LockInvalid, FILE_NAME)
    start = (out if former is None else former).resolve()

    def resolve(text: str) -> Path:
        # By its text: the folder that a moved run lay in may be gone.
        return Path(os.path.normpath(start / text))

    settings = RunSettings(
        lock=resolve(run.lock),
        platform=run.platform,
        guest=run.guest if ":" in run.guest else str(resolve(run.guest)),
        collateral=_of_source(run.collateral, lambda path: str(resolve(str(path)))),
        gpu_collateral=_of_source(run.gpu_collateral, lambda path: str(resolve(str(path)))),
        brokers=tuple(resolve(broker) for broker in run.brokers),
        data=tuple(text if is_url(text) else resolve(text) for text in run.data),
        base=resolve(run.base),
        out=out,
        accelerator=run.accelerator,
        dealer=run.dealer,
        listen=run.listen,
        continues=run.continues,
        previous=None if run.previous is None else resolve(run.previous),
        submission_id=run.submission_id,
    )
    return settings, run.run_id

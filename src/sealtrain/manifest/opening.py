"""A recipient opens the outputs of a run: exactly the files that its manifest names, and no code.

``open_named`` uses the manifest as a list only: its signature shows that it is complete and that
its signer held the key it names. ``manifest.verify`` establishes the signer, with a trust file.

Checks, in order (spec/run-manifest.md §2.3):
 1. The manifest has the right form and is signed by the key it names.
 2. The manifest names the recipient.
 3. The folder holds the named files, each of its size, and no others.
 4. Each file opens under its core and root.
 5. No file can carry code where a library loads it, unless the recipient asked for that.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.canonical import require_bounded
from sealtrain.base.filenames import DATA_SUFFIXES, is_vocabulary, may_carry_code
from sealtrain.base.files import atomic_folder, private_file
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.errors import DataInvalid
from sealtrain.manifest import form
from sealtrain.manifest.outputs import model_of, require_named_entries, require_recipient
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.modelspec import refuse_foreign_code
from sealtrain.sealing.opened_model import TrainedFile, open_named_model, open_unnamed_model
from sealtrain.sealing.trainedmodel import TrainedModel
from sealtrain.signing import dsse, statement

if TYPE_CHECKING:
    from sealtrain.keys.identity import Identity

_PIECE = 1 << 20


def open_named(
    manifest: bytes, folder: Path, me: Identity
) -> tuple[form.Manifest, dict[str, TrainedFile]]:
    """The files that a manifest names, opened in memory one by one.

    Args:
        manifest: The manifest file.
        folder: ``model`` in the run's folder.
        me: A recipient.

    Returns:
        The manifest, unverified but for its form and signature, and the files by the names they
        had in training.

    Raises:
        ManifestMalformed, SignatureInvalid: Check 1.
        NoStanza: Check 2, or the files are sealed to another owner.
        SubjectMismatch: Check 3.
        WrongContext, WrongKey: Check 4, for the first file.
    """
    read = form.read(manifest)
    dsse.verify(read.signed_statement, [read.guest_key], payload_type=statement.PAYLOAD_TYPE)
    require_recipient(read.predicate, me.public)
    model = model_of(read.predicate, read.subjects)
    require_named_entries(model, folder)
    return read, open_named_model(folder, model, me.unwrap)


def open_unnamed(folder: Path, me: Identity) -> dict[str, TrainedFile]:
    """The files of a folder without a manifest: all of one run, which may be a forgery.

    Args:
        folder: ``model`` in the run's folder.
        me: A recipient.

    Raises:
        NotSealed, WrongContext: The folder does not hold all files of a single run by their names.
        NoStanza, WrongKey: The files are sealed to another owner.
    """
    return open_unnamed_model(folder, me.unwrap)


def refuse_code(files: Mapping[str, TrainedFile]) -> None:
    """Check 5.

    Args:
        files: By name; settings in JSON are opened and read.

    Raises:
        ModelInvalid: A file can carry code, or names code from elsewhere.
        SealRefused: A file does not open.
    """
    for name, file in files.items():
        if may_carry_code(name):
            raise ModelInvalid(
                f"{name} can run code where a library loads it",
                check="file kind",
                got=name,
                expected=", ".join(DATA_SUFFIXES),
                hint="--insecure-code opens it all the same: only if you know its author",
            )
        if name.endswith(".json") and not is_vocabulary(name):
            _refuse_foreign_code(name, file)


def write_opened(
    files: Mapping[str, TrainedFile], out: Path, *, insecure_code: bool = False
) -> list[str]:
    """Write the files in the clear into a new folder that only its owner reads.

    Args:
        files: By name, from ``open_named`` or ``open_unnamed``.
        out: Folder to create; it appears whole or not at all.
        insecure_code: Leave out check 5.

    Returns:
        Names of the files, sorted.

    Raises:
        AlreadyExists: ``out`` exists.
        ModelInvalid, SealRefused: As ``refuse_code``; ``out`` is then removed.
    """
    if not insecure_code:
        refuse_code(files)
    with atomic_folder(out) as folder:
        for name, file in files.items():
            with file.open() as plain, private_file(folder / name) as target:
                shutil.copyfileobj(plain, target, _PIECE)
    return sorted(files)


def digest_opened(folder: Path, model: TrainedModel, me: Identity) -> dict[str, str]:
    """SHA-256 of every output in the clear, by the name that opening gives it.

    Args:
        folder: ``model`` in the run's folder.
        model: The model of a verified manifest.
        me: A recipient.

    Raises:
        NoStanza: The outputs are not sealed to ``me``.
        SealRefused: A file does not open.
    """
    digests = {}
    for name, file in open_named_model(folder, model, me.unwrap).items():
        seen = hashlib.sha256()
        with file.open() as content:
            while piece := content.read(_PIECE):
                seen.update(piece)
        digests[name] = seen.hexdigest()
    return digests


def _refuse_foreign_code(name: str, file: TrainedFile) -> None:
    with file.open() as content:
        data = content.read(MAX_SETTINGS_BYTES + 1)
    problem = f"is longer than {MAX_SETTINGS_BYTES} bytes"
    if len(data) <= MAX_SETTINGS_BYTES:
        try:
            require_bounded(data)
            # Read as leniently as the libraries that load it.
            refuse_foreign_code(json.loads(data.decode("utf-8")))
        except (DataInvalid, ValueError) as error:
            problem = getattr(error, "message", None) or str(error)
        else:
            return
    raise ModelInvalid(
        f"{name} is not plain settings",
        check="file kind",
        got=problem,
        expected="JSON that names no code from elsewhere",
        hint="--insecure-code opens it all the same: only if you know its author",
    )

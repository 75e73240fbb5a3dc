"""The model of the run before, with which a run of a recipe with ``continue: last`` begins.

An operator brings the outputs of that run, and is believed in nothing (spec/schedule.md §4.1):

1. the manifest beside the model has the digest that the run ticket says. The broker releases the
   model's key for that digest alone, and verified the manifest when it recorded it;
2. of the model, exactly the files that this manifest names are opened, each under the root that it
   states, whenever the file is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sealtrain.base.digests import sha256_hex
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.grants import WantedModel
from sealtrain.consortium.members import Consortium
from sealtrain.errors import RunChainBroken
from sealtrain.manifest import form
from sealtrain.manifest.files import manifest_bytes
from sealtrain.manifest.outputs import model_of, require_named_entries
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import NotSealed
from sealtrain.sealing.file import read_header
from sealtrain.sealing.opened_model import TrainedFile, open_named_model
from sealtrain.sealing.trainedmodel import (
    MODEL_FOLDER,
    RUN_MANIFEST,
    TrainedModel,
    check_sealed_names,
)

if TYPE_CHECKING:
    from sealtrain.guest.settings import RunSettings
    from sealtrain.recipe.recipe import PhaseRecipe


class OpenedModel:
    """The files of a model, decrypted as they are read."""

    def __init__(self, files: dict[str, TrainedFile]) -> None:
        self._files = files

    @property
    def file_names(self) -> tuple[str, ...]:
        """Relative POSIX paths, as in training."""
        return tuple(self._files)

    def open_file(self, name: str) -> RawIOBase:
        """Open one of them; the caller closes it."""
        return cast("RawIOBase", self._files[name].open())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBefore:
    """The sealed model of the run before.

    Attributes:
        folder: Of its files.
        model: What the manifest of its run names.
        wanted: What the broker is asked for.
    """

    folder: Path
    model: TrainedModel
    wanted: WantedModel

    def open(self, key: DataKey) -> OpenedModel:
        """The files under the key that the broker released.

        Raises:
            WrongContext, NotSealed: The first file is another than the manifest names.
        """
        return OpenedModel(open_named_model(self.folder, self.model, lambda _run, _stanzas: key))


def begins_with_last(recipe: PhaseRecipe) -> bool:
    """Whether each run of a recipe begins with the model of the run before."""
    return recipe.schedule is not None and recipe.schedule.continues == "last"


def find_model_before(
    settings: RunSettings, recipe: PhaseRecipe, consortium: Consortium
) -> ModelBefore | None:
    """The model that a run begins with; ``None`` for the recipe's own.

    Args:
        settings: Say which run is followed, and where its outputs are.
        recipe: Of the lock.
        consortium: That the brokers serve.

    Raises:
        TicketInvalid: The ticket says which run is followed, and not where its outputs are.
        RunChainBroken: The manifest there is another one.
        DataInvalid, ManifestMalformed: It is missing, or no manifest.
        SubjectMismatch: The folder does not hold the files that it names.
    """
    continues = settings.continues
    if continues is None or not begins_with_last(recipe):
        return None
    if settings.previous is None:
        raise TicketInvalid(
            "the run begins with the model of the run before, and the ticket does not say where",
            check="previous",
            hint="sealtrain deploy ticket --previous FOLDER",
        )
    data = manifest_bytes(settings.previous / RUN_MANIFEST)
    if (found := sha256_hex(data)) != continues.manifest_digest:  # (1)
        raise RunChainBroken(
            "the outputs of the run before are of another run than the ticket names",
            check="previous",
            got=found,
            expected=continues.manifest_digest,
            hint="give the guest the outputs of the newest run of the chain",
        )
    read = form.read(data)
    model = model_of(read.predicate, read.subjects)
    if model.dataset is not None or model.owner_id != consortium.consortium_id:
        raise NotSealed("the run before left no model for this consortium", check="previous")
    folder = settings.previous / MODEL_FOLDER
    require_named_entries(model, folder)
    first = read_header(folder / check_sealed_names(model.names)[0])
    return ModelBefore(
        folder=folder,
        model=model,
        wanted=WantedModel(
            place=continues,
            run_id=model.run_id,
            consortium_id=consortium.consortium_id,
            stanzas=tuple(first.stanzas),
        ),
    )

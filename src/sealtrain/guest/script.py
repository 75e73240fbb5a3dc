"""The engineer's own training script inside a run.

The recipe names the script and the lock holds its text. ``sealtrain train`` attests and obtains the
keys as for any recipe; the script runs in the run's workload, which holds none of them
(``guest.workload``). ``unwrap_dataset``, ``SealedRun`` (or ``SealedLoop``) and ``sign_manifest``
act on that run by way of its keeper. Outside a run they refuse.

A script gets the columns and the datasets that the recipe names, and no others. What it seals is
loaded again before training and before the manifest is signed (``training.saved``).

It runs from the text of the lock, never from a file. The first script runs as ``__main__``. It
imports the others by name, found after all other modules, and reads them beside itself:
``__file__`` lies in the folder of the copies (``guest.admission``).

Where the recipe has several ranks, each runs the script, with ``RANK`` and ``WORLD_SIZE`` as under
torchrun and their process group made: the script's trainer joins their gradients (DDP). Each rank
has to come to ``sign_manifest`` with the same weights; rank 0 seals and signs.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from sealtrain.errors import UsageError
from sealtrain.guest.leasekeeper import Follower
from sealtrain.guest.model_names import ModelNames
from sealtrain.guest.workload.messages import Sign
from sealtrain.guest.workload.stubs import numbers_of
from sealtrain.recipe.scripts import modules_of
from sealtrain.training.basefiles import base_folder, files_in
from sealtrain.training.checkpoints.loop import RunLoop
from sealtrain.training.checkpoints.randomness import random_states, restore_random_states
from sealtrain.training.checkpoints.run_context import RunContext
from sealtrain.training.data.hugging import (
    Positioned,
    as_iterable_dataset,
    as_map_style_dataset,
    map_in_this_process,
    read_in_each_rank,
)
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.devices import compute_device, one_gpu_each
from sealtrain.training.distributed.agreement import expect_one_model
from sealtrain.training.distributed.ranks import place
from sealtrain.training.saved_model import BaseFolder, save_files, unwrap
from sealtrain.training.silence import drop_reports
from sealtrain.training.telemetry.metric_gate import MetricGate

if TYPE_CHECKING:
    import datasets

    from sealtrain.guest.workload.stubs import WorkloadRun
    from sealtrain.training.checkpoints.callback import RunCallback
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.lightning import RunLightning
    from sealtrain.training.data.sources import Source

Role = Literal["train", "test"]


class ScriptRun:
    """The run that a script acts on."""

    def __init__(self, run: WorkloadRun) -> None:
        self.run = run
        metrics = run.metrics
        recipe = run.lock.recipe
        self.context = RunContext(
            run_id=run.run_id,
            store=run.store,
            # The other ranks release nothing.
            gate=MetricGate(recipe.release_policy) if metrics is None else metrics,
            on_checkpoint=_ignore,  # the keeper knows of it first
            resume=run.resume,
            arguments=recipe.trainer,
            on_step=() if metrics is None else (metrics.step,),
            lease_keeper=Follower() if run.lease is None else run.lease,
        )
        self.callback: RunCallback | RunLightning | None = None
        self.ended_well = False
        path = base_folder(recipe, run.base)
        self.base = BaseFolder(path=path)
        self.names = ModelNames(run.lock.scripts, () if path is None else files_in(path).names)
        self.streams: list[Positioned] = []

    def save(self, model: Any, processing: Any) -> dict[str, bytes]:
        """Files of a model that load again. Raises ``ModelNotReloaded``."""
        files = save_files(unwrap(model), processing, base=self.base, memory=self.run.memory)
        self.names.require(files)
        return files

    def try_saving(self, model: Any, processing: Any) -> None:
        """Refuse a model that could not be sealed at the end, before it trains."""
        if self.context.resume is None and place().leads:
            before = random_states()
            names = save_files(
                unwrap(model), processing, base=self.base, memory=self.run.memory, trial=True
            )
            self.names.require(names)
            restore_random_states(before)


_current: ScriptRun | None = None


def run_script(run: WorkloadRun) -> None:
    """Run the lock's script in a workload, as one of its ranks.

    Args:
        run: Its keeper holds the keys.

    Raises:
        UsageError: The script ended without ``sign_manifest``.
        Exception: As raised inside the script; ``sandbox.events`` keeps its text.
    """
    global _current
    _current = script = ScriptRun(run)
    compute_device()  # scripts take whatever PyTorch sees
    one_gpu_each()
    drop_reports()
    map_in_this_process()
    if place().world > 1:
        read_in_each_rank()
    try:
        run_as_main(run.lock.scripts, run.lock.recipe.scripts, run.base)
    finally:
        script.context.close()
        _current = None
    if not script.ended_well:
        raise _refuse_unsigned()


def _refuse_unsigned() -> UsageError:
    return UsageError(
        "the training script ended without a manifest",
        check="script",
        hint="call sealtrain.sign_manifest(trainer) at the end of the script",
    )


def _ignore(_: CheckpointRef) -> None:
    """Take no notice."""


def unwrap_dataset(
    path: str | Path | tuple[str, str] | None = None,
    *,
    role: Role | None = None,
    map_style: bool | None = None,
) -> datasets.IterableDataset | datasets.Dataset:
    """Records of sealed datasets, decrypted in memory as they are read.

    They have the columns that the recipe names, under the names it gives them.

    Args:
        path: One dataset, by ``(owner, name)`` or by the folder it is sealed in; all of the role
            when ``None``.
        role: ``train`` (the default): a shuffled endless stream, in which datasets are mixed by
            their weights. ``test``: every record once, in order, held in memory.
        map_style: Give training data as a ``datasets.Dataset`` held in memory, too.

    Raises:
        UsageError: Not inside a run, no dataset of this run or of this role, or ``map_style`` for
            a dataset of which the recipe gives only so many records an epoch (``max_records``).
        SchemaMismatch: A column of a dataset is missing, or has another type.
    """
    script = running()
    sources = _sources_at(script.run, path, role)
    columns = script.run.lock.recipe.columns.names
    if sources[0].role == "test":
        if map_style is False:
            raise UsageError(
                "test data are read once, in order: they are no stream",
                check="datasets",
                hint="leave map_style out",
            )
        return as_map_style_dataset(sources, columns)
    if map_style:
        if any(source.max_records is not None for source in sources):
            raise UsageError(
                "map_style is refused: a dataset with max_records is a stream, a part each epoch",
                check="datasets",
                hint="leave map_style out, or max_records",
            )
        return as_map_style_dataset(sources, columns)
    stream = Positioned(_stream(script.run, sources))
    script.streams.append(stream)
    return as_iterable_dataset(stream)


class SealedLoop(RunLoop):
    """A PyTorch loop of this run: batches, sealed checkpoints, exact resume, released metrics."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        processing_class: Any = None,
        path: str | Path | tuple[str, str] | None = None,
        loader: Any = None,
    ) -> None:
        """Attach to the run, and continue from its checkpoint if it has one.

        Args:
            model: The ``torch.nn.Module`` to train.
            optimizer: Optimizer of its parameters.
            scheduler: Scheduler of the optimizer, or ``None``.
            processing_class: Tokenizer to seal with the model.
            path: As in ``unwrap_dataset``, of the training data.
            loader: A ``DataLoader`` over the stream of ``unwrap_dataset``, prepared by Accelerate
                or not: its batches are given as it makes them. Else batches are columns of records,
                of the size that the recipe says.

        Raises:
            UsageError: Not inside a run, no dataset of this run, or a loader of other data.
            CheckpointRefused: The run's checkpoint is of another model.
            ModelNotReloaded: The model could not be sealed at the end.
        """
        script = running()
        script.try_saving(model, processing_class)
        super().__init__(
            script.context,
            loader if loader is not None else _stream(script.run, _train_sources(script.run, path)),
            script.run.lock.recipe.trainer,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            processing_class=processing_class,
        )


def sign_manifest(
    trainer: Any, *, model: Any = None, processing_class: Any = None, **metrics: float
) -> Path:
    """Seal the trained model to the recipe's recipients and sign the manifest.

    The model is saved as its library saves it, loaded again and compared before. Of several ranks
    every one calls this, and rank 0 signs.

    Args:
        trainer: The trainer that ran with ``SealedRun`` or ``SealedLightning``, or the
            ``SealedLoop``.
        model: What to seal in place of the trainer's model: a part of it, or a merged one.
        processing_class: Tokenizer or processor to seal in place of the trainer's.
        metrics: Final measurements; the manifest holds those that the release policy names.

    Returns:
        Path of ``manifest.json``; the sealed model lies beside it. The script cannot open either.

    Raises:
        UsageError: Not inside a run, no ``SealedRun`` took part, or ranks have different models.
        ModelNotReloaded: The saved model does not load as the trained one.
    """
    script = running()
    run = script.run
    ran = trainer if isinstance(trainer, SealedLoop) else script.callback
    if ran is None or (ran is not trainer and ran not in _callbacks_of(trainer)):
        raise UsageError(
            "this trainer ran without SealedRun",
            check="script",
            hint="pass callbacks=[sealtrain.SealedRun()] to the trainer, or SealedLightning() to "
            "Lightning's",
        )
    if model is None:  # Lightning's trainer.model is wrapped by its strategy
        model = getattr(trainer, "lightning_module", None) or trainer.model
    if processing_class is None:
        processing_class = getattr(trainer, "processing_class", None)
    expect_one_model(unwrap(model))  # and every rank has come so far
    script.ended_well = True
    if run.metrics is None:
        return run.manifest
    files = script.save(model, processing_class)
    while files:  # the keeper has each of them before this process lets the next one go
        name, content = files.popitem()
        run.store.deliver(name, len(content), (content,))
    question = Sign(
        steps=ran.steps,
        samples=ran.rows,
        tokens=ran.tokens,
        metrics=numbers_of(run.metrics.select({**ran.last, **metrics})),
        counts=run.tally.counts,
    )
    return Path(str(run.ask(question)["manifest"]))


def _callbacks_of(trainer: Any) -> list[Any]:
    """Callbacks of a trainer of Transformers, or of Lightning."""
    handler = getattr(trainer, "callback_handler", trainer)
    return list(handler.callbacks)


def running() -> ScriptRun:
    """The run that a script acts on. Raises ``UsageError`` outside of one."""
    if _current is None:
        raise UsageError(
            "no run holds keys in this process",
            check="script",
            hint="name this file in scripts of the recipe and start it with: sealtrain train",
        )
    return _current


def _stream(run: WorkloadRun, sources: Sequence[Source]) -> RecordStream:
    """The records of datasets, shuffled, with the recipe's columns and no others."""
    trainer = run.lock.recipe.trainer
    seed = trainer.seed if trainer.data_seed is None else trainer.data_seed
    return RecordStream(sources, run.lock.recipe.columns.names, seed=seed)


def _train_sources(run: WorkloadRun, path: str | Path | tuple[str, str] | None) -> list[Source]:
    return _sources_at(run, path, "train")


def _sources_at(
    run: WorkloadRun, path: str | Path | tuple[str, str] | None, role: Role | None
) -> list[Source]:
    """Datasets by role, or one by owner and name or by folder."""
    if path is None:
        found = [source for source in run.sources if source.role == (role or "train")]
    else:
        found = [
            source
            for places, source in zip(run.places, run.sources, strict=True)
            if role in (None, source.role) and _is_named(path, places, source)
        ]
    if len(found) == 1 or (found and path is None):
        return found
    raise UsageError(
        "no such dataset in this run" if not found else "several datasets have this name",
        check="datasets",
        got=role if path is None else str(path),
        expected=", ".join(
            f"({source.owner!r}, {source.name!r}) {source.role}" for source in run.sources
        ),
    )


def _is_named(path: str | Path | tuple[str, str], places: frozenset[str], source: Source) -> bool:
    if isinstance(path, tuple):
        return path == (source.owner, source.name)
    return str(path) in places or str(Path(path).resolve()) in places


def run_as_main(texts: Mapping[str, str], scripts: Sequence[str], base: Path) -> None:
    """Run the first script to its end.

    Args:
        texts: Text of each script by its path in the recipe.
        scripts: Their paths, as the recipe lists them.
        base: Folder that these paths start from.

    Raises:
        BaseException: As raised by the script.
    """
    finder = _ScriptModules(texts, scripts, base)
    place = str(base / scripts[0])
    main = ModuleType("__main__")
    main.__file__ = place
    for path, text in texts.items():
        lines = text.splitlines(keepends=True)
        # Without a modification time, linecache keeps this text.
        linecache.cache[str(base / path)] = (len(text), None, lines, str(base / path))
    before = sys.modules["__main__"], sys.argv
    sys.modules["__main__"], sys.argv = main, [place]
    sys.meta_path.append(finder)
    try:
        exec(compile(texts[scripts[0]], place, "exec", dont_inherit=True), vars(main))  # noqa: S102
    finally:
        sys.modules["__main__"], sys.argv = before
        sys.meta_path.remove(finder)
        for name in finder.names:
            sys.modules.pop(name, None)


class _ScriptModules(MetaPathFinder, ExecutionLoader):
    """Finds and loads the modules among a recipe's scripts."""

    def __init__(self, texts: Mapping[str, str], scripts: Sequence[str], base: Path) -> None:
        self._texts, self._base = texts, base
        self._modules = modules_of(scripts)

    @property
    def names(self) -> set[str]:
        """Names of the modules, and of the packages they lie in."""
        parts = [name.split(".") for name in self._modules]
        return {".".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a script, or of a folder of scripts, which holds no other modules."""
        if fullname in self._modules:
            return spec_from_file_location(
                fullname,
                self.get_filename(fullname),
                loader=self,
                submodule_search_locations=[] if self.is_package(fullname) else None,
            )
        return ModuleSpec(fullname, None, is_package=True) if fullname in self.names else None

    def get_filename(self, fullname: str) -> str:
        """Where the script's copy lies."""
        return str(self._base / self._modules[fullname])

    def get_source(self, fullname: str) -> str:
        """Its text in the lock."""
        return self._texts[self._modules[fullname]]

    def is_package(self, fullname: str) -> bool:
        """Whether it is a package's ``__init__.py``."""
        return self._modules[fullname].endswith("__init__.py")

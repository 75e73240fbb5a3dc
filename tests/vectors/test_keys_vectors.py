"""Keys against vectors of an independent generator (tools/vectorgen/keys.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shamir_mnemonic import MnemonicError, combine_mnemonics

from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.errors import KeyFileInvalid
from sealtrain.keys.derive import derive, recipe_key, run_key, signing_key
from sealtrain.keys.identity import Identity
from sealtrain.keys.passphrase import PASSPHRASES
from sealtrain.keys.shares import join_key
from sealtrain.keys.uris import root_secret
from sealtrain.sealing.datakey import DataKey

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "keys"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    assert found
    return found


@pytest.mark.parametrize("vector", vectors("derive"), ids=lambda vector: vector["name"])
def test_a_derived_key_is_the_vectors(vector: dict[str, Any]) -> None:
    secret = Secret(bytes.fromhex(vector["secret"]))
    assert derive(secret, vector["purpose"], *vector["parts"]).reveal().hex() == vector["key"]


def test_no_two_derivations_agree() -> None:
    keys = [vector["key"] for vector in vectors("derive")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("vector", vectors("keypairs"), ids=lambda vector: vector["kind"])
def test_a_key_of_a_root_or_a_run_is_the_vectors(vector: dict[str, Any]) -> None:
    if vector["kind"] == "run":
        names = ("app_id", "compose_hash", "run_id")
        keys = {name: DataKey(bytes.fromhex(key)) for name, key in vector["data_keys"].items()}
        assert (
            run_key(keys, **{name: vector[name] for name in names}).reveal().hex()
            == (vector["key"])
        )
        return
    root = Secret(bytes.fromhex(vector["root"]))
    if vector["kind"] == "recipe":
        names = ("app_id", "compose_hash", "owner_id")
        pair = recipe_key(root, **{name: vector[name] for name in names})
        assert sha256_hex(pair.public.raw) == vector["public_sha256"]
    else:
        assert signing_key(root, vector["purpose"]).public.hex() == vector["public"]


@pytest.mark.parametrize("vector", vectors("shares"), ids=lambda vector: vector["name"])
def test_documents_of_brokers_give_the_vectors_key(vector: dict[str, Any]) -> None:
    joined = join_key({name: Secret(text.encode()) for name, text in vector["documents"].items()})
    assert (joined.key and joined.key.reveal().hex()) == vector["key"]
    assert (joined.threshold, list(joined.wrong)) == (vector["threshold"], vector["wrong"])


def test_published_slip39_vectors(shared: Path) -> None:
    """The library we take shares from reads all that SLIP-39 publishes, valid or not."""
    published = json.loads((shared / "vectors" / "slip39" / "vectors.json").read_text())
    valid = 0
    for comment, mnemonics, secret, _ in published:
        try:
            found = combine_mnemonics(mnemonics, b"TREZOR").hex()
            valid += 1
        except MnemonicError:
            found = ""
        assert found == secret, comment
    assert (len(published), valid) == (45, 15)


@pytest.mark.parametrize("vector", vectors("identity"), ids=lambda vector: vector["name"])
def test_an_identity_file_gives_its_keys_or_is_refused(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "a.identity.json"
    path.write_text(vector["file"], "utf-8")
    path.chmod(0o600)
    PASSPHRASES.use(lambda _path: Secret(vector["passphrase"].encode()))
    if vector["public"] is None:
        with pytest.raises(KeyFileInvalid):
            Identity.load(path)
        return
    public = Identity.load(path).public
    witness = {"witness_key_sha256": sha256_hex(public.witness_bytes)}
    assert {
        **({} if public.witness_key is None else witness),
        "signing_key": public.signing_key,
        "sealing_key_sha256": sha256_hex(public.sealing_bytes),
        "owner_id": public.owner_id,
        "key_id": public.key_id,
    } == vector["public"]


@pytest.mark.parametrize("vector", vectors("root"), ids=lambda vector: vector["name"])
def test_a_root_file_gives_its_secret_or_is_refused(vector: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "root"
    path.write_bytes(vector["file"].encode())
    path.chmod(0o600)
    if vector["secret"] is None:
        with pytest.raises(KeyFileInvalid):
            root_secret(f"file:{path}", create=True)
        assert path.read_bytes() == vector["file"].encode()
    else:
        assert root_secret(f"file:{path}").reveal().hex() == vector["secret"]


@pytest.mark.parametrize("family", ["keys", "recipe"])
def test_the_generator_gives_the_published_files(
    repository: Path, tmp_path: Path, family: str
) -> None:
    script = repository / "tools" / "vectorgen" / f"{family}.py"
    assert "import sealtrain" not in script.read_text("utf-8")
    assert "from sealtrain" not in script.read_text("utf-8")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    folder = repository / "vectors" / family
    assert made == {path.name: path.read_bytes() for path in folder.iterdir()}

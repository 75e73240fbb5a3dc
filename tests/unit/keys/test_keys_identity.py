from __future__ import annotations

import copy
import json
import os
import pickle
import stat
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.errors import AlreadyExists, KeyFileInvalid, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.sealing.errors import WrongKey
from sealtrain.signing.ed25519 import verify_signature

pytestmark = pytest.mark.claim("C9")


def test_a_saved_identity_loads_with_the_same_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.identity.json"
    made = Identity.generate("hospital-a")
    made.save(path)
    loaded = Identity.load(path)
    assert loaded.public == made.public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    verify_signature(made.public.signing_bytes, loaded.signer.sign(b"m"), b"m")
    sealed = made.sealing.public.seal(b"key", info=b"i")
    assert loaded.sealing.open(sealed, info=b"i").reveal() == b"key"


def test_the_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Identity.generate("a").save(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o777])
def test_a_file_open_to_others_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    Identity.generate("a").save(path)
    path.chmod(mode)
    with pytest.raises(
        KeyFileInvalid, check=carries(check="key file", expected="mode 0600")
    ) as refusal:
        Identity.load(path)
    assert refusal.value.hint == f"chmod 600 {path}"


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a"
    Identity.generate("a").save(path)
    before = path.read_bytes()
    with pytest.raises(AlreadyExists):
        Identity.generate("a").save(path)
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AlreadyExists):
        Identity.generate("a").save(tmp_path / "dangling")
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "dangling"]


def test_links_folders_pipes_and_absent_files_are_refused(tmp_path: Path) -> None:
    Identity.generate("a").save(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        Identity.load(tmp_path / "link")
    (tmp_path / "folder").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("folder", "pipe"):
        with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
            Identity.load(tmp_path / name)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        Identity.load(tmp_path / "none")
    with pytest.raises(UsageError, check=carries(code="usage")):
        Identity.generate("a").save(tmp_path / "no" / "a")


def test_a_bad_name_makes_no_identity() -> None:
    for name in ("", "A", "a b", "a/b", "-a", "a" * 64):
        with pytest.raises(KeyFileInvalid):
            Identity.generate(name)


def test_the_seed_shows_nowhere(tmp_path: Path) -> None:
    identity = Identity.generate("a", random=lambda size: b"Z" * size)
    identity.save(tmp_path / "a")
    seed = json.loads((tmp_path / "a").read_text())["seed"]
    assert seed not in repr(identity)
    assert seed not in identity.public.to_bytes().decode()
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(identity)
    (tmp_path / "b").write_text(json.dumps({"type": "x", "name": "a", "seed": seed}))
    (tmp_path / "b").chmod(0o600)
    with pytest.raises(KeyFileInvalid) as refusal:
        Identity.load(tmp_path / "b")
    assert seed not in str(refusal.value.to_dict())


def test_signing_and_sealing_keys_of_two_owners_do_not_mix() -> None:
    one, two = Identity.generate("a"), Identity.generate("a")
    assert one.public.owner_id != two.public.owner_id
    with pytest.raises(WrongKey):
        two.sealing.open(one.sealing.public.seal(b"x", info=b""), info=b"")

"""Ethereum key files, what is missing without the extra, and that nothing loads it unasked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.consortium.chainfile import address_of
from sealtrain.errors import ExtraMissing, KeyFileInvalid, UsageError
from sealtrain_chain.account import address, load_account

if not COLLECTING:
    from eth_account import Account

KEY = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
ADDRESS = "0x2c7536e3605d9c16a7a3d7b1898e529396a65c23"


def secret(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("text", [KEY, f"0x{KEY}\n", KEY.upper()])
def test_a_key_in_hex(tmp_path: Path, text: str) -> None:
    assert address(load_account(secret(tmp_path / "key", text))) == ADDRESS


def test_a_keystore_with_its_password(tmp_path: Path) -> None:
    made = Account.encrypt(KEY, "correct horse", kdf="pbkdf2", iterations=2)
    keystore = secret(tmp_path / "keystore", json.dumps(made))
    password = secret(tmp_path / "password", "correct horse\n")
    assert address(load_account(keystore, password)) == ADDRESS
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        load_account(keystore)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        load_account(keystore, secret(tmp_path / "other", "battery staple"))


@pytest.mark.parametrize(
    "text",
    ["", KEY[:-1], KEY + "0", "zz" * 32, "00" * 32, "ff" * 32, "{}", '{"version": 3}', "{" * 999],
)
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    password = secret(tmp_path / "password", "x")
    with pytest.raises(KeyFileInvalid) as caught:
        load_account(secret(tmp_path / "key", text), password)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    if text:
        assert text not in str(caught.value.to_dict())


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = secret(tmp_path / "key", KEY)
    path.chmod(0o644)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file", got="mode 0644")):
        load_account(path)


def test_addresses_are_written_in_one_way() -> None:
    assert address_of("0x2c7536E3605D9C16a7a3D7b1898e529396a65c23", "owner") == ADDRESS
    for odd in (ADDRESS[2:], ADDRESS + "0", ADDRESS[:-1] + "g", ""):
        with pytest.raises(UsageError):
            address_of(odd, "owner")


@pytest.mark.parametrize("missing", ["trie", "rlp", "eth_utils"])
def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ExtraMissing) as caught:
        load_account(secret(tmp_path / "key", KEY))
    assert caught.value.hint == "pip install 'sealtrain[chain]'"


def test_nothing_of_the_extra_is_loaded_before_it_is_used() -> None:
    seen = (
        "import sys, pkgutil, importlib, sealtrain.cli, sealtrain.broker.serve, sealtrain_chain\n"
        "for module in pkgutil.iter_modules(sealtrain_chain.__path__, 'sealtrain_chain.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(sorted({'web3', 'eth_account', 'eth_utils', 'trie', 'rlp'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", seen], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"

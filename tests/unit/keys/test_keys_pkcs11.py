"""A root secret that a key in a hardware module computes: against SoftHSM, a real module."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from programs import PROGRAMS

from sealtrain.base.secret import Secret
from sealtrain.errors import (
    ExtraMissing,
    KeyFileInvalid,
    KmsAnswerInvalid,
    KmsUnreachable,
    UsageError,
)
from sealtrain.keys.pkcs11 import LABEL, parse_address
from sealtrain.keys.uris import root_secret

LIBRARY = PROGRAMS["softhsm"].files[0]
PIN = "a pin: 12345678"
VALUE = hashlib.sha256(b"the value of a key that only a test knows").digest()


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A token with its PIN's file; the library reads its settings once a process."""
    import pkcs11
    from pkcs11 import Attribute, KeyType, ObjectClass

    folder = tmp_path_factory.mktemp("softhsm")
    (folder / "tokens").mkdir()
    settings = folder / "softhsm2.conf"
    settings.write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    pin = folder / "pin"
    pin.write_text(PIN + "\n")
    pin.chmod(0o600)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SOFTHSM2_CONF", str(settings))
        subprocess.run(
            ["softhsm2-util", "--init-token", "--free", "--label", "north broker",
             "--so-pin", "so pin 87654321", "--pin", PIN],
            check=True, capture_output=True,
        )  # fmt: skip
        opened = pkcs11.lib(str(LIBRARY)).get_token(token_label="north broker")
        kept = {Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False, Attribute.SIGN: True}
        loose = {
            "extractable": {Attribute.EXTRACTABLE: True},
            "not sensitive": {Attribute.SENSITIVE: False, Attribute.EXTRACTABLE: False},
        }
        with opened.open(user_pin=PIN, rw=True) as session:
            for label, changed in {"root": {}, "twice": {}, **loose}.items():
                for _ in range(2 if label == "twice" else 1):
                    session.create_object(
                        {
                            Attribute.CLASS: ObjectClass.SECRET_KEY,
                            Attribute.KEY_TYPE: KeyType.GENERIC_SECRET,
                            Attribute.LABEL: label,
                            Attribute.VALUE: VALUE,
                            Attribute.TOKEN: True,
                            Attribute.PRIVATE: True,
                            **kept,
                            **changed,
                        }
                    )
        yield folder


def address(folder: Path, **changed: str) -> str:
    fields = {"token": "north%20broker", "object": "root", "library": str(LIBRARY)}
    fields |= {"pin": str(folder / "pin")} | changed
    return (
        f"pkcs11:token={fields['token']};object={fields['object']}"
        f"?module-path={fields['library']}&pin-source=file:{fields['pin']}"
    )


@pytest.mark.needs("softhsm")
def test_the_secret_is_the_hmac_of_the_label_by_the_key(token: Path) -> None:
    expected = hmac.new(VALUE, LABEL, hashlib.sha256).digest()
    assert root_secret(address(token)) == Secret(expected)
    assert root_secret(address(token), create=True) == Secret(expected)
    assert root_secret(address(token, pin=f"//{token / 'pin'}")) == Secret(expected)


@pytest.mark.needs("softhsm")
def test_another_process_gets_the_same(token: Path) -> None:
    code = (
        "import sys; from sealtrain.keys.uris import root_secret; "
        "print(root_secret(sys.argv[1]).reveal().hex())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, address(token)], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == root_secret(address(token)).reveal().hex()


@pytest.mark.needs("softhsm")
@pytest.mark.parametrize("key", ["extractable", "not sensitive"])
def test_a_key_that_could_leave_the_token_is_refused(token: Path, key: str) -> None:
    with pytest.raises(KmsAnswerInvalid, check=carries(check="root secret")):
        root_secret(address(token, object=key.replace(" ", "%20")))


@pytest.mark.needs("softhsm")
@pytest.mark.parametrize("key", ["absent", "twice"])
def test_none_and_two_keys_of_a_label_are_refused(token: Path, key: str) -> None:
    with pytest.raises(KmsAnswerInvalid, check=carries(check="root secret")):
        root_secret(address(token, object=key))


@pytest.mark.needs("softhsm")
def test_a_wrong_pin_is_not_shown(token: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "pin"
    wrong.write_text("wrong 4711")
    wrong.chmod(0o600)
    with pytest.raises(KeyFileInvalid, check=carries(check="root secret")) as caught:
        root_secret(address(token, pin=str(wrong)))
    assert "4711" not in repr(caught.value.to_dict())
    assert caught.value.__cause__ is None


@pytest.mark.needs("softhsm")
def test_a_pin_that_others_can_read_is_refused(token: Path, tmp_path: Path) -> None:
    loose = tmp_path / "pin"
    loose.write_text(PIN)
    loose.chmod(0o644)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file", got="mode 0644")):
        root_secret(address(token, pin=str(loose)))


@pytest.mark.needs("softhsm")
def test_a_token_that_is_not_there_is_unreachable(token: Path) -> None:
    with pytest.raises(KmsUnreachable) as caught:
        root_secret(address(token, token="south"))
    assert caught.value.exit_code == 4


def test_a_library_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    pytest.importorskip("pkcs11")
    pin = tmp_path / "pin"
    pin.touch(0o600)
    with pytest.raises(KmsUnreachable):
        root_secret(address(tmp_path, library="/nowhere/lib.so"))


def test_without_its_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with pytest.raises(ExtraMissing, check=carries(got="pkcs11")) as caught:
        root_secret(address(tmp_path))
    assert caught.value.hint == "pip install 'sealtrain[pkcs11]'"


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "token=a;object=b",
        "token=a?module-path=/l&pin-source=file:p",
        "token=a;object=b?module-path=/l",
        "token=a;object=b?module-path=/l&pin-value=1234",
        "token=a;object=b?module-path=/l&pin-source=p",
        "token=a;object=b?module-path=/l&pin-source=https://x/y",
        "token=a;object=b?module-path=l.so&pin-source=file:p",
        "token=a;object=b;token=c?module-path=/l&pin-source=file:p",
        "token=a;object=?module-path=/l&pin-source=file:p",
        "token=a;object=b;serial=1?module-path=/l&pin-source=file:p",
        "token=a;module-path=/l?object=b&pin-source=file:p",
        "token=%ff;object=b?module-path=/l&pin-source=file:p",
        "token=a%00;object=b?module-path=/l&pin-source=file:p",
        "token=a b;object=b?module-path=/l&pin-source=file:p",
    ],
)
def test_another_form_is_refused(rest: str) -> None:
    with pytest.raises(UsageError, check=carries(check="root secret")):
        root_secret(f"pkcs11:{rest}")


def test_values_are_decoded() -> None:
    found = parse_address("token=a%3Bb;object=%C3%A4?pin-source=file:/p&module-path=/l%20l.so")
    assert (found.token, found.key) == ("a;b", "ä")
    assert (found.library, found.pin) == (Path("/l l.so"), Path("/p"))

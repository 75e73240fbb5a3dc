"""Key material does not leak through the ordinary doors."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from sealtrain.base.secret import Secret

RAW = b"\x17secret-key-material\x99"


def test_a_secret_reveals_itself_only_when_asked() -> None:
    secret = Secret(RAW)
    assert secret.reveal() == RAW
    assert len(secret) == len(RAW)


@pytest.mark.parametrize("show", [repr, str, "{}".format, "%r".__mod__, ascii])
def test_no_text_form_shows_the_value(show) -> None:  # type: ignore[no-untyped-def]
    text = show(Secret(RAW))
    assert "secret-key-material" not in text
    assert RAW.hex() not in text


def test_a_traceback_with_locals_does_not_show_the_value() -> None:
    def fail(key: Secret) -> None:
        raise RuntimeError(f"failed with {key}")

    try:
        fail(Secret(RAW))
    except RuntimeError as error:
        shown = "".join(
            traceback.TracebackException.from_exception(error, capture_locals=True).format()
        )
    assert "secret-key-material" not in shown.replace('RAW = b"', "")


@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_secret_cannot_be_pickled_or_copied(leave) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError):
        leave(Secret(RAW))


def test_a_secret_is_no_dictionary_key() -> None:
    with pytest.raises(TypeError):
        hash(Secret(RAW))


def test_secrets_compare_by_value_and_to_secrets_only() -> None:
    assert Secret(RAW) == Secret(RAW)
    assert Secret(RAW) != Secret(RAW + b"x")
    assert Secret(RAW) != RAW


def test_a_later_change_of_the_source_buffer_does_not_change_the_secret() -> None:
    buffer = bytearray(RAW)
    secret = Secret(buffer)
    buffer[:] = bytes(len(buffer))
    assert secret.reveal() == RAW


def test_a_secret_takes_no_further_attribute() -> None:
    with pytest.raises(AttributeError):
        Secret(RAW).note = "x"  # type: ignore[attr-defined]

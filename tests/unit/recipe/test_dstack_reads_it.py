"""dstack's reader of ``app-compose.json`` takes every document of ours, and means the same by it.

The rules are those of ``AppCompose`` in ``dstack/dstack-types/src/lib.rs`` of
Dstack-TEE/dstack@312dc605: which fields it has, of which types, and what stands where one is left
out. Unknown fields it ignores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from every_document import documents_in

from sealtrain.base.canonical import canonical_json

ABSENT = object()


def is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_version(value: Any) -> bool:
    """A number, which can be 1 or 2, or a text without a leading zero or a space."""
    if isinstance(value, str):
        return value.strip().isdecimal() and str(int(value)) == value.strip() and int(value) > 0
    return type(value) is int and value in (1, 2)


def is_hex(value: Any) -> bool:
    try:
        return is_text(value) and bytes.fromhex(value).hex() == value.lower()
    except ValueError:
        return False


def one_of(*texts: str) -> Callable[[Any], bool]:
    return lambda value: value in texts


READ: Mapping[str, tuple[Callable[[Any], bool], Any]] = {
    "manifest_version": (is_version, ABSENT),
    "name": (is_text, ABSENT),
    "runner": (is_text, ABSENT),
    "docker_compose_file": (is_text, None),
    "public_logs": (is_bool, False),
    "public_sysinfo": (is_bool, False),
    "public_tcbinfo": (is_bool, True),
    "kms_enabled": (is_bool, False),
    "gateway_enabled": (is_bool, False),
    "local_key_provider_enabled": (is_bool, False),
    "key_provider": (one_of("none", "kms", "local", "tpm"), None),
    "key_provider_id": (is_hex, ""),
    "allowed_envs": (is_texts, []),
    "no_instance_id": (is_bool, False),
    "secure_time": (is_bool, True),
    "storage_fs": (one_of("zfs", "ext4"), None),
}
"""Field → what dstack takes, and what it means where the field is left out."""
OPENED = {
    "features", "snapshotter", "init_script", "pre_launch_script", "bash_script", "swap_size",
    "event_log_version", "port_policy", "requirements", "verity_volumes", "tproxy_enabled",
}  # fmt: skip
"""Fields that dstack reads and no document of ours has: each would change what runs."""


def read(data: bytes) -> dict[str, Any]:
    """As dstack reads it.

    Raises:
        ValueError: It takes no such document.
    """
    document = json.loads(data)
    found = {}
    for name, (taken, default) in READ.items():
        value = document.get(name, default)
        if value is ABSENT or (name in document and not taken(value)):
            raise ValueError(name)
        found[name] = value
    return found


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return documents_in(tmp_path_factory.mktemp("documents"))


def test_dstack_takes_every_document(documents: dict[str, bytes]) -> None:
    for name, data in documents.items():
        found = read(data)
        assert found == {field: json.loads(data)[field] for field in READ}, name
        assert (found["runner"], found["storage_fs"]) == ("docker-compose", "zfs"), name
        assert not any((found["public_logs"], found["public_sysinfo"], found["allowed_envs"])), name
        kms = found["key_provider"] == "kms"
        assert (found["kms_enabled"], bool(found["key_provider_id"])) == (kms, kms), name


def test_no_document_has_a_field_that_dstack_would_heed_besides(
    documents: dict[str, bytes],
) -> None:
    for name, data in documents.items():
        assert json.loads(data).keys() == READ.keys(), name
        assert not json.loads(data).keys() & OPENED, name


def test_the_compose_file_is_the_same_to_a_reader_of_yaml(documents: dict[str, bytes]) -> None:
    for name, data in documents.items():
        text = json.loads(data)["docker_compose_file"]
        assert yaml.safe_load(text) == json.loads(text), name


def test_dstack_measures_the_bytes_that_we_wrote(documents: dict[str, bytes]) -> None:
    """Its tools keep a file's bytes where they are given one; ours are canonical besides."""
    for name, data in documents.items():
        assert canonical_json(json.loads(data)) == data, name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("manifest_version", 3),
        ("manifest_version", "02"),
        ("key_provider", "KMS"),
        ("key_provider_id", "0"),
        ("allowed_envs", ["A", 1]),
        ("secure_time", "true"),
    ],
)
def test_the_reader_here_refuses_what_dstack_refuses(
    documents: dict[str, bytes], field: str, value: Any
) -> None:
    document = json.loads(next(iter(documents.values()))) | {field: value}
    with pytest.raises(ValueError, match=field):
        read(json.dumps(document).encode())

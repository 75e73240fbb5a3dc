"""Attacks on a document that a platform made of ours: what it added, and what is written then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from release_world import ReleaseWorld, release_world
from small_agent import Answer, agent, said
from typer.testing import CliRunner
from unread_recipe import UnreadRecipe

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.service.deployment import read_broker_document
from sealtrain.cli import app
from sealtrain.errors import RecipeChanged, SealtrainError
from sealtrain.owner.reviewing import machines
from sealtrain.recipe.adopted_document import EMPTY_SCRIPT, require_additions, script_digest
from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain_rehearsal.simulator.server import running

pytestmark = [pytest.mark.long, pytest.mark.claim("C440")]

FOLDER = Path(__file__).resolve().parents[2] / "vectors"
VECTORS = json.loads((FOLDER / "recipe" / "adopted.json").read_text())
CASES = {case["name"]: case for case in VECTORS["cases"]}
PLAIN = json.loads((FOLDER / "recipe" / "compose.json").read_text())["cases"]
LOGIN = "#!/bin/bash\necho login é\n"


def document(name: str) -> bytes:
    case = CASES[name]
    whole: str = case["compose"].replace("@@", VECTORS["locks"][case["lock"]]["runs"])
    return whole.encode()


def ours(lock: str = "plain") -> bytes:
    """The document that sealtrain writes: that of an adopted one without the platform's fields."""
    name = {"plain": "the script alone", "named": "script that the lock names"}[lock]
    value = json.loads(document(name))
    del value["pre_launch_script"]
    return canonical_json(value)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app-compose.json").write_bytes(ours())
    return tmp_path


def run(command: str, *words: str | Path) -> Any:
    typed = ["deploy", command, *map(str, words), "--deployment", "app-compose.json", "--json"]
    return CliRunner().invoke(app, typed)


def adopted(*words: str | Path) -> dict[str, Any]:
    done = run("adopt", *words)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def refusal(*words: str | Path) -> SealtrainError:
    done = run("adopt", *words, "--out", "refused.json")
    assert isinstance(done.exception, SealtrainError), done.output
    assert not Path("refused.json").exists()
    return done.exception


# --- What is written ----------------------------------------------------------------------------


def test_the_bytes_that_were_judged_are_written_and_named(here: Path) -> None:
    theirs = document("all that a platform may add")
    (here / "theirs.json").write_bytes(theirs)
    said = adopted("theirs.json")
    assert (here / "adopted.json").read_bytes() == theirs
    assert said["compose_hash"] == compose_hash(theirs) != compose_hash(ours())
    assert said["app_id"] == said["compose_hash"][:40]
    assert [pin["field"] for pin in said["added"]] == [
        *("name", "docker_config", "env_pubkey", "event_log_version", "features", "port_policy"),
        *("salt", "swap_size", "tproxy_enabled", "verity_volumes", "pre_launch_script"),
    ]
    assert LockedRecipe.parse(theirs).lock_bytes == LockedRecipe.parse(ours()).lock_bytes
    # Nothing that is there is overwritten, and what was adopted can be adopted again.
    again = run("adopt", "theirs.json").exception
    assert isinstance(again, SealtrainError)
    assert again.code == "already-exists"
    assert adopted("adopted.json", "--out", "again.json")["compose_hash"] == said["compose_hash"]


def test_a_document_that_came_back_unchanged_stays_what_it_was(here: Path) -> None:
    said = adopted("app-compose.json")
    assert (said["compose_hash"], said["added"]) == (compose_hash(ours()), [])


@contextmanager
def showing(path: Path, documents: list[bytes]) -> Iterator[list[str]]:
    """A guest agent that shows another document each time, and what it was asked."""
    asked: list[str] = []

    def answer(name: str, _body: dict[str, Any]) -> Answer:
        asked.append(name)
        shown = documents[min(asked.count("/Info"), len(documents)) - 1]
        told = {
            "app_id": "00" * 20,
            "instance_id": "",
            "app_name": "",
            "compose_hash": compose_hash(shown),
            "tcb_info": json.dumps({"app_compose": shown.decode()}),
        }
        return said(told) if name == "/Info" else (404, b"")

    with agent(path, answer):
        yield asked


def test_a_document_that_is_swapped_after_the_check_is_not_written(here: Path) -> None:
    good, evil = document("the script alone"), document("a trailing service")
    with showing(here / "agent.sock", [good, evil]) as asked:
        said = adopted("agent.sock")
    assert asked.count("/Info") == 1
    assert (here / "adopted.json").read_bytes() == good
    assert said["compose_hash"] == compose_hash(good)
    with showing(here / "other.sock", [evil, good]):
        assert refusal("other.sock").code == "lock-invalid"


def test_an_answer_to_info_is_read_in_each_form_and_its_hash_compared(here: Path) -> None:
    theirs = document("the script alone")
    inner = {"app_compose": theirs.decode()}
    for number, answer in enumerate(
        (inner, {"tcb_info": inner}, {"tcb_info": json.dumps(inner)}, {"app_id": "", **inner})
    ):
        stated = answer | {"compose_hash": compose_hash(theirs)}
        for at, told in enumerate((answer, stated)):
            (here / "info.json").write_text(json.dumps(told))
            adopted("info.json", "--out", f"{number}-{at}.json")
            assert (here / f"{number}-{at}.json").read_bytes() == theirs
        (here / "info.json").write_text(json.dumps(stated | {"compose_hash": "00" * 32}))
        assert refusal("info.json").code == "compose-hash-mismatch"


def test_the_simulated_agents_of_both_generations_are_read(here: Path) -> None:
    theirs = document("the script alone")
    (here / "theirs.json").write_bytes(theirs)
    with running(here / "guest.sock", here / "theirs.json", here / "state", clock=lambda: 1) as at:
        assert adopted(at)["compose_hash"] == compose_hash(theirs)


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [case["name"] for case in VECTORS["cases"] if case["outcome"] != "ok"]
)
def test_nothing_is_written_of_a_document_that_is_refused(here: Path, name: str) -> None:
    (here / "theirs.json").write_bytes(document(name))
    assert refusal("theirs.json").code == "lock-invalid"
    (here / "info.json").write_text(json.dumps({"app_compose": document(name).decode()}))
    assert refusal("info.json").code == "lock-invalid"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("script another", "pre_launch_script"),
        ("a trailing service", "docker_compose_file"),
        ("an environment variable allowed", "allowed_envs"),
        ("another key provider", "key_provider"),
        ("public logs", "public_logs"),
        ("an unknown field", "metadata"),
        ("init_script", "init_script"),
        ("another runner", None),
    ],
)
def test_the_refused_field_is_named(here: Path, name: str, field: str | None) -> None:
    (here / "theirs.json").write_bytes(document(name))
    assert refusal("theirs.json").field == field


def test_a_script_that_is_not_ours_needs_the_lock_and_the_callers_word(here: Path) -> None:
    digest = script_digest(LOGIN)
    theirs = document("script that the lock names")
    (here / "theirs.json").write_bytes(theirs)
    (here / "app-compose.json").write_bytes(ours("named"))
    for words in ((), ("--accept-script", "00" * 32)):
        refused = refusal("theirs.json", *words)
        assert (refused.field, refused.got) == ("pre_launch_script", digest)
    for typed in ("login", digest.upper(), digest[:-1], f"{digest}\n", "\u0660" * 64):
        assert refusal("theirs.json", "--accept-script", typed).code == "usage"
    said = adopted("theirs.json", "--accept-script", digest)
    assert said["added"][-1] == {
        "field": "pre_launch_script",
        "value": LOGIN,
        "changes": said["added"][-1]["changes"],
    }
    # The caller's word alone is not enough: brokers and auditors go by the lock.
    (here / "app-compose.json").write_bytes(ours())
    (here / "theirs.json").write_bytes(document("script another"))
    assert refusal("theirs.json", "--accept-script", digest).code == "lock-invalid"


def test_owners_read_the_digest_of_the_script_before_they_approve() -> None:
    digest = script_digest(LOGIN)
    assert digest in machines(LockedRecipe.parse(ours("named")).lock, ())
    assert digest not in machines(LockedRecipe.parse(ours()).lock, ())


def test_a_document_of_another_lock_is_refused(here: Path) -> None:
    """Whole and valid, with another lock in it than that of the caller's document."""
    (here / "theirs.json").write_bytes(document("the empty script, another named"))
    assert refusal("theirs.json").field == "docker_compose_file"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"null", b"7", b"{", b"\xff", b"[" * 100_000, b'{"app_compose":7}',
        b'{"tcb_info":7}', b'{"tcb_info":"7"}', b'{"tcb_info":"{"}', b'{"tcb_info":{}}',
        b'{"app_compose":"{}"}', b'{"app_compose":"","app_compose":""}', b'{"runner":"bash"}',
        b'{"app_compose":"\\ud800"}',
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused(here: Path, data: bytes) -> None:
    (here / "theirs.json").write_bytes(data)
    assert refusal("theirs.json").code == "lock-invalid"


def test_a_document_beyond_the_guests_limit_is_refused(here: Path) -> None:
    value = json.loads(document("the script alone")) | {"pre_launch_script": "#" * (256 << 10)}
    (here / "theirs.json").write_bytes(canonical_json(value))
    assert refusal("theirs.json").code == "lock-invalid"


# --- Other roles --------------------------------------------------------------------------------


FREE = {"name", "salt", "env_pubkey"}
"""Fields of texts that nothing in a guest reads."""


def test_no_byte_of_an_adopted_document_can_change_but_texts_that_nothing_reads() -> None:
    """Other bytes are refused, or are the whole document of another lock, or one of ``FREE``."""
    data = document("all that a platform may add")
    whole = json.loads(data)
    for at in range(0, len(data), max(1, len(data) // 200)):
        for changed in (
            data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
            data[:at] + data[at + 1 :],
            data[:at] + data[at : at + 1] + data[at:],
        ):
            if changed == data:
                continue
            try:
                lock = LockedRecipe.parse(changed).lock_bytes
            except LockInvalid:
                continue
            other = json.loads(changed)
            same = {name for name in whole if other.get(name) == whole[name]}
            assert lock != LockedRecipe.parse(data).lock_bytes or whole.keys() - same <= FREE


IN_A_SERVICE = {
    "environment": {"A": "1"}, "env_file": "a", "privileged": True, "cap_add": ["ALL"],
    "pid": "host", "network_mode": "host", "ipc": "host", "extra_hosts": ["a:1"],
    "dns": ["1.1.1.1"], "init": True, "post_start": [{"command": "sh"}], "pre_stop": [],
    "healthcheck": {"test": ["CMD", "sh"]}, "hostname": "a", "sysctls": {},
    "ulimits": {}, "configs": ["recipe.lock.json"], "secrets": [],
    "volumes_from": ["a"], "depends_on": ["a"], "extends": {"service": "a"}, "build": ".",
    "pull_policy": "always", "runtime": "a", "userns_mode": "host", "security_opt": [],
    "develop": {}, "profiles": ["a"], "scale": 2, "deploy": {"replicas": 2}, "x-a": 1, "tty": True,
    "gpus": "all",
    "logging": {"driver": "syslog"}, "provider": {"type": "a"}, "use_api_socket": True,
    "read_only": 1, "restart": "always", "command": ["sh"], "entrypoint": [],
}  # fmt: skip
"""What Docker Compose reads in a service, and values that ours never has."""
BESIDE_SERVICES = {
    "include": ["a"], "networks": {"default": {"external": True}}, "name": "a", "version": "3",
    "secrets": {"a": {"file": "/etc/passwd"}}, "models": {}, "x-a": {}, "volumes": {"a": {}},
}  # fmt: skip
BY_A_PLATFORM = {
    "init_script": "id", "metadata": {}, "snapshotter": "a", "requirements": {}, "env": {"A": "1"},
    "kms_url": "a", "kms_urls": ["a"], "gateway_urls": ["a"], "user_config": "a", "vm_config": "{}",
    "__proto__": {}, "constructor": {}, "post_launch_script": "id", "encrypted_env": "a",
    "ssh": True, "allowed_envs": ["A"], "gateway_enabled": True, "secure_time": False,
    "storage_fs": "ext4", "no_instance_id": True, "key_provider": "tpm", "swap_size": 1,
    "public_sysinfo": True, "event_log_version": 2, "verity_volumes": [{}],
    "docker_config": {"registry": "a"},
    "port_policy": {"ports": [80], "restrict_mode": True}, "features": ["kms", "tproxy-net"],
    "manifest_version": "2", "tproxy_enabled": 0, "salt": 0, "env_pubkey": None,
}  # fmt: skip


def lookalikes(name: str) -> Iterator[str]:
    """Other names that a person, or a lenient reader, takes for it."""
    yield from (name.upper(), name.title(), f"{name} ", f" {name}", f"{name}\u200b", f"{name}\0")
    yield name.replace("_", "-") if "_" in name else f"_{name}"
    yield name.replace("e", "\u0435") if "e" in name else f"{name}\u0301"


def test_nothing_hides_at_another_nesting_or_under_a_name_that_looks_alike() -> None:
    raw = document("all that a platform may add")
    whole = json.loads(raw)
    services = json.loads(whole["docker_compose_file"])
    ((name, service),) = services["services"].items()
    text: str = whole["docker_compose_file"]
    files = [
        *(
            {**services, "services": {name: {**service, field: value}}}
            for field, value in IN_A_SERVICE.items()
        ),
        *({**services, field: value} for field, value in BESIDE_SERVICES.items()),
        *({**services, field: IN_A_SERVICE[field]} for field in ("environment", "command", "gpus")),
    ]
    texts = [
        *(canonical_json(file).decode() for file in files),
        *(text + tail for tail in ("\n", " ", "\n---\n{}", "\0")),
        *(head + text for head in ("\ufeff", " ", "# \n")),
        json.dumps(services, indent=1),
        json.dumps(dict(reversed(services.items())), separators=(",", ":")),
        text.replace('"services":', '"services":{},"services":', 1),
        text.replace('"image":', '"image":"evil","image":', 1),
        text.replace('"read_only":true', '"read_only":false,"read_only":true', 1),
    ]
    changed = [{**whole, "docker_compose_file": other} for other in texts]
    changed += [{**whole, field: value} for field, value in BY_A_PLATFORM.items()]
    changed += [
        {**whole, other: value} for field, value in whole.items() for other in lookalikes(field)
    ]
    expected = json.loads(ours())
    require_additions(raw, whole, expected, ())
    assert len(changed) > 250
    for document_ in changed:
        data = canonical_json(document_)
        assert data != raw
        with pytest.raises(LockInvalid):
            require_additions(data, document_, expected, ())
    for old, new in (
        ('"runner":', '"runner":"bash","runner":'),
        ('"allowed_envs":[]', '"allowed_envs":["A"],"allowed_envs":[]'),
        ('"pre_launch_script":', '"pre_launch_script":"id","pre_launch_script":'),
        ('"manifest_version":2', '"manifest_version":2.0'),
        ('"runner"', '"runne\\u0072"'),
        ('"swap_size":0', '"swap_size":-0'),
    ):
        assert old.encode() in raw
        with pytest.raises(LockInvalid):
            LockedRecipe.parse(raw.replace(old.encode(), new.encode(), 1))


def adopted_by(locked: LockedRecipe, script: str, **more: Any) -> UnreadRecipe:
    """The recipe under the document that a platform made of its own."""
    value = json.loads(locked.compose_bytes) | {"name": "", "pre_launch_script": script, **more}
    return UnreadRecipe(lock=locked.lock, compose_bytes=canonical_json(value))


def agreed(world: ReleaseWorld, locked: UnreadRecipe) -> None:
    """Owners seal for this document, register and approve it, whatever it is."""
    world.locked = cast("LockedRecipe", locked)
    for owner in ("hospital-a", "hospital-b", "hospital-c"):
        world.sealed[owner] = world.seal(owner)
        world.register(world.sealed[owner])
        world.approve(owner)


def test_a_broker_releases_keys_to_an_adopted_document_and_to_no_other_script(
    tmp_path: Path,
) -> None:
    image = f"registry.example/sealtrain@sha256:{'5a' * 32}"
    with release_world(tmp_path) as world:
        plain = world.lock(lambda recipe: recipe["hardware"].update(image=image))
        named = world.lock(
            lambda recipe: recipe["hardware"].update(
                image=image, launch_script=script_digest(LOGIN)
            )
        )
        for locked in (adopted_by(plain, EMPTY_SCRIPT), adopted_by(named, LOGIN)):
            agreed(world, locked)
            assert locked.compose_hash != plain.compose_hash
            assert world.obtain().keys
        # Owners who approved such a document without reading it get no key released either.
        for locked in (
            adopted_by(plain, LOGIN),
            adopted_by(plain, EMPTY_SCRIPT, init_script="id"),
            adopted_by(plain, EMPTY_SCRIPT, public_logs=True),
        ):
            agreed(world, locked)
            with pytest.raises(RecipeChanged):
                world.obtain()
        world.assert_no_key_left()


def test_a_brokers_document_is_adopted_with_the_empty_script_alone(here: Path) -> None:
    found = json.loads((FOLDER / "deployment" / "brokers.json").read_text())["cases"]
    case = next(item for item in found if '"runner":"docker-compose"' in item.get("document", ""))
    plain = json.loads(case["document"])
    (here / "app-compose.json").write_text(case["document"])
    theirs = canonical_json(plain | {"pre_launch_script": EMPTY_SCRIPT, "name": ""})
    (here / "theirs.json").write_bytes(theirs)
    assert adopted("theirs.json")["compose_hash"] == compose_hash(theirs)
    assert read_broker_document(theirs).to_bytes() == case["document"].encode()
    with pytest.raises(LockInvalid):
        read_broker_document(canonical_json(plain | {"pre_launch_script": LOGIN}))


def test_the_executor_starts_no_adopted_document(here: Path) -> None:
    (here / "adopted.json").write_bytes(document("the script alone"))
    words = ["--deployment", "adopted.json", "--folder", "guest", "--simulator", "root"]
    done = CliRunner().invoke(app, ["deploy", "run", *words])
    assert isinstance(done.exception, SealtrainError)
    assert done.exception.code == "usage"
    assert not (here / "guest").exists()


def test_parts_are_the_compose_file_of_the_document_and_the_script_that_does_nothing(
    here: Path,
) -> None:
    done = run("parts", "--out", "parts")
    assert done.exit_code == 0, done.output
    text = (here / "parts" / "docker-compose.yaml").read_bytes().decode()
    script = (here / "parts" / "pre-launch.sh").read_bytes().decode()
    assert text == json.loads(ours())["docker_compose_file"]
    built = json.loads(ours()) | {"docker_compose_file": text, "pre_launch_script": script}
    (here / "theirs.json").write_bytes(canonical_json(built))
    assert adopted("theirs.json")["added"][-1]["value"] == EMPTY_SCRIPT
    assert json.loads(done.stdout)["script_sha256"] == script_digest(script)
    bash = next(case["compose"] for case in PLAIN if '"runner":"bash"' in case["compose"])
    (here / "app-compose.json").write_text(bash)
    done = run("parts", "--out", "other")
    assert isinstance(done.exception, SealtrainError)
    assert done.exception.code == "usage"
    assert not (here / "other").exists()

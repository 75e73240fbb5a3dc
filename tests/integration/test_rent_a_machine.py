"""What the guide to rented machines says, as far as it runs without a cloud.

dstack's tool is played from a published checkout (``SEALTRAIN_PUBLIC``), up to where it would ask a
cloud. Phala Cloud's document is made by the rules of its command line's source
(``buildProvisionPayload`` in ``cli/src/commands/deploy/handler.ts`` of Phala-Network/phala-cloud,
commit 0300d645); which fields its server adds is not public.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from public_evidence import published
from typer.testing import CliRunner

from sealtrain.base.canonical import canonical_json
from sealtrain.cli import app
from sealtrain.errors import SealtrainError
from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.lock import LockedRecipe

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs/guides/rent_a_machine.md").read_text("utf-8")
CASES = json.loads((REPOSITORY / "vectors/recipe/compose.json").read_text("utf-8"))["cases"]
DOCUMENT = next(case["compose"] for case in CASES if case["name"] == "dstack, KMS").encode()
PARSER = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

loader = SourceFileLoader("tool", sys.argv[1])
tool = module_from_spec(spec_from_loader("tool", loader))
sys.modules["tool"] = tool
loader.exec_module(tool)


class Manager:
    def __init__(self, folder):
        pass

    def __getattr__(self, name):
        return lambda *words, **options: print(name)


tool.CloudDeploymentManager = Manager
sys.argv = sys.argv[1:]
tool.main()
"""


def section(title: str) -> str:
    """The page's text below a heading."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def lines_of(text: str) -> list[str]:
    """What its shell blocks have a reader type."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [line.removeprefix("$ ").split(" #", 1)[0].strip() for line in joined.splitlines()]


def calls(program: str, text: str = PAGE) -> list[list[str]]:
    return [words[1:] for line in lines_of(text) if (words := shlex.split(line))[:1] == [program]]


# --- dstack's tool -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tool") / "dstack-cloud"
    path.write_bytes(published("dstack's tool for Google and AWS"))
    return path


def test_the_tool_takes_every_word_of_the_page(tool: Path) -> None:
    mentioned = re.findall(r"`dstack-cloud (-C [^`]+)`", PAGE)
    asked = [*calls("dstack-cloud"), *map(shlex.split, mentioned)]
    for words in asked:
        done = subprocess.run(
            [sys.executable, "-c", PARSER, str(tool), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
    methods = {words[2] if words[0] == "-C" else words[0] for words in asked}
    assert methods == {"config-edit", "new", "pull", "prepare", "deploy", "logs", "remove"}


@pytest.mark.parametrize("title", ["Google, Intel TDX", "AWS, NitroTPM"])
def test_the_shared_disk_has_our_bytes_after_the_pages_own_lines(
    tool: Path, tmp_path: Path, title: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dstack-cloud").write_text(
        f'#!/bin/sh\nexec {sys.executable} {tool} "$@"\n', "utf-8"
    )
    (tmp_path / "bin" / "dstack-cloud").chmod(0o755)
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "app-compose.json").write_bytes(DOCUMENT)
    (tmp_path / "ticket.json").write_text('{"version":1}')
    typed = [
        line.replace("APP_ID", compose_hash(DOCUMENT)[:40])
        for line in lines_of(section(title))
        if line.startswith(
            ("cp ", "sed ", "cmp ", "dstack-cloud new ", "dstack-cloud -C guest pre")
        )
    ]
    assert [line.split()[0] for line in typed] == [
        *("dstack-cloud", "cp", "cp", "sed", "dstack-cloud", "cmp"),
    ]  # fmt: skip
    done = subprocess.run(
        ["bash", "-euc", "\n".join(typed)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shared = tmp_path / "guest" / "shared"
    assert (shared / "app-compose.json").read_bytes() == DOCUMENT
    told = json.loads((shared / ".instance_info").read_text())
    assert told["app_id"] == compose_hash(DOCUMENT)[:40]
    assert (tmp_path / "guest" / ".user-config").read_bytes() == b'{"version":1}'


# --- Phala Cloud ---------------------------------------------------------------------------------

FLAGS = ("--no-public-logs", "--no-public-sysinfo", "--secure-time", "--skip-gateway")
NEEDED = (*FLAGS, "--fs", "--experimental-key-provider-type", "--pre-launch-script")


def phala_words() -> list[str]:
    (words,) = (words for words in calls("phala") if words[0] == "deploy")
    return words


def option(words: Sequence[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def platform_document(words: Sequence[str], here: Path) -> bytes:
    """What ``phala deploy`` asks its server for, as keys in order without spaces, and metadata."""
    compose, script = option(words, "--compose"), option(words, "--pre-launch-script")
    assert compose is not None
    document: dict[str, Any] = {
        "name": "",
        "docker_compose_file": (here / compose).read_text("utf-8"),
        "allowed_envs": [],
        "public_logs": "--no-public-logs" not in words,
        "public_sysinfo": "--no-public-sysinfo" not in words,
        "public_tcbinfo": "--no-public-tcbinfo" not in words,
        "secure_time": "--secure-time" in words,
        # The script that the platform adds by itself is long; any other text stands for it here.
        "pre_launch_script": (here / script).read_text("utf-8") if script else "#!/bin/bash\n",
        "manifest_version": 2,
        "runner": "docker-compose",
        "features": ["kms"],
        "salt": None,
        "env_pubkey": "",
        "port_policy": {"ports": [], "restrict_mode": False},
        "kms_enabled": True,
        "gateway_enabled": "--skip-gateway" not in words,
        "tproxy_enabled": "--skip-gateway" not in words,
        "local_key_provider_enabled": False,
        "no_instance_id": False,
        "storage_fs": option(words, "--fs") or "ext4",
    }
    if provider := option(words, "--experimental-key-provider-type"):
        document |= {"key_provider": provider, "key_provider_id": "3059"}
    return canonical_json(document)


def play(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page's reader, after ``deploy parts`` as the page has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "app-compose.json").write_bytes(DOCUMENT)
    (parts, _) = (
        words
        for words in calls("sealtrain")
        if words[0] == "deploy" and "locked/app" in " ".join(words)
    )
    assert play(*parts).exit_code == 0
    return tmp_path


def adopt(here: Path, document: bytes) -> Any:
    stated = {"is_online": True, "tcb_info": {"app_compose": document.decode(), "event_log": []}}
    (here / "info.json").write_text(json.dumps(stated))
    (words,) = (words for words in calls("sealtrain") if words[:2] == ["deploy", "adopt"])
    return play(*words)


@pytest.mark.claim("C440")
def test_the_document_that_the_pages_words_give_is_adopted(here: Path) -> None:
    document = platform_document(phala_words(), here)
    done = adopt(here, document)
    assert done.exit_code == 0, done.output
    assert (here / "adopted.json").read_bytes() == document
    assert compose_hash(document) in done.output
    assert LockedRecipe.parse(document).lock_bytes == LockedRecipe.parse(DOCUMENT).lock_bytes


@pytest.mark.claim("C440")
@pytest.mark.parametrize("left_out", NEEDED)
def test_each_option_of_the_page_is_needed(here: Path, left_out: str) -> None:
    words = phala_words()
    at = words.index(left_out)
    del words[at : at + (1 if left_out in FLAGS else 2)]
    done = adopt(here, platform_document(words, here))
    assert isinstance(done.exception, SealtrainError)
    assert done.exception.code == "lock-invalid"
    assert not (here / "adopted.json").exists()

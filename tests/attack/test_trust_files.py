"""Files that decide whom to trust: each says one thing to every reader and is cheap to read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from world import simulated_policy

from sealtrain.attest.policy import load_policy
from sealtrain.base.encoding import to_base64
from sealtrain.base.yamltext import yaml_text
from sealtrain.client.pin import BrokerPin, load_pin
from sealtrain.consortium.chainfile import load_chain_file
from sealtrain.errors import TrustInvalid
from sealtrain.manifest.trust import load_trust
from sealtrain.recipe.schema import load_recipe

pytestmark = pytest.mark.claim("C98")

READERS: dict[str, Callable[[Path], object]] = {
    "broker file": load_pin,
    "appraisal policy": load_policy,
    "trust file": load_trust,
    "chain file": load_chain_file,
    "recipe": load_recipe,
}
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(8)
)


def pin() -> BrokerPin:
    return BrokerPin(
        url="https://broker.example",
        signing_key=to_base64(bytes(32)),
        compose_hash="aa" * 32,
        appraisal=simulated_policy(),
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text)
    return path


def test_a_second_spelling_of_a_field_does_not_replace_the_first(tmp_path: Path) -> None:
    text = pin().to_yaml()
    assert load_pin(written(tmp_path, text)) == pin()
    for more in (f"compose_hash: {'bb' * 32}\n", "url: http://mallory\n"):
        with pytest.raises(TrustInvalid):
            load_pin(written(tmp_path, text + more))
    policy = yaml_text(pin().appraisal.to_dict())
    assert load_policy(written(tmp_path, policy)) == pin().appraisal
    with pytest.raises(TrustInvalid):
        load_policy(written(tmp_path, policy + "version: 2\n"))


@pytest.mark.parametrize("document", sorted(READERS))
@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a {b: 1}\nc: *a\n",
        "a: !!python/object/apply:os.getcwd []\n",
        "a: {<<: {b: 1}}\n",
        "a: 1\n---\na: 2\n",
        "a: 1\na: 2\n",
        "[" * 5000,
        "a: [" + "1," * 60_000 + "]\n",
    ],
    ids=["bomb", "alias", "tag", "merge", "two documents", "twice", "deep", "many"],
)
def test_what_would_expand_or_say_two_things_is_refused(
    tmp_path: Path, document: str, text: str
) -> None:
    from sealtrain.errors import ConfigError

    with pytest.raises(ConfigError):
        READERS[document](written(tmp_path, text))


def test_a_bomb_costs_its_reader_no_memory(tmp_path: Path) -> None:
    program = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from sealtrain.errors import TrustInvalid\nfrom sealtrain.client.pin import load_pin\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    load_pin(Path(sys.argv[1]))\nexcept TrustInvalid:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(written(tmp_path, BOMB))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) < 32 << 10  # KiB

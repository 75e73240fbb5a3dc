"""One-time pads against vectors of an independent generator (tools/vectorgen/one_time_pads.py)."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from channel_world import talking
from collecting import COLLECTING

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.base.secret import Secret
from sealtrain.errors import SealtrainError, error_by_code
from sealtrain.keys.derive import derive
from sealtrain_together.channel.answers import receive_answer
from sealtrain_together.channel.channel import AttestedChannel

if not COLLECTING:
    import torch

    from sealtrain_together.pads.dealer import Session
    from sealtrain_together.pads.exact_products import ExactProduct, Float64, Int8Limb
    from sealtrain_together.pads.field import add_centred, limbs, subtract_centred, times_vectors
    from sealtrain_together.pads.freivalds import Freivalds
    from sealtrain_together.pads.masks import Masks, MaskStream, accept_words
    from sealtrain_together.pads.matrix import DIRECTIONS, PublicMatrix
    from sealtrain_together.pads.multiplying import Device, Matrices
    from sealtrain_together.pads.pads import InGuest, PadSupply
    from sealtrain_together.pads.pool import Pool

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "vectors" / "one-time-pads"
if not COLLECTING:
    BACKENDS: dict[str, ExactProduct] = {item.name: item for item in (Float64(), Int8Limb())}


def vectors(name: str, topic: str | None = None) -> list[dict[str, Any]]:
    cases: Any = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    found: list[dict[str, Any]] = cases if topic is None else cases[topic]
    assert found
    return found


def int32(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def public(rows: list[list[int]]) -> PublicMatrix:
    return PublicMatrix(torch.tensor(rows, dtype=torch.int8))


def comment(vector: dict[str, Any]) -> str:
    return str(vector["name"])


@pytest.mark.parametrize("exact", ["float64", "int8-limb"])
@pytest.mark.parametrize("vector", vectors("field"), ids=comment)
def test_a_product_in_the_field_is_the_vectors(exact: str, vector: dict[str, Any]) -> None:
    matrix = torch.tensor(vector["matrix"], dtype=torch.int8)
    assert BACKENDS[exact].product(int32(vector["elements"]), matrix).tolist() == vector["product"]


@pytest.mark.parametrize("vector", vectors("matrices"), ids=comment)
def test_a_layers_matrix_is_the_vectors(vector: dict[str, Any]) -> None:
    weight, values = vector["weight"], vector["values"]
    if isinstance(weight[0], float):  # one number, many times
        weight, values = ([row * vector["inputs"]] for row in (weight, values))
    matrix, scale = PublicMatrix.stack([torch.tensor(weight)])
    assert matrix.values.tolist() == values
    assert scale.tolist() == vector["scales"]
    assert matrix.digest.hex() == vector["digest"]
    assert {way: matrix.largest(way) for way in DIRECTIONS} == vector["largest"]


@pytest.mark.parametrize("vector", vectors("pads", "streams"), ids=lambda vector: vector["purpose"])
def test_a_stream_is_the_vectors_however_it_is_read(vector: dict[str, Any]) -> None:
    matrix, direction = public(vector["matrix"]), vector["direction"]
    secret = Secret(bytes.fromhex(vector["secret"]))
    key = derive(secret, vector["purpose"], matrix.digest.hex(), direction)
    assert key.reveal().hex() == vector["key"]
    assert MaskStream(key, vector["width"]).rows(4).tolist() == vector["rows"]
    masks = Masks(secret, vector["purpose"])
    pieces = [masks.rows(matrix, direction, count) for count in (1, 2, 1)]
    assert [first for first, _ in pieces] == [0, 1, 3]
    assert torch.cat([rows for _, rows in pieces]).tolist() == vector["rows"]


def test_the_one_word_that_is_no_element_is_skipped() -> None:
    (vector,) = vectors("pads", "words")
    elements = accept_words(bytearray.fromhex(vector["data"]))
    zero = torch.zeros_like(elements)
    assert subtract_centred(elements, zero).tolist() == vector["elements"]


def test_a_stream_fills_up_what_was_skipped() -> None:
    (vector,) = vectors("pads", "words")
    rest = bytearray.fromhex(vector["data"])

    def cipher(size: int) -> bytearray:
        taken = rest[:size]
        del rest[:size]
        return taken

    width = len(vector["elements"])
    stream = MaskStream(Secret(bytes(32)), width, keystream=lambda _key: cipher)
    assert stream.rows(1).tolist() == [vector["elements"]]
    assert not rest


if not COLLECTING:

    class Begun(InGuest):
        """A beginning with the secret of a vector."""

        def __init__(self, exact: ExactProduct, secret: Secret) -> None:
            super().__init__(exact)
            self._secret = secret

        def begin(self) -> Secret:
            return self._secret


@pytest.mark.parametrize("exact", ["float64", "int8-limb"])
@pytest.mark.parametrize("vector", vectors("products"), ids=comment)
def test_every_number_of_a_product_is_the_vectors(exact: str, vector: dict[str, Any]) -> None:
    matrix, direction = public(vector["matrix"]), vector["direction"]
    entries = int32(vector["entries"])
    pads = PadSupply(Begun(BACKENDS[exact], Secret(bytes.fromhex(vector["pad_secret"]))))
    assert pads.session == vector["session"]
    pad = pads.take(matrix, direction, len(entries))
    assert pad.mask.tolist() == vector["mask"]
    assert pad.product().tolist() == vector["mask_product"]
    hidden = add_centred(entries, pad.mask)
    assert hidden.tolist() == vector["hidden"]
    answer = BACKENDS[exact].product(hidden, matrix.factor(direction))
    assert answer.tolist() == vector["answer"]
    result = subtract_centred(answer, pad.product())
    assert result.tolist() == vector["result"]
    drawn = int32(vector["check_vectors"])
    images = times_vectors(matrix.factor(direction), limbs(drawn))
    assert images.tolist() == vector["check_images"]
    checks = Freivalds(Secret(bytes.fromhex(vector["check_secret"])), vectors=drawn.shape[1])
    digits, kept = checks.secret_vectors(matrix, direction)
    assert torch.equal(digits, limbs(drawn))
    assert kept.tolist() == vector["check_images"]
    assert checks.check(matrix, direction, entries, result) is result


@pytest.mark.parametrize("vector", vectors("dealing"), ids=comment)
def test_a_dealer_answers_the_vectors(vector: dict[str, Any]) -> None:
    secret = Secret(bytes.fromhex(vector["secret"]))
    failed: list[SealtrainError] = []

    def serve(channel: AttestedChannel) -> None:
        device = Device("cpu", "float64")
        with Matrices(ByteBudget(1 << 30), "cpu") as matrices:
            try:
                Session(secret, matrices, device).attend(channel)
            except SealtrainError as error:
                failed.append(error)

    with talking() as (guest, dealer):
        thread = threading.Thread(target=serve, args=(dealer,))
        thread.start()
        for message in vector["messages"]:
            guest.send(
                message["message"].encode()
                if "message" in message
                else bytes.fromhex(message["bytes"])
            )
            if "outcome" in message:
                with pytest.raises(error_by_code(message["outcome"])) as refused:
                    receive_answer(guest, max_bytes=1 << 14, max_data_bytes=1 << 10)
                assert refused.value.code == message["outcome"]
                thread.join(10)
                assert [error.code for error in failed] == [
                    message["outcome"]
                ]  # nothing comes after it
                return
            ok, payload = receive_answer(guest, max_bytes=1 << 14, max_data_bytes=1 << 10)
            assert (ok, payload.hex()) == (message["ok"], message["payload"])
        guest.close()
        thread.join(10)
    assert failed == []


@pytest.mark.parametrize("vector", vectors("pool"), ids=comment)
def test_a_pool_gives_its_products_or_is_refused(vector: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "pool"
    path.write_bytes(base64.b64decode(vector["file"]))
    matrix, secret = public(vector["matrix"]), Secret(bytes.fromhex(vector["secret"]))

    def read() -> dict[str, list[list[int]]]:
        pool = Pool(path, secret)
        try:
            pool.admit(matrix)
            found = {}
            for direction in DIRECTIONS:
                rows = len(vector["products"][direction])
                got = pool.product(matrix, direction, vector["first"], rows)
                found[direction] = got.tolist()
            return found
        finally:
            pool.close()

    if vector["outcome"] == "ok":
        assert read() == vector["products"]
        return
    with pytest.raises(SealtrainError) as refused:
        read()
    assert type(refused.value) is error_by_code(vector["outcome"])


def test_the_generator_gives_the_published_files(tmp_path: Path) -> None:
    script = REPOSITORY / "tools" / "vectorgen" / "one_time_pads.py"
    assert "import sealtrain" not in script.read_text("utf-8")
    assert "from sealtrain" not in script.read_text("utf-8")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in FOLDER.iterdir()}

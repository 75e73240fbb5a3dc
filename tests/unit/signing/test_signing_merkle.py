"""Merkle trees: published cases, the RFC's definitions, and every proof of small trees."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.signing import merkle
from sealtrain.signing.errors import ProofInvalid

LEAVES = [merkle.leaf_hash(bytes([number])) for number in range(40)]


def published(shared: Path, kind: str) -> list[tuple[str, dict[str, Any]]]:
    folder = shared / "vectors" / "merkle" / "testdata" / kind
    return [
        (str(path.relative_to(folder)), json.loads(path.read_text()))
        for path in sorted(folder.rglob("*.json"))
    ]


def raw(texts: list[str] | None) -> list[bytes]:
    return [base64.b64decode(text) for text in texts or []]


def accepts_inclusion(case: dict[str, Any]) -> bool:
    leaf, root = base64.b64decode(case["leafHash"]), base64.b64decode(case["root"])
    try:
        got = merkle.verify_inclusion(
            leaf, case["leafIdx"], case["treeSize"], raw(case["proof"]), root
        )
    except ProofInvalid:
        return False
    return got == root


def accepts_consistency(case: dict[str, Any]) -> bool:
    first, second = base64.b64decode(case["root1"]), base64.b64decode(case["root2"])
    try:
        got = merkle.verify_consistency(
            case["size1"], case["size2"], raw(case["proof"]), first, second
        )
    except ProofInvalid:
        return False
    return got == second


def test_every_published_inclusion_case_ends_as_it_must(shared: Path) -> None:
    cases = published(shared, "inclusion")
    wrong = [name for name, case in cases if accepts_inclusion(case) == case["wantErr"]]
    assert (len(cases), wrong) == (98, [])
    assert sum(not case["wantErr"] for _, case in cases) >= 5


def test_every_published_consistency_case_ends_as_it_must(shared: Path) -> None:
    cases = published(shared, "consistency")
    wrong = [name for name, case in cases if accepts_consistency(case) == case["wantErr"]]
    assert (len(cases), wrong) == (98, [])
    assert sum(not case["wantErr"] for _, case in cases) >= 5


def test_a_consistency_proof_from_the_empty_tree_is_refused() -> None:
    for path in ([], [merkle.EMPTY_ROOT]):
        with pytest.raises(ProofInvalid):
            merkle.verify_consistency(0, 1, path, merkle.EMPTY_ROOT, LEAVES[0])
    with pytest.raises(ProofInvalid):
        merkle.verify_consistency(0, 0, [], merkle.EMPTY_ROOT, merkle.EMPTY_ROOT)


def test_hashes_are_prefixed_so_that_no_node_passes_for_a_leaf() -> None:
    assert merkle.leaf_hash(b"x") == hashlib.sha256(b"\x00x").digest()
    left, right = LEAVES[:2]
    assert merkle.node_hash(left, right) == hashlib.sha256(b"\x01" + left + right).digest()
    assert merkle.leaf_hash(left + right) != merkle.node_hash(left, right)
    assert merkle.EMPTY_ROOT == hashlib.sha256(b"").digest() == merkle.root_of([])


def test_every_proof_of_small_trees_verifies_and_no_neighbour_of_it_does() -> None:
    roots = [merkle.root_of(LEAVES[:size]) for size in range(len(LEAVES))]
    for size in range(1, len(LEAVES)):
        for index in range(size):
            path = merkle.inclusion_proof(LEAVES[:size], index)
            merkle.verify_inclusion(LEAVES[index], index, size, path, roots[size])
            refused = [
                (LEAVES[index], index, size, [*path, LEAVES[0]], roots[size]),
                (LEAVES[(index + 1) % 40], index, size, path, roots[size]),
                (LEAVES[index], index, size, path, roots[size - 1]),
                (LEAVES[index], size, size, path, roots[size]),
                (LEAVES[index], -1, size, path, roots[size]),
            ]
            if path:
                refused.append((LEAVES[index], index, size, path[:-1], roots[size]))
                flipped = bytes([path[0][0] ^ 1]) + path[0][1:]
                refused.append((LEAVES[index], index, size, [flipped, *path[1:]], roots[size]))
            for arguments in refused:
                with pytest.raises(ProofInvalid):
                    merkle.verify_inclusion(*arguments)


def test_an_index_moved_within_its_tree_is_refused() -> None:
    for size in range(2, 20):
        root = merkle.root_of(LEAVES[:size])
        for index in range(size):
            path = merkle.inclusion_proof(LEAVES[:size], index)
            for other in set(range(size)) - {index}:
                with pytest.raises(ProofInvalid):
                    merkle.verify_inclusion(LEAVES[index], other, size, path, root)


def test_every_consistency_proof_of_small_trees_verifies_and_no_neighbour_of_it_does() -> None:
    roots = [merkle.root_of(LEAVES[:size]) for size in range(len(LEAVES))]
    for second in range(1, len(LEAVES)):
        for first in range(1, second + 1):
            path = merkle.consistency_proof(LEAVES[:second], first)
            merkle.verify_consistency(first, second, path, roots[first], roots[second])
            refused = [
                (first, second, [*path, LEAVES[0]], roots[first], roots[second]),
                (first, second, path, roots[first - 1], roots[second]),
                (first, second, path, roots[first], roots[second - 1]),
                (second + 1, second, path, roots[first], roots[second]),
            ]
            if path:
                refused.append((first, second, path[:-1], roots[first], roots[second]))
                flipped = bytes([path[-1][0] ^ 1]) + path[-1][1:]
                refused.append((first, second, [*path[:-1], flipped], roots[first], roots[second]))
            for arguments in refused:
                with pytest.raises(ProofInvalid):
                    merkle.verify_consistency(*arguments)


def test_a_hash_of_another_length_is_refused() -> None:
    path = merkle.inclusion_proof(LEAVES[:4], 1)
    for broken in ([path[0][:-1], path[1]], [path[0] + path[1]]):
        with pytest.raises(ProofInvalid):
            merkle.verify_inclusion(LEAVES[1], 1, 4, broken, merkle.root_of(LEAVES[:4]))
    with pytest.raises(ProofInvalid):
        merkle.verify_inclusion(b"", 0, 1, [], b"")


def test_proofs_that_cannot_be_made_are_refused() -> None:
    for index in (-1, 4):
        with pytest.raises(ProofInvalid):
            merkle.inclusion_proof(LEAVES[:4], index)
    for first in (0, 5):
        with pytest.raises(ProofInvalid):
            merkle.consistency_proof(LEAVES[:4], first)


def test_entries_in_the_place_of_leaf_hashes_are_noticed() -> None:
    with pytest.raises(ValueError, match="leaf_hash"):
        merkle.root_of([b"entry"])

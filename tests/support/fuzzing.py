"""What a fuzzer of evidence draws: spoilt bytes, any JSON, any value anywhere in a document."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def mutated(draw: st.DrawFn, data: bytes, *, keep_length: bool = False) -> bytes:
    """``data`` with up to three replaced, removed or inserted spans, its length kept or not."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, max(0, len(out) - 1)))
        new = draw(st.binary(max_size=40))
        length = len(new) if keep_length else draw(st.integers(0, 40))
        out[start : start + length] = new
    return bytes(out[: len(data)] if keep_length else out)


def put_somewhere(document: Any, path: int, value: Any) -> tuple[Any, Any]:
    """Put ``value`` at one of all places in ``document``; its key there, and what it replaced."""
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        node = pending.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                pending.append(node[key])
    node, key = places[path % len(places)]
    before = node[key]
    node[key] = value
    return key, before

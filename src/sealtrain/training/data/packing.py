"""Records as one long run of tokens, cut into blocks of equal length without padding.

Records come in the stream's shuffled order, one after the other; a record that does not fit into a
block goes on in the next. Nothing is dropped and nothing is held back over a resume: the place of a
run is a row and a token of it. A digest over all blocks handed out so far travels with the place::

    d_0 = SHA-256("sealtrain/tokens/v1")
    d_n = SHA-256(d_(n-1) ‖ the tokens of block n as u32 little-endian)
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.hugging import Positioned
from sealtrain.training.data.stream import RecordStream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    Tokens = npt.NDArray[np.integer[Any]]

import torch.utils.data

_START: Final = hashlib.sha256(b"sealtrain/tokens/v1").hexdigest()
Encoder = Callable[["pa.Array"], "Iterator[Tokens]"]
"""The tokens of each value of a column, int64."""
Together = Callable[
    [Positioned, Callable[["pa.RecordBatch"], "Iterator[Tokens]"]], "Iterator[Tokens]"
]
"""From a stream at its position, and the tokens of each row of a record batch, to all tokens."""


class PackedStream(Positioned, torch.utils.data.IterableDataset[dict[str, Any]]):
    """A stream whose rows are blocks of tokens, as a trainer takes it.

    Attributes:
        offset: Tokens of the row at ``position`` that were handed out already.
        digest: Over all blocks handed out, 64 hex digits.
    """

    def __init__(
        self,
        stream: RecordStream,
        column: str,
        encode: Encoder,
        block_size: int,
        *,
        digest: bool,
        together: Together | None = None,
    ) -> None:
        """Lay out; nothing is read yet.

        Args:
            stream: Shuffled records.
            column: Column of the stream that holds text or tokens.
            encode: Turns that column into tokens.
            block_size: Tokens of a block.
            digest: Take the digest.
            together: Has several ranks turn the records into tokens together; ``None`` where this
                process does so by itself.
        """
        super().__init__(stream)
        self.offset = 0
        self.digest = _START
        self._column, self._encode, self._size = column, encode, block_size
        self._digests, self._together = digest, together

    def mark(self) -> dict[str, Any]:
        """As ``Positioned.mark``: also the token of the row, and the digest."""
        found: dict[str, Any] = {"row": self.position, "token": self.offset}
        return found | {"tokens_sha256": self.digest} if self._digests else found

    def seek(self, mark: Mapping[str, Any]) -> None:
        """As ``Positioned.seek``."""
        super().seek(mark)
        self.offset = int(mark["token"])
        self.digest = mark.get("tokens_sha256", self.digest)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Blocks from the stream's place on."""
        return self.rows()

    def rows(self, start: int | None = None) -> Iterator[dict[str, Any]]:
        """Blocks from the place on: ``{"input_ids": int64 (block_size,)}``.

        Raises:
            DataInvalid: No record holds a token.
            RecordInvalid: A record cannot be turned into tokens.
        """
        import numpy as np

        self.position = self.start if start is None else start
        held: deque[Tokens] = deque()
        available = -self.offset
        for tokens in self._documents():
            held.append(tokens[self.offset :] if not held and available < 0 else tokens)
            available += len(tokens)
            while available >= self._size:
                block = np.empty(self._size, dtype=np.int64)
                filled = 0
                while filled < self._size:
                    head = held[0]
                    part = head[: self._size - filled]
                    block[filled : filled + len(part)] = part
                    filled += len(part)
                    if len(part) == len(head):
                        held.popleft()
                        self.position, self.offset = self.position + 1, 0
                    else:
                        held[0] = head[len(part) :]
                        self.offset += len(part)
                available -= self._size
                self._take(block)
                yield {"input_ids": block}

    def _documents(self) -> Iterator[Tokens]:
        empty, full_turn = 0, self.stream.order.full_turn()
        for tokens in self._records():
            empty = 0 if len(tokens) else empty + 1
            if empty > full_turn:
                raise DataInvalid("training data holds no token", hint="the records are empty")
            yield tokens

    def _records(self) -> Iterator[Tokens]:
        """The tokens of each record, from the place on."""
        if self._together is not None and self.stop is None:
            yield from self._together(self, self._pack_for_ranks)
            return
        for batch in self.stream.rounds(self.position, self.stop):
            yield from self._encode(batch.column(self._column))

    def _pack_for_ranks(self, batch: pa.RecordBatch) -> Iterator[Tokens]:
        """Tokens as they go to other ranks: no vocabulary needs more than 32 bits."""
        import numpy as np

        for tokens in self._encode(batch.column(self._column)):
            yield tokens.astype(np.int32)

    def _take(self, block: Tokens) -> None:
        if self._digests:
            data = bytes.fromhex(self.digest) + block.astype("<u4").tobytes()
            self.digest = hashlib.sha256(data).hexdigest()


def text_encoder(tokenizer: PreTrainedTokenizerBase, *, append_eos: bool) -> Encoder:
    """Tokens of text, without special tokens but for the end token if wanted."""
    import numpy as np

    end = [tokenizer.eos_token_id] if append_eos else []

    def encode(column: pa.Array) -> Iterator[Tokens]:
        texts = column.to_pylist()
        if not texts:
            return
        for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            yield np.asarray([*ids, *end], dtype=np.int64)

    return encode


def token_encoder(kind: pa.DataType, *, vocabulary: int, eos: int | None) -> Encoder:
    """Tokens of lists of numbers.

    Args:
        kind: Type of the column.
        vocabulary: Tokens the model has.
        eos: Token to end every record with.

    Raises:
        SchemaMismatch: The column holds no lists of integers.
    """
    import numpy as np
    import pyarrow as pa

    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not pa.types.is_integer(kind.value_type):
        raise SchemaMismatch(
            "the column of tokens holds no lists of integers",
            check="columns",
            got=kind,
            expected="list<uint16> or another integer",
        )
    end = np.asarray([] if eos is None else [eos], dtype=np.int64)

    def encode(column: pa.Array) -> Iterator[Tokens]:
        values = column.flatten()
        if values.null_count:
            raise RecordInvalid("a record holds an empty value among its tokens", check="tokens")
        numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < vocabulary:
            raise RecordInvalid(
                "a record holds a token the model does not have",
                check="tokens",
                expected=f"0 … {vocabulary - 1}",
                hint="seal with the dtype the shard was written in, or set vocab_size",
            )
        offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
        for low, high in pairwise(offsets):
            yield np.concatenate([numbers[low:high], end]) if len(end) else numbers[low:high]

    return encode


def windows(documents: Iterable[Tokens], size: int) -> Iterator[Tokens]:
    """Documents in order, cut so that every token but the very first is predicted once.

    A window of at most ``size`` tokens begins with the last token of the one before it.
    """
    import numpy as np

    held = np.empty(0, dtype=np.int64)
    for tokens in documents:
        held = np.concatenate([held, tokens])
        while len(held) >= size:
            yield held[:size]
            held = held[size - 1 :]
    if len(held) > 1:
        yield held

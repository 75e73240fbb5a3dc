"""The tokens of a holder's opened datasets as one row of bytes, little endian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sealtrain.training.data.sources import Source


class HeldTokens:
    """See the module. Read in order it decrypts each record batch once; of one thread.

    Args:
        sources: The holder's datasets, in the recipe's order.
        column: That holds lists of tokens, under the recipe's name.
        permit: Asked before each read; raises when the data may not be used any more.
        width: Bytes of a token, 2 or 4.

    Raises:
        SchemaMismatch: A dataset has no such column of integers.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        column: str,
        permit: Callable[[], None],
        *,
        width: int = 2,
    ) -> None:
        self._width = width
        self._column = column
        self._permit = permit
        for source in sources:
            _check(source, column)
        self._batches = [
            (source, number)
            for source in sources
            for number in range(len(source.dataset.batch_rows))
        ]
        self._at = -1
        """Which batch is open."""
        self._begins = 0
        """Its first token, counted over all batches."""
        self._open: npt.NDArray[np.unsignedinteger] | None = None
        self._tokens = self._count(sources)

    @property
    def size(self) -> int:
        """Bytes of all tokens."""
        return self._tokens * self._width

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill ``view`` from byte ``offset`` on; returns how many bytes there were.

        Raises:
            SealtrainError: What the permit raises.
            DataInvalid: Not at a whole token.
            SealRefused, RecordInvalid: The dataset does not open, or holds no such tokens.
        """
        self._permit()
        if offset < 0 or offset % self._width or len(view) % self._width:
            raise DataInvalid("tokens are read whole", got=offset)
        wanted, done = offset // self._width, 0
        if self._open is None or wanted < self._begins:
            self._rewind()
        while done < len(view):
            tokens = self._open
            if tokens is None or wanted >= self._begins + len(tokens):
                if not self._next():
                    break
                continue
            part = tokens[wanted - self._begins :][: (len(view) - done) // self._width]
            view[done : done + part.nbytes] = part.data.cast("B")
            done += part.nbytes
            wanted += len(part)
        return done

    def _rewind(self) -> None:
        self._at, self._begins, self._open = -1, 0, None

    def _next(self) -> bool:
        """Open the next batch; whether there was one."""
        if self._at + 1 >= len(self._batches):
            return False
        self._begins += 0 if self._open is None else len(self._open)
        self._at += 1
        source, number = self._batches[self._at]
        batch = source.rename(source.dataset.batch(number))
        self._open = _tokens_of(batch.column(self._column), self._width)
        return True

    def _count(self, sources: Sequence[Source]) -> int:
        """How many there are: as the owners counted, else by reading all once."""
        said = [getattr(source.dataset, "tokens", None) for source in sources]
        if all(type(count) is int for count in said):
            return sum(count for count in said if count is not None)
        while self._next():
            self._permit()
        found = self._begins + (0 if self._open is None else len(self._open))
        self._rewind()
        return found


def _check(source: Source, column: str) -> None:
    import pyarrow as pa

    schema = source.schema
    kind: Any = pa.null()
    if schema is not None and column in schema.names:
        kind = schema.field(column).type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_integer(kind.value_type):
        raise SchemaMismatch(
            f"dataset {source.name} has no column of lists of tokens",
            check="columns",
            owner=source.owner,
            expected=column,
            hint="seal token shards with: sealtrain seal --format tokens",
        )


def _tokens_of(column: Any, width: int) -> npt.NDArray[np.unsignedinteger]:
    import numpy as np

    flat = column.flatten()
    if flat.null_count:
        raise RecordInvalid("a record holds an empty value among its tokens", check="tokens")
    tokens = flat.to_numpy(zero_copy_only=False)
    kind = np.dtype(f"<u{width}")
    if tokens.dtype != kind and len(tokens):
        fits = int(tokens.min()) >= 0 and int(tokens.max()) < 1 << 8 * width
        if not fits:
            raise RecordInvalid(f"a token does not fit into {8 * width} bits", check="tokens")
    return np.ascontiguousarray(tokens.astype(kind, copy=False))

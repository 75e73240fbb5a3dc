"""Activations of records as they travel, and as the back's model reads them (spec/split-cut.md §2).

One message holds some records as a safetensors file with exactly these tensors:

    lengths  int32 (records,)           tokens of each record, 1 to the recipe's length
    values   of the form (tokens, width)    activations of all records, one after another
    scales   float32 (tokens,)          int8 only: activation = value · scale
    labels   int32 (records,) or (tokens,)  class of each record, or next token, -100 for none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from sealtrain.errors import DataInvalid

if TYPE_CHECKING:
    import pyarrow as pa

Form = Literal["float32", "bfloat16", "int8"]
FORMS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
_LARGEST: Final = 127
_MESSAGE_BYTES: Final = 16 << 20
_MOST_ROWS: Final = 64
_UNLABELLED: Final = -100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One record.

    Attributes:
        values: (tokens, width), in the dtype of its form.
        scales: float32 (tokens,) of ``int8``, else ``None``.
        labels: int64, () or (tokens,).
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    labels: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected content of a message.

    Attributes:
        form: Of the activations.
        width: Numbers of one token's activation.
        max_tokens: Of one record.
        labels: Labels are below this.
        per_token: Each token has one, which may be none; else each record.
    """

    form: Form
    width: int
    max_tokens: int
    labels: int
    per_token: bool

    @property
    def rows_a_message(self) -> int:
        """Records in each message but a dataset's last: both sides know without asking."""
        return max(1, min(_MOST_ROWS, _MESSAGE_BYTES // self.max_bytes(1)))

    def max_bytes(self, rows: int) -> int:
        """Most bytes that a message with so many records can have."""
        token = self.width * FORMS[self.form].itemsize + 4 + 4
        return rows * (self.max_tokens * token + 8) + _HEADER_BYTES


_HEADER_BYTES: Final = 4096


def rows_of(
    activations: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor, form: Form
) -> list[Row]:
    """Records of one batch, without padding, in a form.

    Args:
        activations: (rows, tokens, width).
        mask: int64 (rows, tokens), padding on the right.
        labels: int64 (rows,) or (rows, tokens).
        form: How they travel.
    """
    lengths = mask.sum(1).tolist()
    rows = []
    for number, length in enumerate(lengths):
        values, scales = _form_tensor(activations[number, :length], form)
        label = labels[number] if labels.dim() == 1 else labels[number, :length]
        rows.append(Row(values=values, scales=scales, labels=label.to("cpu", torch.int64)))
    return rows


def restore_row(row: Row, dtype: torch.dtype) -> torch.Tensor:
    """A record's activations as numbers, (tokens, width)."""
    if row.scales is None:
        return row.values.to(dtype)
    return (row.values.to(torch.float32) * row.scales[:, None]).to(dtype)


def collate(rows: Sequence[Row], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A batch as the back's model reads it.

    Returns:
        ``inputs_embeds`` (rows, tokens, width), zero where there is padding; ``attention_mask``
        int64 (rows, tokens); ``labels`` int64 (rows,) or (rows, tokens).
    """
    longest = max(len(row.values) for row in rows)
    inputs = torch.zeros(len(rows), longest, rows[0].values.shape[1], dtype=dtype)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    labels = torch.full((len(rows), longest), _UNLABELLED, dtype=torch.int64)
    for number, row in enumerate(rows):
        length = len(row.values)
        inputs[number, :length] = restore_row(row, dtype)
        mask[number, :length] = 1
        labels[number, : max(row.labels.dim() and length, 1)] = row.labels
    whole = labels if rows[0].labels.dim() else labels[:, 0]
    return {"inputs_embeds": inputs, "attention_mask": mask, "labels": whole}


def encode(rows: Sequence[Row]) -> bytes:
    """Records of one form as a message."""
    from safetensors.torch import save

    tensors = {
        "lengths": torch.tensor([len(row.values) for row in rows], dtype=torch.int32),
        "values": torch.cat([row.values for row in rows]),
        "labels": torch.cat([row.labels.reshape(-1) for row in rows]).to(torch.int32),
    }
    scales = [row.scales for row in rows if row.scales is not None]
    if scales:
        tensors["scales"] = torch.cat(scales)
    return save(tensors)


def decode(message: bytes, expected: Expected, *, rows: int) -> list[Row]:
    """Read a message of a peer that may send anything.

    Args:
        message: As ``encode`` makes it.
        expected: What it must hold.
        rows: How many records.

    Raises:
        DataInvalid: It holds something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(message)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise _invalid(type(error).__name__, "safetensors") from None
    form = FORMS[expected.form]
    names = {"lengths", "values", "labels"} | ({"scales"} if expected.form == "int8" else set())
    if set(tensors) != names:
        raise _invalid("other tensors", ", ".join(sorted(names)))
    lengths = _check_shape(tensors["lengths"], torch.int32, (rows,)).tolist()
    if not all(1 <= length <= expected.max_tokens for length in lengths):
        raise _invalid("a record of another length", f"1 to {expected.max_tokens} tokens")
    total = sum(lengths)
    values = _check_shape(tensors["values"], form, (total, expected.width))
    if form != torch.int8 and not values.isfinite().all():
        raise _invalid("an activation that is not finite", "numbers")
    scales = None
    if expected.form == "int8":
        scales = _check_shape(tensors["scales"], torch.float32, (total,))
        if not (scales.isfinite() & (scales > 0)).all():
            raise _invalid("an invalid scale", "finite, above 0")
    count = total if expected.per_token else rows
    labels = _check_shape(tensors["labels"], torch.int32, (count,)).to(torch.int64)
    known = (labels >= 0) & (labels < expected.labels)
    if not (known | (labels == _UNLABELLED) if expected.per_token else known).all():
        raise _invalid("a label that the recipe does not know", f"0 to {expected.labels - 1}")
    return _separate(values, scales, labels, lengths, per_token=expected.per_token)


def _separate(
    values: torch.Tensor,
    scales: torch.Tensor | None,
    labels: torch.Tensor,
    lengths: list[int],
    *,
    per_token: bool,
) -> list[Row]:
    rows, start = [], 0
    for number, length in enumerate(lengths):
        part = slice(start, start + length)
        rows.append(
            Row(
                values=values[part],
                scales=None if scales is None else scales[part],
                labels=labels[part] if per_token else labels[number],
            )
        )
        start += length
    return rows


def _form_tensor(values: torch.Tensor, form: Form) -> tuple[torch.Tensor, torch.Tensor | None]:
    if form != "int8":
        return values.detach().to("cpu", FORMS[form]).contiguous(), None
    numbers = values.detach().to("cpu", torch.float32)
    scales = numbers.abs().amax(1).div(_LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return numbers.div(scales[:, None]).round().to(torch.int8), scales


def _check_shape(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise _invalid(f"{tensor.dtype} {tuple(tensor.shape)}", f"{dtype} {shape}")
    return tensor


def _invalid(got: Any, expected: str) -> DataInvalid:
    return DataInvalid(
        "a message of activations is malformed",
        check="activations",
        got=got,
        expected=expected,
        hint="both sides must run the same recipe",
    )


COLUMNS: Final = ("values", "scales", "labels")


def schema() -> pa.Schema:
    """Of records of activations."""
    import pyarrow as pa

    return pa.schema([(name, pa.large_binary()) for name in COLUMNS])


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Activations as records of a stream; ``row_of`` is the inverse."""
    import pyarrow as pa

    columns = {
        "values": [_octets(row.values) for row in rows],
        "scales": [b"" if row.scales is None else _octets(row.scales) for row in rows],
        "labels": [_octets(row.labels) for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema())


def row_of(record: Mapping[str, Any], expected: Expected) -> Row:
    """A record of a stream as activations."""
    values = _numbers(record["values"], FORMS[expected.form]).view(-1, expected.width)
    labels = _numbers(record["labels"], torch.int64)
    return Row(
        values=values,
        scales=_numbers(record["scales"], torch.float32) if record["scales"] else None,
        labels=labels if expected.per_token else labels[0],
    )


def _octets(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _numbers(octets: bytes, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(octets), dtype=dtype)

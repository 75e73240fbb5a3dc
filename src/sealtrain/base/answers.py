"""What a forked process answers the one that forked it: a value, or the error it ended with."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["answer_of", "packed", "packed_error"]


def packed(value: Any) -> bytes:
    """A value for ``answer_of``."""
    return pickle.dumps(value)


def packed_error(error: BaseException) -> bytes:
    """An error for ``answer_of``, with its attributes; of one that cannot be told, its kind."""
    try:
        return pickle.dumps(_Raised(type(error), error.args, vars(error)))
    except Exception:  # what cannot be told stays in its process
        return pickle.dumps(_Raised(RuntimeError, (type(error).__name__,), {}))


def answer_of(told: bytes) -> Any:
    """What was packed: the value, or the error as an exception that was not raised yet."""
    answer = pickle.loads(told)  # noqa: S301  # from our own child
    if not isinstance(answer, _Raised):
        return answer
    error: BaseException = answer.kind.__new__(answer.kind, *answer.args)
    error.args = answer.args
    vars(error).update(answer.state)
    return error


class _Raised:
    def __init__(
        self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
    ) -> None:
        self.kind, self.args, self.state = kind, args, state

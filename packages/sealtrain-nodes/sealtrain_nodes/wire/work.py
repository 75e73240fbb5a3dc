"""An operation that was issued, as PyTorch's engines wait for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from sealtrain_nodes.wire.engine import IssuedWork


class WireWork(Work):
    """An operation that was issued.

    Args:
        operation: At work, or over.
        result: The tensors that it fills.
        device: Of them.
    """

    def __init__(self, operation: IssuedWork, result: Any, device: torch.device) -> None:
        super().__init__()
        self._operation = operation
        self._result = result
        self._devices: list[Any] = [] if device.type == "cpu" else [device]
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it is done.

        Args:
            timeout: How long; as long as the operation may take if it is zero or less.

        Raises:
            SealtrainError: What ended the group.
        """
        seconds = timeout.total_seconds()
        self._operation.wait(seconds if seconds > 0 else None)
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return self._operation.done

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._operation.done and self._operation.error is None

    def exception(self) -> BaseException | None:
        """What ended the group."""
        return self._operation.error

    def result(self) -> Any:
        """The tensors that it filled."""
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """A future of its tensors, which fails with the text of what ended the group."""
        if self._future is None:
            made: Future[Any] = Future(devices=self._devices)
            operation, result = self._operation, self._result

            def over(_: IssuedWork) -> None:
                made.set_result(None)

            def outcome(_: Future[Any]) -> Any:
                if operation.error is not None:
                    raise operation.error
                return result

            # A callback that raises makes a future that fails for C++ as well, as DDP looks at it.
            self._future = made.then(outcome)
            operation.on_done(over)
        return self._future

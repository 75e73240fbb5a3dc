"""What an error carries: ``pytest.raises(Refused, check=carries(check="quorum", got="1"))``."""

from __future__ import annotations

from collections.abc import Callable


def carries(**expected: object) -> Callable[[BaseException], bool]:
    """For ``check`` of ``pytest.raises``: the error has these attributes with these values."""

    def holds(error: BaseException) -> bool:
        found = {name: getattr(error, name) for name in expected}
        assert found == expected, f"the error carries {found}, not {expected}"
        return True

    return holds

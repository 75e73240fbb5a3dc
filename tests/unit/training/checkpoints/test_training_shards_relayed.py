"""Where one model spans guests, the first guest seals the shards of all, and others read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from shards_player import live

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.claim("C732")
def test_ranks_of_other_guests_send_their_shards_to_the_first(tmp_path: Path) -> None:
    from torch.multiprocessing import spawn

    folder = tmp_path / "checkpoints"
    spawn(live, (2, 1, str(folder)), nprocs=2)
    shards = sorted(path.parent.name for path in folder.glob("rank-*/shard-*-of-0002.sealed"))
    assert shards == ["rank-0000", "rank-0001"]

"""Processor time and memory of a run's processes, also of one that has ended and is still there."""

from __future__ import annotations

import os
import time

from polling import wait_until

from sealtrain.base.processes import usage_of_all


def test_descendants_count_and_one_that_has_ended_disturbs_nothing() -> None:
    seconds, peak = usage_of_all()
    read, write = os.pipe()
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    busy = os.fork()
    if busy == 0:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        os.write(write, b"1")
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(read, 1) == b"1"
        wait_until(lambda: usage_of_all()[0] >= seconds + 0.25)
        assert usage_of_all()[1] >= peak > 0
    finally:
        os.kill(busy, 9)
        for pid in (ended, busy):
            os.waitpid(pid, 0)
        os.close(read)
        os.close(write)

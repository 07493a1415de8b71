"""A bell wakes whoever waits for it, and is never somebody else's descriptor."""

import os
import select
import threading

from ipc.doorbell import Doorbell


def rings(bell: Doorbell) -> bool:
    return bool(select.select([bell.fd], [], [], 0)[0])


def test_many_rings_before_it_is_heard_are_one() -> None:
    bell = Doorbell()
    assert not rings(bell)
    for _ in range(3):
        bell.ring()
    assert rings(bell)
    bell.clear()
    assert not rings(bell)
    bell.clear()  # there is nothing to clear, and nobody waits
    bell.ring()
    assert rings(bell)


def test_a_ring_wakes_another_thread() -> None:
    bell = Doorbell()
    heard: list[bool] = []
    thread = threading.Thread(
        target=lambda: heard.append(bool(select.select([bell.fd], [], [], 60)[0]))
    )
    thread.start()
    bell.ring()
    thread.join()
    assert heard == [True]


def test_a_bell_that_is_garbage_already_rings_nobody_elses() -> None:
    reader, writer = os.pipe()
    bell = Doorbell()
    freed = bell._writer
    bell.__del__()  # as the collector of a cycle may, before it asks the cycle's other members
    os.dup2(writer, freed)  # the number is another's now
    bell.ring()
    assert not select.select([reader], [], [], 0)[0]
    for fd in {reader, writer, freed}:
        os.close(fd)

"""Freed memory stays with the process."""

import os
import subprocess
import sys

import pytest

from engine.cpu.heap import is_chosen

FAULTS = """
import ctypes, resource
from engine.cpu.heap import keep_freed
if {keeps}:
    print(keep_freed())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def round():
    places = [libc.malloc(40 << 20) for _ in range(2)]
    for place in places:
        ctypes.memset(place, 1, 40 << 20)
    for place in places:
        libc.free(place)
round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = (80 << 20) // os.sysconf("SC_PAGE_SIZE")


def said(*, keeps: bool, **variables: str) -> list[str]:
    command = [sys.executable, "-c", FAULTS.format(keeps=keeps)]
    environment = {**os.environ, **variables}
    return subprocess.check_output(command, text=True, env=environment).split()


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_is_freed_is_not_cleared_again_by_the_kernel() -> None:
    assert int(said(keeps=False)[-1]) > PAGES // 2
    kept, faults = said(keeps=True)
    assert kept == "True"
    assert int(faults) < PAGES // 100


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_the_user_has_chosen_stays() -> None:
    kept, faults = said(keeps=True, MALLOC_MMAP_THRESHOLD_="131072")
    assert kept == "False"
    assert int(faults) > PAGES // 2


def test_a_choice_is_any_of_glibc_s_variables() -> None:
    assert not is_chosen({"GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1"})
    assert is_chosen({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"})
    assert is_chosen({"MALLOC_TRIM_THRESHOLD_": "0"})

"""OCTAVO_BLAS and OCTAVO_BLAS_THREADS, and what is said about values that make no sense."""

from pathlib import Path

import pytest

from engine.blas.settings import Settings


def test_nothing_set_leaves_the_choice_to_us() -> None:
    assert Settings.read({}) == Settings()


@pytest.mark.parametrize("name", ["reference", "exact", "mkl", "openblas", "system"])
def test_a_name_is_read_in_any_case(name: str) -> None:
    assert Settings.read({"OCTAVO_BLAS": name.upper()}) == Settings(name=name)


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libmine.so").touch()
    monkeypatch.chdir(tmp_path)

    assert Settings.read({"OCTAVO_BLAS": "libmine.so"}) == Settings(file=tmp_path / "libmine.so")


def test_an_unknown_name_is_reported_with_the_known_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Settings.read({"OCTAVO_BLAS": "/no/such/library.so"}) == Settings()
    assert "OCTAVO_BLAS=/no/such/library.so is neither the path of a file" in caplog.text
    assert "reference, exact, mkl, openblas, system" in caplog.text


def test_the_number_of_threads_is_read() -> None:
    assert Settings.read({"OCTAVO_BLAS_THREADS": "3"}).threads == 3


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_number_of_threads_that_is_none_is_reported(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Settings.read({"OCTAVO_BLAS_THREADS": text}).threads is None
    assert f"OCTAVO_BLAS_THREADS={text} is not a number of threads" in caplog.text


def test_the_smallest_limit_of_the_other_libraries_variables_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environ = {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "x"}

    assert Settings.read(environ).threads_limit == 2
    assert caplog.text == ""

"""Which libraries are tried, and in which order, in made-up installations."""

import platform
from pathlib import Path

import pytest

from engine.blas.candidates import Candidate, Places, find_candidates
from engine.blas.settings import Settings

SYSTEM = Candidate("system", "libopenblas.so.0")


def install(site: Path, name: str, version: str, *file_names: str) -> list[Path]:
    """Put a distribution with ``file_names`` (relative to ``site``) there, as pip would."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in file_names))
    placed = [(site / file).resolve() for file in file_names]
    for file in placed:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return placed


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "python3" / "site-packages"


@pytest.fixture
def places(site: Path) -> Places:
    return Places([str(site)], system_names=[str(SYSTEM.source)])


def openblas_in(site: Path) -> Candidate:
    library = "scipy_openblas32/lib/libscipy_openblas.so"
    return Candidate("openblas", install(site, "scipy-openblas32", "0.3", library)[0], "0.3")


def mkl_in(site: Path) -> Candidate:
    return Candidate("mkl", install(site, "mkl", "2026.2", "../../libmkl_rt.so.3")[0])


def test_openblas_comes_first_then_mkl_then_the_systems(site: Path, places: Places) -> None:
    openblas, mkl = openblas_in(site), mkl_in(site)

    assert find_candidates(Settings(), places) == [openblas, mkl, SYSTEM]


def test_what_is_not_installed_is_not_tried(site: Path, places: Places) -> None:
    openblas = openblas_in(site)

    assert find_candidates(Settings(), places) == [openblas, SYSTEM]


def test_a_recorded_file_that_is_gone_is_not_tried(site: Path, places: Places) -> None:
    Path(mkl_in(site).source).unlink()

    assert find_candidates(Settings(), places) == [SYSTEM]


def test_mkl_is_found_where_conda_puts_it(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "libmkl_rt.so.2"
    library.parent.mkdir()
    library.touch()

    found = find_candidates(Settings(), Places([], prefixes=[tmp_path], system_names=[]))

    assert found == [Candidate("mkl", library)]


@pytest.mark.parametrize("name", ["mkl", "openblas", "system"])
def test_the_one_asked_for_is_tried_first_and_the_others_after_it(
    site: Path, places: Places, name: str
) -> None:
    everything = [openblas_in(site), mkl_in(site), SYSTEM]

    found = find_candidates(Settings(name=name), places)

    assert found[0].name == name
    assert found[1:] == [candidate for candidate in everything if candidate.name != name]


def test_a_named_file_is_tried_before_all_installed_ones(
    site: Path, places: Places, tmp_path: Path
) -> None:
    mine, openblas = tmp_path / "libmine.so.3", openblas_in(site)

    found = find_candidates(Settings(file=mine), places)

    assert found == [Candidate("libmine", mine), openblas, SYSTEM]


def test_exact_is_never_replaced_by_a_library_that_does_not_keep_rows_apart(
    site: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkl_in(site)
    exact = openblas_in(site)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    found = find_candidates(Settings(name="exact"), places)

    assert found == [Candidate("openblas", exact.source, "0.3", exact=True)]


def test_exact_has_no_candidate_on_another_processor(
    site: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    openblas_in(site)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    assert find_candidates(Settings(name="exact"), places) == []


def test_the_reference_blas_and_the_gpu_build_are_recognized(site: Path, places: Places) -> None:
    install(site, "mlx-cpu", "0.32.4", "mlx_cpu.libs/libblas-bd8a.so.3.10.0")
    assert places.gpu_build() is None
    install(site, "mlx-cuda-13", "0.32.4")

    assert places.reference() == site / "mlx_cpu.libs" / "libblas-bd8a.so.3.10.0"
    assert places.gpu_build() == "mlx_cuda_13-0.32.4"

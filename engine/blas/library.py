"""One BLAS in this process: its products, its threads, and whose cblas_sgemm MLX will get."""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112
_MKL_LP64, _MKL_INTEL, _MKL_SEQUENTIAL = 0, 0, 1
_OPENBLAS_THREADING = {0: "sequential", 1: "pthreads", 2: "openmp"}
_OPENBLAS_PREFIXES = ("openblas_", "scipy_openblas_")


SetThreads = Callable[[ctypes.c_int], None]


class UnusableBlas(Exception):
    """A library cannot serve as MLX's BLAS; the message says why."""


class Matrix:
    """``rows`` x ``columns`` float32 values in row order, outside Python's heap."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.data = (ctypes.c_float * (rows * columns))()
        # Untouched pages all share one page of zeros, which would make a product look fast.
        ctypes.memset(self.data, 0x3C, ctypes.sizeof(self.data))


class Library:
    """A BLAS loaded for this process alone, until ``publish`` puts it before all later ones."""

    def __init__(self, path: Path | str) -> None:
        """Load ``path`` (a file, or a name for the dynamic linker to find).

        Raises UnusableBlas when it does not load, exports no cblas_sgemm or multiplies wrongly.
        """
        self._file = str(path)
        try:
            # MKL puts its inner libraries before all others at its first product, in any case.
            is_mkl = Path(self._file).name.startswith("libmkl_rt.")
            mode = ctypes.RTLD_GLOBAL if is_mkl else ctypes.RTLD_LOCAL
            self._handle = ctypes.CDLL(self._file, mode)
        except OSError as error:
            raise UnusableBlas(str(error)) from error
        if not hasattr(self._handle, "cblas_sgemm"):
            raise UnusableBlas(f"{path} exports no cblas_sgemm")
        self.path = defining_file(self._handle.cblas_sgemm) or Path(path)
        self.threading = "unknown"
        self.threads: int | None = None  # in use, where whoever chose them says so
        self.kernels: str | None = None
        self._set_threads = self._find_thread_control()
        self._sgemm = self._handle.cblas_sgemm
        self._sgemm.restype = None
        whole, real, array = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
        self._sgemm.argtypes = [
            *[whole] * 6, real, array, whole, array, whole, real, array, whole
        ]  # fmt: skip
        self._check_product()

    def publish(self) -> None:
        """Let every library loaded from now on resolve its BLAS symbols here.

        Raises UnusableBlas when another library of the process comes first.
        """
        ctypes.CDLL(self._file, mode=ctypes.RTLD_GLOBAL)
        first = global_provider()
        if first is None or not _same_file(first, self.path):
            raise UnusableBlas(f"cblas_sgemm still resolves to {first}")

    @property
    def can_set_threads(self) -> bool:
        """Whether ``set_threads`` has an effect on the threads that MLX computes on."""
        return self._set_threads is not None

    def set_threads(self, count: int) -> None:
        """Use ``count`` threads from the next product on, whoever calls it."""
        if self._set_threads is not None:
            self._set_threads(ctypes.c_int(count))

    def multiply(self, x: Matrix, w: Matrix, out: Matrix) -> None:
        """``out[M, N] = x[M, K] @ w[N, K].T``, the product that a linear layer asks for."""
        self._sgemm(
            _ROW_MAJOR, _NO_TRANS, _TRANS, x.rows, w.rows, x.columns,
            1.0, x.data, x.columns, w.data, w.columns, 0.0, out.data, out.columns,
        )  # fmt: skip

    def _find_thread_control(self) -> SetThreads | None:
        if hasattr(self._handle, "MKL_Set_Num_Threads"):
            # Chosen before MKL's first product: without its OpenMP beside it MKL ends the process.
            has_openmp = hasattr(self._handle, "MKL_Set_Threading_Layer") and (
                self.path.with_name("libiomp5.so").is_file()
            )
            layer = _MKL_INTEL if has_openmp else _MKL_SEQUENTIAL
            if hasattr(self._handle, "MKL_Set_Threading_Layer"):
                self._handle.MKL_Set_Interface_Layer(_MKL_LP64)
                self._handle.MKL_Set_Threading_Layer(layer)
                self.threading = "intel" if has_openmp else "sequential"
            return cast(SetThreads, self._handle.MKL_Set_Num_Threads) if has_openmp else None
        for prefix in _OPENBLAS_PREFIXES:
            if hasattr(self._handle, f"{prefix}set_num_threads"):
                threading = getattr(self._handle, f"{prefix}get_parallel")()
                self.threading = _OPENBLAS_THREADING.get(threading, "unknown")
                corename = getattr(self._handle, f"{prefix}get_corename")
                corename.restype = ctypes.c_char_p
                self.kernels = corename().decode()
                return cast(SetThreads, getattr(self._handle, f"{prefix}set_num_threads"))
        return None

    def _check_product(self) -> None:
        """Small whole numbers: exact in any order of summation, wrong under another interface."""
        x, w, out = Matrix(2, 3), Matrix(2, 3), Matrix(2, 2)
        x.data[:] = [1, 2, 3, 4, 5, 6]
        w.data[:] = [1, 0, 2, 0, 3, 1]
        self.multiply(x, w, out)
        if list(out.data) != [7, 9, 16, 21]:
            raise UnusableBlas(f"{self.path} multiplies wrongly: {list(out.data)}")


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that a library reads while it loads; the user's own win."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def global_provider(symbol: str = "cblas_sgemm") -> Path | None:
    """The file that a library loaded now would get ``symbol`` from, before its own dependencies."""
    process = ctypes.CDLL(None)
    if not hasattr(process, symbol):
        return None
    return defining_file(getattr(process, symbol))


class _SymbolAddress(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def defining_file(function: "ctypes._NamedFuncPointer") -> Path | None:
    """The file that a C function was loaded from, None where the linker cannot say."""
    process = ctypes.CDLL(None)
    found = _SymbolAddress()
    if not hasattr(process, "dladdr"):
        return None
    address = ctypes.cast(function, ctypes.c_void_p)
    if not process.dladdr(address, ctypes.byref(found)) or not found.file:
        return None
    return Path(os.fsdecode(found.file))


def _same_file(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))

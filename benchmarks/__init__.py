"""Scripts that measure, one per question; each prints one JSON line per measurement."""

import engine  # noqa: F401  # loads a BLAS, which has to come before mlx

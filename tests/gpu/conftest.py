"""In these tests float32 means float32, not TF32."""

import os

os.environ.setdefault("MLX_ENABLE_TF32", "0")

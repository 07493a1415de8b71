"""The CUDA backend: kernels of our own behind the seams that the portable layers have.

What all of it follows from (measured on MLX 0.32's CUDA backend):
- Pages, states and records are written inside kernels, through the pointer of an *input*: MLX would
  copy a whole pool that an unfinished graph still touches.
- MLX knows nothing of such a write. Whoever reads a pool later takes an output of the writing
  kernel as an input, or sits in a later evaluation; ``mx.depends`` on the pool is not enough.
- A kernel is known to MLX by its name and template arguments alone, and costs about two seconds to
  compile in every process: everything but shapes of the model is an argument at run time.
"""

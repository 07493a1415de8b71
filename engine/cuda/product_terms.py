"""What the kernels for products of few rows are given, and how it becomes their ``Product``."""

INPUTS = ("x", "w0", "w1", "w2", "w3", "bias", "residual", "norm", "epsilon", "factors", "mode")
PRODUCT = """
  Product product;
  product.rows = 1;
  for (int i = 0; i < x_ndim - 1; i++) product.rows *= x_shape[i];
  product.depth = w0_shape[1];
  product.x = x;
  product.weights[0] = w0;
  product.weights[1] = w1;
  product.weights[2] = w2;
  product.weights[3] = w3;
  product.ends[0] = w0_shape[0];
  product.ends[1] = product.ends[0] + (w1_ndim == 2 ? w1_shape[0] : 0);
  product.ends[2] = product.ends[1] + (w2_ndim == 2 ? w2_shape[0] : 0);
  product.ends[3] = product.ends[2] + (w3_ndim == 2 ? w3_shape[0] : 0);
  product.bias = bias_shape[0] == 1 ? nullptr : bias;
  product.residual = residual_shape[residual_ndim - 1] == 1 ? nullptr : residual;
  product.norm = norm;
  product.epsilon = NORM ? *epsilon : 0.f;  // read here: it may lie in the host's memory
  product.factors = factors_shape[0] == 1 ? nullptr : factors;
  product.out = out;
  product.gated = mode_shape[0] == 2;
  const int num_tiles = product.columns() / (product.gated ? 8 : 16);
"""

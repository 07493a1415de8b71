"""The CPU backend: products that OpenBLAS need not pack, states written now and then, two cores."""

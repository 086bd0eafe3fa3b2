"""Reference implementations of the kernels, in plain Python and float64, from the formulas."""

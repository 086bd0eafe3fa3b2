"""Layer 0: scalar mathematics on one number or one row, shared by CPU and CUDA kernels."""

"""Running kernels in Triton's interpreter, in a process of its own."""

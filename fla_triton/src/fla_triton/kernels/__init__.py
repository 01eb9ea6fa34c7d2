"""Kernels in Triton's language; importing one of these modules imports Triton."""

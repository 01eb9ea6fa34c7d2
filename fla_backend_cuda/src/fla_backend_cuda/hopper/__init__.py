"""Kernels written for Hopper's warpgroups, in Gluon."""

"""Kernels: one elementwise formula `entry(xz, xx, zz)` each; everything else is derived from it."""

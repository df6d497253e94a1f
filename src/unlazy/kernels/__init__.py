"""Kernels: most are one elementwise formula `entry(xz, xx, zz)`; everything else is derived from it."""

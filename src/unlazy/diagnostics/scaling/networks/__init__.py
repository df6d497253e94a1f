"""Networks of several sizes: building, training and measuring them, in PyTorch and JAX.

construction  a network from the function of the user
frameworks    chooses the framework of a network
runs          short training runs: torch_runs, jax_runs
uses          operations in which a parameter meets data: torch_trace and jax_trace find them
"""

"""A page to play with: kernels in training, a network that leaves its kernel, and what samples buy."""

"""A saved record as a page, in the terminal and as JSON: nothing of the network is needed, and JAX is not imported."""

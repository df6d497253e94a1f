"""Algorithm 1 [D4] and its relatives: one or two gradient steps, then ridge regression of the readout."""

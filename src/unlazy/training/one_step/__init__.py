"""Algorithm 1 [D4] and variants: one or two gradient steps on the first layer, then ridge regression of the readout."""

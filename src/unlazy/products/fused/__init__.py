"""Fused GPU products: K @ V in one pass, without writing K to memory."""

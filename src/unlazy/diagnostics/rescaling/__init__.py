"""Networks with another output scale [W6], in every framework."""

"""Networks on the dial of laziness [W6], in every framework."""

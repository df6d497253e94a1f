"""The rich limit: infinitely wide networks that learn features [M1–M5], and finite networks for comparison."""

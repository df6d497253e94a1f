"""Dense kernel ridge regression on the CPU: factorizations, a free intercept, leave-one-out errors [K2]."""

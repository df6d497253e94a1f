"""Which kernel, which metric, how many updates: chosen by predictions of rows whose labels nothing has seen.

first_look   how to read the table: codes as numbers or as categories
search       the description, read from top to bottom: plain kernels, rounds of updates, slow updates, last fit
trajectory   one kernel and its metrics, update after update
folds        held-out predictions: a fold's metric and coefficients never see the labels of its rows
held_out     the same with one split, for many rows
growth       many rows: choices are made again at growing sizes
last_fit     the fit to all rows: one factorization, leaves of a partition, or an iterative solution
members      fits to all rows: one, or several whose mean predicts, where few rows cannot tell them apart
heavy_tails  labels with outliers: noticed and clipped; robust: which labels are fitted
stages       what outlasts a kill
course       how far a fit has come
rules        the numbers by which the search decides, in one table
"""

from unlazy.estimators.feature_search.search import Selected, select
from unlazy.estimators.feature_search.trajectory import Candidate

__all__ = ["Candidate", "Selected", "select"]

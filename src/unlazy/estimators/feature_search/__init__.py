"""Choice of kernel, metric and number of updates by predictions of held-out rows.

choices             what is chosen among: kernels with metrics, encodings of integer codes, original and clipped labels
search              the search: plain kernels, rounds of updates, slow updates, rotations, final hyperparameters
trajectory          the steps of a kernel's metric, each with the scores it reached
ensemble            the members whose predictions are averaged
held_out            scores by held-out predictions: metric and coefficients never see the held-out labels
successive_halving  many rows: candidates are reduced while the number of rows grows
final_fit           many rows: one factorization, the leaves of a partition, or an iterative solver
kernel_model        a kernel fitted to many rows: predictions, gradients, the next metric
stage_checkpoints   checkpoints of the stages of a long fit
progress            progress of a fit
constants           the constants of the search, in one table
"""

from unlazy.estimators.feature_search.search import SearchOptions, Selected, select
from unlazy.estimators.feature_search.trajectory import KernelCandidate

__all__ = ["KernelCandidate", "SearchOptions", "Selected", "select"]

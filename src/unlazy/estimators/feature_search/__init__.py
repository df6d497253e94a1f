"""Choice of kernel, metric and number of updates by predictions of held-out rows.

encoding_choice     encoding of integer codes: as numbers or as categories
search              the search: plain kernels, rounds of updates, slow updates, rotations, final hyperparameters
trajectory          one kernel and its metrics, update by update
folds               held-out predictions by cross-validation: metric and coefficients never see the held-out labels
held_out            the same with a single split, for many rows
successive_halving  many rows: candidates are reduced while the number of rows grows
final_fit           the fit to all rows: one factorization, the leaves of a partition, or an iterative solver
averaging           fits to all rows of one candidate, or of several whose mean predicts if few rows cannot separate
them heavy_tails         detection and clipping of outliers in the labels robust_labels       choice between original
and clipped labels stages              checkpoints of the stages of a long fit progress            progress of a fit
thresholds          the constants of the search, in one table
"""

from unlazy.estimators.feature_search.search import Selected, select
from unlazy.estimators.feature_search.trajectory import KernelCandidate

__all__ = ["KernelCandidate", "Selected", "select"]

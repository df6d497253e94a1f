"""Constants of the search. Errors are shares of the variance that is not explained.

| name | meaning |
|---|---|
| ENCODING_SEARCH_ROWS | rows of the short searches that choose the encoding (`choices`) |
| AVERAGING_ROWS | rows up to which candidates within AVERAGING_Z standard errors of the best are averaged |
| HEAVY_KURTOSIS | kurtosis of heavy-tailed residuals, if they hold at least MIN_RESIDUAL_SHARE of the variance |
| CLIP_DEVIATIONS | deviations (1.48 medians) to which labels are clipped, if at least MIN_CLIPPED are beyond |
| PILOT_ROWS | rows on which bandwidth and ridge of a plain kernel are tuned first, if there are many |
| DROP_FACTOR | candidates whose projected error there is beyond this factor of the best are dropped |
| WORTH_ANOTHER_UPDATE | an update is followed by another if it reduces the best error below this share |
| WITHIN_REACH | a kernel continues if its projected error is within this factor of the best |
| EXPLAINS_NOTHING | error above which a plain kernel explains nothing |
| EXPLAINS_MUCH | error below which a kernel explains much |
| PATIENCE | updates granted to a kernel that explains nothing while no other explains much |
| SLOW_PATIENCE | slow updates that are made before they are evaluated |
| SLOW_POWER | power of the AGOP in slow updates, which keep inputs of little influence |
| SLOW_START_FACTOR | slow updates are made if the metric they start from is within this factor of the best error |
| COMPETITIVE_FACTOR | a kernel tuned on fewer rows is examined further within this factor of the best |
| TUNING_GAIN | when another kernel tries a metric: smallest relative gain for which bandwidth or ridge move |
| FINAL_TUNING_GAIN | the same for the final fit |
| TAKEOVER_FACTOR | another kernel, or slow updates, take over if their error is below this share |
| NOISE_FLOOR | multiple of the median subtracted from the result of slow updates, to remove irrelevant inputs |
| SCREENING_COLUMNS | columns from which the first update of a diagonal metric may subtract that noise |
| SCREENING_FACTOR | if that reduces the error below this share, the metric of all columns is not tried |
| MAX_LEARNING_RIDGE | largest ridge of fits whose gradients are used: a fit shrunk to zero has no gradient |
| FOLDS | number of folds below TWO_FOLD_ROWS rows; two folds from there on |
| HALVES_ROWS | rows from which a fold is predicted by coefficients of the other one alone, not by leave-one-out |
| FINAL_FACTOR | the best FINAL_CANDIDATES within this factor of two-fold errors are compared by leave-one-out |
| EARLY_STEP_ROWS | rows on which the metric of the last fit is learned before its LAST_STEPS, made on all rows, ... |
| EARLY_STEP_ERROR | ... if the held-out error is below this |
| SINGLE_SPLIT_ROWS | distinct rows beyond which a single split and successive halving replace folds |
| VALIDATION_ROWS | most validation rows; also at most 1/10 of all, 1/5 below TENTH_VALIDATION_ROWS rows |
| FIRST_VALIDATION_ROWS | validation rows of the first stage on the host |
| FIRST_ROWS | rows of the first stage on the host; FIRST_ROWS_DEVICE on an accelerator |
| MAX_ROWS_HOST | rows of the last stage on the host; on an accelerator as many as fits are exact |
| MAX_ROWS_BEFORE_LEAVES | rows of the last stage on an accelerator if one fit cannot hold all rows |
| RELEARN_ROWS | rows up to which the metric is relearned from the start, not only updated further |
| SIZE_FACTOR | ratio of the sizes of consecutive stages |
| FIRST_KEEP_FACTOR | candidates within this factor of the best continue after the first stage, KEEP_FACTOR later |
| MAX_CANDIDATES | most candidates that continue |
| UPDATES_PER_SIZE | metric updates at each larger size; they end when they are significantly worse or do not help |
| SIZE_TUNING_GAIN | at larger sizes: smallest relative gain for which bandwidth or ridge move |
| ROTATIONS_PER_SIZE | most rotations of directions at each size |
| ROTATION_FACTOR | a rotation is used if it reduces the error below this share |
| ROTATION_Z | standard errors by which a rotation must be better if there is no pilot sample |
| LEADING_SHARE | share of the trace of a metric held by the leading directions that are rotated first |
| RETUNE_FACTOR | bandwidth and ridge are tuned again if an update from all rows reduces the error below this share |
| MIN_ITERATIVE_RIDGE | smallest relative ridge of iterative fits on an accelerator; below, they need many steps |
| EXPENSIVE_ROWS_DEVICE | rows from which fits on an accelerator are as expensive as any on the host: fewer are made |
| HALVED_ROWS_DEVICE | rows from which bandwidth and ridge are tuned on half of them on an accelerator |
| EXACT_ROWS | rows up to which one factorization is used on the host; EXACT_ROWS_DEVICE on an accelerator |
"""

ENCODING_SEARCH_ROWS = 400
AVERAGING_ROWS, AVERAGING_Z = 400, 2.0
HEAVY_KURTOSIS, MIN_RESIDUAL_SHARE, CLIP_DEVIATIONS, MIN_CLIPPED = 8.0, 0.1, 3.0, 5
PILOT_ROWS = 400
DROP_FACTOR = 2.0
WORTH_ANOTHER_UPDATE = 0.99
WITHIN_REACH = 1.25
EXPLAINS_NOTHING, EXPLAINS_MUCH = 0.9, 0.6
PATIENCE = 4
SLOW_PATIENCE = 2
SLOW_POWER = 0.6
SLOW_START_FACTOR = 1.1
COMPETITIVE_FACTOR = 1.3
TUNING_GAIN, FINAL_TUNING_GAIN = 1e-2, 1e-4
TAKEOVER_FACTOR = 0.98
NOISE_FLOOR = 2.0
SCREENING_COLUMNS = 300
SCREENING_FACTOR = 0.9
MAX_LEARNING_RIDGE = 0.1
FOLDS = 3
TWO_FOLD_ROWS = 600
HALVES_ROWS = 1000
FINAL_FACTOR, FINAL_CANDIDATES = 1.05, 4
EARLY_STEP_ROWS, LAST_STEPS, EARLY_STEP_ERROR = 1200, 2, 0.1
SINGLE_SPLIT_ROWS = 3000
VALIDATION_ROWS, FIRST_VALIDATION_ROWS, TENTH_VALIDATION_ROWS = 5000, 1000, 10_000
FIRST_ROWS, FIRST_ROWS_DEVICE = 1500, 4096
MAX_ROWS_HOST = 4000
MAX_ROWS_BEFORE_LEAVES = 32_768
RELEARN_ROWS = 20_000
SIZE_FACTOR = 4
FIRST_KEEP_FACTOR, KEEP_FACTOR = 1.1, 1.02
MAX_CANDIDATES = 3
UPDATES_PER_SIZE = 3
SIZE_TUNING_GAIN = 1e-3
ROTATIONS_PER_SIZE, ROTATION_FACTOR = 3, 0.999
LEADING_SHARE = 0.95
ROTATION_Z = 2.0
EXPENSIVE_ROWS_DEVICE, HALVED_ROWS_DEVICE = 16_000, 20_000
EXACT_ROWS, EXACT_ROWS_DEVICE = 8000, 60_000
MIN_ITERATIVE_RIDGE = 3e-3
RETUNE_FACTOR = 0.95

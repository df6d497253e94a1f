"""The numbers by which the search decides. Errors are shares of the variance that is not explained.

| name | what it decides |
|---|---|
| LOOK | rows on which a short search says how the table is read (`first_look`) |
| FEW | rows up to which candidates are averaged that are not worse than the best by APART standard errors |
| HEAVY | kurtosis of residuals above which labels are heavy-tailed, where they hold MATTERS of the variance at least |
| KEPT | clipped labels lie within so many deviations (1.48 medians) of held-out predictions, SEVERAL at least beyond |
| FIRST_LOOK_ROWS | rows on which bandwidth and ridge of a plain kernel are looked for first, where there are many |
| FAR_BEHIND | who is beyond this factor of the best there, falling once more as one update made it fall, stays out |
| WORTH_ANOTHER | an update is worth a further one if it brings the error below this share of the best before it |
| WITHIN_REACH | a kernel goes on if its error, falling once more as it just fell, is within this factor of the best |
| EXPLAINS_NOTHING | above this error a plain kernel is said to explain nothing |
| EXPLAINS_MUCH | below this error another kernel is said to explain much |
| PATIENCE | updates of a kernel that explains nothing, while none explains much, before it may be given up |
| SLOW_PATIENCE | slow updates get so many before they are judged |
| SLOW_POWER | power of the AGOP in slow updates, which keep inputs of little influence |
| WORTH_SLOWING | slow updates are made where the metric they start from is within this factor of the best error |
| COMES_NEAR | a kernel, at the bandwidth and ridge of fewer rows, is looked at closely within this factor of the best |
| CLOSE | where another kernel tries a metric, bandwidth or ridge move if the error falls by more than this share |
| CLOSEST | the same for the last fit |
| TAKES_OVER | another kernel, or slow updates, take a metric over if their error is below this share |
| NOISE_FLOOR | multiple of the median taken off what slow updates have found: inputs that do not matter go at last |
| SCREENED | columns from which on the first update of a diagonal metric may take that noise off |
| PAYS_MUCH | where that brings the error below this share, all columns are not tried beside them |
| LEARNING_RIDGE | the largest ridge with which gradients are taken: a fit shrunk to nothing has none |
| FOLDS | so many folds below MANY_ROWS rows, two from there on |
| MANY | from so many distinct rows on one split judges instead of folds, and choices are made again at larger sizes |
| JUDGING | so many rows judge: at most, and at most a tenth of all, a fifth where there are fewer than TEN_THOUSAND |
| RACE_JUDGING | so many of them in the race on the host |
| RACE | rows all candidates are first tried on: on the host, on an accelerator |
| GROWN | rows up to which choices are made again, on the host; an accelerator goes as far as fits are exact |
| AGAIN | rows up to which the metric is learned from the beginning again, not only learned on |
| GROWTH | from one size to the next |
| STILL_IN | a candidate whose error is within this factor of the best is tried at the next size, STILL_LATER then on |
| CONTENDERS | at most so many |
| UPDATES | of a metric at each larger size, as long as judges do not call them worse; two that do not pay end it |
| WORTH_MOVING | at larger sizes bandwidth or ridge move if that takes more than this share off the error |
| TURNS | at most so many times directions are turned at a size |
| WORTH_TURNING | a turn is taken if it brings the error below this share |
| SURELY | standard errors by which a turn must be better where there are no more rows than a first look takes |
| NEARLY_ALL | of the trace of a metric: directions beyond are left out where that helps a turn |
| OTHER_PLACE | an update from all rows that brings the error below this share asks for another bandwidth and ridge |
| SOFT_RIDGE | iterations on an accelerator need a relative ridge of at least this: below, they are many |
| EXACT | rows up to which a fit is one factorization on the host; on an accelerator EXACT_DEVICE, if they fit |
"""

LOOK = 400
FEW, APART = 400, 2.0
HEAVY, MATTERS, KEPT, SEVERAL = 8.0, 0.1, 3.0, 5
FIRST_LOOK_ROWS = 400
FAR_BEHIND = 2.0
WORTH_ANOTHER = 0.99
WITHIN_REACH = 1.25
EXPLAINS_NOTHING, EXPLAINS_MUCH = 0.9, 0.6
PATIENCE = 4
SLOW_PATIENCE = 2
SLOW_POWER = 0.6
WORTH_SLOWING = 1.1
COMES_NEAR = 1.3
CLOSE, CLOSEST = 1e-2, 1e-4
TAKES_OVER = 0.98
NOISE_FLOOR = 2.0
SCREENED = 300
PAYS_MUCH = 0.9
LEARNING_RIDGE = 0.1
FOLDS = 3
MANY_ROWS = 600
MANY = 3000
JUDGING, RACE_JUDGING, TEN_THOUSAND = 5000, 1000, 10_000
RACE, RACE_DEVICE = 1500, 4096
GROWN = 4000
AGAIN = 20_000
GROWTH = 4
STILL_IN, STILL_LATER = 1.1, 1.02
CONTENDERS = 3
UPDATES = 3
WORTH_MOVING = 1e-3
TURNS, WORTH_TURNING = 3, 0.999
NEARLY_ALL = 0.95
SURELY = 2.0
EXACT, EXACT_DEVICE = 8000, 60_000
SOFT_RIDGE = 1e-3
OTHER_PLACE = 0.95

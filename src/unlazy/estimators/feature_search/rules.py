"""The numbers by which the search decides. Errors are shares of the variance that is not explained.

| name | what it decides |
|---|---|
| FIRST_LOOK_ROWS | rows on which bandwidth and ridge of a plain kernel are looked for first, where there are many |
| WORTH_ANOTHER | an update is worth a further one if it brings the error below this share of the best before it |
| WITHIN_REACH | a kernel goes on if its error, falling once more as it just fell, is within this factor of the best |
| EXPLAINS_NOTHING | above this error a plain kernel is said to explain nothing |
| PATIENCE | updates that such a kernel makes before it may be given up: metrics start slowly |
| SLOW_PATIENCE | slow updates get so many before they are judged |
| SLOW_POWER | power of the AGOP in slow updates, which keep inputs of little influence |
| WORTH_SLOWING | slow updates are made where the metric they start from is within this factor of the best error |
| TAKES_OVER | another kernel, or slow updates, take a metric over if their error is below this share |
| NOISE_FLOOR | multiple of the median taken off what slow updates have found: inputs that do not matter go at last |
| LEARNING_RIDGE | the largest ridge with which gradients are taken: a fit shrunk to nothing has none |
| FOLDS | so many folds below MANY_ROWS rows, two from there on |
"""

FIRST_LOOK_ROWS = 400
WORTH_ANOTHER = 0.99
WITHIN_REACH = 1.25
EXPLAINS_NOTHING = 0.9
PATIENCE = 4
SLOW_PATIENCE = 2
SLOW_POWER = 0.6
WORTH_SLOWING = 1.1
TAKES_OVER = 0.98
NOISE_FLOOR = 2.0
LEARNING_RIDGE = 0.1
FOLDS = 3
MANY_ROWS = 600

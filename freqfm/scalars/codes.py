"""Integer codes and slots by which components speak to compiled code.

A component is data by the time a kernel sees it: a code that is switched on once per row, and
a short array of hyper-parameters whose slots are named here.
"""

# Losses.
LOG_LOSS = 0
SQUARED_ERROR = 1

# Steps: how a row moves along its gradient.
STEP_SGD = 0
STEP_ADAGRAD = 1
STEP_ROWWISE_ADAGRAD = 2
STEP_ADAM = 3

# Rates: where a row's learning rate comes from.
RATE_CONSTANT = 0  # the same for every row
RATE_GIVEN = 1  # one number per row, fixed before training
RATE_COUNTED = 2  # from a counter per row that training itself advances

# What a counter counts.
COUNT_SAMPLES = 0
COUNT_BATCHES = 1

# Slots of the hyper-parameter array (float64).
LEARNING_RATE = 0
MAX_STEP = 1
EXPONENT = 2
CURVATURE_CAP = 3
EPSILON = 4
BETA_1 = 5
BETA_2 = 6
N_HYPER = 7

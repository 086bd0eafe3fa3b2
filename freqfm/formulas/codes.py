"""Integer codes and array slots by which components configure compiled code.

A kernel receives a component as data: an integer code, on which it branches once per row, and a
short array of hyper-parameters, whose slots are named here.
"""

# Losses.
LOG_LOSS = 0
SQUARED_ERROR = 1
CUSTOM_LOSS = 2  # a custom formula, compiled into a variant of the kernel

# Steps: how a row moves along its gradient.
STEP_SGD = 0
STEP_ADAGRAD = 1
STEP_ROWWISE_ADAGRAD = 2
STEP_ADAM = 3
STEP_STORE = 4  # no step: the gradient is stored as the row's first state
STEP_CUSTOM = 5  # a custom formula, compiled into a variant of the kernel
STEPS = STEP_SGD, STEP_ADAGRAD, STEP_ROWWISE_ADAGRAD, STEP_ADAM, STEP_STORE, STEP_CUSTOM

# Rates: where a row's learning rate comes from.
RATE_CONSTANT = 0  # the same for every row
RATE_GIVEN = 1  # one number per row, fixed before training
RATE_COUNTED = 2  # from a counter per row, which training advances

# Units of counters.
COUNT_SAMPLES = 0
COUNT_BATCHES = 1

# Weight decay: which rows a batch shrinks.
DECAY_NONE = 0
DECAY_BATCH = 1  # the rows it touches, as often as it touches them
DECAY_FULL = 2  # every row of the table

# How a row catches up on the steps of batches that did not touch it.
CATCH_UP_NONE = 0
CATCH_UP_FACTOR = 1  # in one multiplication, by the power of a factor
CATCH_UP_REPLAY = 2  # step by step

# Which negatives a batch uses.
NEGATIVES_SHARED = 0  # one list for the whole batch
NEGATIVES_SEPARATE = 1  # a list for each positive
NEGATIVES_IN_BATCH = 2  # the positives of the whole batch
NEGATIVES_FULL = 3  # every item
NEGATIVES_DRAWN = 4  # a list for each row, drawn for the row's user

# Slots of the hyper-parameter array (float64).
LEARNING_RATE = 0
MAX_STEP = 1
EXPONENT = 2
CURVATURE_CAP = 3
EPSILON = 4
BETA_1 = 5
BETA_2 = 6
N_HYPER = 7

"""What numba does before it first compiles; forked processes need not do it again."""

import numba

numba.njit(lambda x: x + 1)(1)

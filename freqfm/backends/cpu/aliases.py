"""Alias tables: a draw from any distribution by one look at a table."""

from freqfm._jit import ONE, kernel


@kernel
def build_aliases(starts, weights, thresholds, aliases, stack):
    """Fill the alias tables of cells whose items stand between ``starts``.

    In: ``weights`` (n,), float64, changed. Out: ``thresholds`` (n,), float32, and ``aliases`` (n,),
    int32, which are positions. ``stack`` (n,), int32, is scratch.
    """
    for cell in range(starts.shape[0] - 1):
        begin = starts[cell]
        end = starts[cell + 1]
        total = 0.0
        for j in range(begin, end):
            total += weights[j]
        n_small = 0  # from the front of the stack
        n_large = 0  # from its end
        for j in range(begin, end):
            weights[j] *= (end - begin) / total
            thresholds[j] = ONE
            aliases[j] = j
            if weights[j] < 1.0:
                stack[begin + n_small] = j
                n_small += 1
            else:
                n_large += 1
                stack[end - n_large] = j
        while n_small > 0 and n_large > 0:
            n_small -= 1
            small = stack[begin + n_small]
            large = stack[end - n_large]
            thresholds[small] = weights[small]
            aliases[small] = large
            weights[large] -= 1.0 - weights[small]
            if weights[large] < 1.0:
                n_large -= 1
                stack[begin + n_small] = large
                n_small += 1

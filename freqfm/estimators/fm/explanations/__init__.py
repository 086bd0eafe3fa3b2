"""Why a factorization machine gives a score: contributions, importances and interactions."""

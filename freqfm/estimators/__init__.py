"""Layer 3: the estimators, which combine the components."""

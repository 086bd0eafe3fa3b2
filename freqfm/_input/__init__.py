"""What users give, turned into arrays: checks, tables of interactions, ids, columns, rows."""

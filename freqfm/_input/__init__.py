"""Input of users as arrays: checks, tables of interactions, ids, columns, rows."""

"""Backends: what runs the models' loops over data, one folder for each kind of hardware."""

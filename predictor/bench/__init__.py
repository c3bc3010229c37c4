"""Measures the predictor on functions that are really run: `make bench-predictor`."""

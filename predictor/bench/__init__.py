"""Measures the predictor on functions that are really run: `make bench-predictor`, and on 10,000 of them."""

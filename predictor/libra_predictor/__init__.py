"""Predicts what an invocation of a function will use, and serves it through KServe."""

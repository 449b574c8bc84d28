"""Benchmarks: each prints rows of one table; none asserts a time. `make bench` runs all of them."""

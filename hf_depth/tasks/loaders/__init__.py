"""Loaders of benchmarks whose files are no plain tables, one module each."""

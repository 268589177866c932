"""Loaders, one module for each kind of files that tasks are read from."""

"""The arguments of the example scripts."""

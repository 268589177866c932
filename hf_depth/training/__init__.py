"""Trainers, their arguments and callbacks, checkpoints, model cards, and whole runs."""

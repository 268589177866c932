"""Checkpoints: written as a whole, found again, of one run; how that stops on a signal, and is alone in its folder."""

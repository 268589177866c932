"""DEPTH and T5: configuration and modeling, which go to the Hub as they are, and loading."""

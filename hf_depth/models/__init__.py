"""DEPTH and T5: configuration, modeling (both shipped to the Hub as they are) and loading."""

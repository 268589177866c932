"""Writing, checking and resuming checkpoints, stopping a run on a signal, and locking its folder."""

"""What a task is (`DATASET_VALS`), where its examples come from, and how they become token ids."""

"""Environment of all tests: no network, one thread per process. Set here, before a test module imports torch."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # otherwise each attempt to reach the Hub waits for half a minute
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

"""
Environment of all tests: no network, one thread per process. Set here, before a test module imports torch.
"""

import gc
import os
import sys

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # otherwise each attempt to reach the Hub waits for half a minute
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

if sys.platform != "linux":  # Triton is for Linux alone
    collect_ignore = ["models/test_triton_depth.py"]

# The same examples in every run, and no deadline for one: a busy machine must not fail a test.
settings.register_profile("hf_depth", deadline=None, derandomize=True)
settings.load_profile("hf_depth")


def pytest_collection_finish():
    """What is imported by now stays: the collections of garbage, with which each training begins, pass over it."""
    gc.freeze()

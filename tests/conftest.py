"""
Environment of all tests: no network, one thread per process. Set here, before a test module imports torch.
"""

import gc
import os
import tempfile

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # otherwise each attempt to reach the Hub waits for half a minute
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

# One cache of data sets for all processes of a run; that of the user may hold what another version has made.
if "HF_DEPTH_TEST_CACHE" not in os.environ:  # the workers of xdist have that of the process that started them
    CACHE = tempfile.TemporaryDirectory(prefix="hf_depth_test_cache_")
    os.environ["HF_DEPTH_TEST_CACHE"] = CACHE.name
os.environ["HF_DATASETS_CACHE"] = os.environ["HF_DEPTH_TEST_CACHE"]

# The same examples in every run, and no deadline for one: a busy machine must not fail a test.
settings.register_profile("hf_depth", deadline=None, derandomize=True)
settings.load_profile("hf_depth")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """No collection of garbage looks at what is being imported, which stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def small_heap():
    """
    What is there when a module of tests begins stays: no collection of garbage, as at the beginning of each training,
    looks at it again.
    """
    gc.collect()
    gc.freeze()

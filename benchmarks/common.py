"""What the benchmarks share: T5 v1.1 of a size, its FLOPs, and the time of candidates that take turns."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import T5Config

from hf_depth import DepthConfig

# d_model, d_ff, layers of encoder and of decoder, heads: those of T5 v1.1, and three that a CPU can do.
SIZES = {
    "small": (512, 1024, 8, 6),
    "base": (768, 2048, 12, 12),
    "large": (1024, 2816, 24, 16),
    "xl": (2048, 5120, 24, 32),
    "384": (384, 1024, 4, 6),
    "256": (256, 704, 4, 4),
    "tiny": (16, 32, 1, 2),
}


def make_config(
    config_class: type[T5Config], size: str = "base", attention: str = "sdpa", **settings: Any
) -> T5Config:
    """T5 v1.1 without dropout, for DEPTH with sentence tokens at the end of the vocabulary."""
    of_size = dict(zip(("d_model", "d_ff", "num_layers", "num_heads"), SIZES[size], strict=True))
    config = config_class(
        **{"vocab_size": 32_128, "d_kv": 64} | of_size | settings,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    if isinstance(config, DepthConfig):
        config.first_sentence_token_id, config.eosen_token_id = config.vocab_size - 28, config.vocab_size - 8
    config._attn_implementation = attention
    return config


def training_flops(config: T5Config, source_length: int, target_length: int) -> int:
    """
    FLOPs of an example in training, the same for T5 and DEPTH, which differ in masks only.

    They are those of the matrix products, two for each multiplication and addition; the backward pass takes twice
    those of the forward pass. That is the estimate of 6 FLOPs for each parameter and token (Kaplan et al. 2020, arXiv
    2001.08361, section 2.1), corrected for an encoder-decoder: the tokens of the encoder meet the parameters of the
    encoder and the keys and values of the cross-attention, those of the decoder the rest and the output head. The
    products of queries with keys and of weights with values come on top (Chowdhery et al. 2022, arXiv 2204.02311,
    appendix B). Masked positions are counted, recomputation (`--gradient_checkpointing`) is not.
    """
    inner = config.num_heads * config.d_kv
    projection = config.d_model * inner  # of queries, of keys, of values, or of the output
    feed_forward = (3 if config.is_gated_act else 2) * config.d_model * config.d_ff
    source, target = source_length, target_length
    encoder_layer = (4 * projection + feed_forward) * source + 2 * inner * source * source
    decoder_layer = (
        (4 * projection + 2 * projection + feed_forward) * target  # self-attention, cross-attention without:
        + 2 * projection * source  # keys and values of the encoder's states
        + 2 * inner * target * (target + source)
    )
    products = config.num_layers * encoder_layer + config.num_decoder_layers * decoder_layer
    products += config.d_model * config.vocab_size * target
    return 3 * 2 * products


def read_clock(device: str | torch.device = "cpu", num_threads: int = 1) -> float:
    """Seconds since some moment: of wall-clock time once a GPU has finished, or of CPU time of a single thread."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() if num_threads == 1 else time.perf_counter()


def take_turns(
    candidates: Mapping[str, Callable[[int], Any]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = read_clock,
) -> dict[str, list[float]]:
    """
    Seconds of each candidate in each round after the warm-up. They take turns, so that other load affects all alike,
    and each is called with the number of the round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warmup + rounds):
        for name, candidate in candidates.items():
            started = clock()
            candidate(number)
            seconds[name].append(clock() - started)
    return {name: values[warmup:] for name, values in seconds.items()}

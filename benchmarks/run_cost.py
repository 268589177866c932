"""
What a pre-training run costs: steps, tokens, FLOPs, disk, and hours as a function of a measured rate.

    python benchmarks/run_cost.py                                           # T5 v1.1 base, C4, the steps of the paper
    python benchmarks/run_cost.py --size small --global_batch 128 --max_steps 15000 --target_length 256
    python benchmarks/run_cost.py --examples_per_second 80 160              # hours, by the rate that you measured

A rate is that of the whole run, all devices together: `train_samples_per_second` in `all_results.json` of a run. An
upper limit of it, without data and communication, is what `benchmarks/train_step.py` measures.

FLOPs are those of the matrix products, two for each multiplication and addition; the backward pass takes twice those
of the forward pass. That is the estimate of 6 FLOPs for each parameter and token (Kaplan et al. 2020, arXiv
2001.08361, section 2.1), corrected for an encoder-decoder: the tokens of the encoder meet the parameters of the
encoder and the keys and values of the cross-attention, those of the decoder the rest and the output head. The products
of queries with keys and of weights with values, quadratic in the lengths, come on top (Chowdhery et al. 2022, arXiv
2204.02311, appendix B). Masked positions are counted, recomputation (`--gradient_checkpointing`) is not.
"""

import argparse

import torch
from transformers import T5Config

from hf_depth.models.configuration_depth import DepthConfig
from hf_depth.models.modeling_depth import DepthForConditionalGeneration

# d_model, d_ff, layers of encoder and of decoder, heads: the published configurations of T5 v1.1.
SIZES = {
    "small": (512, 1024, 8, 6),
    "base": (768, 2048, 12, 12),
    "large": (1024, 2816, 24, 16),
    "xl": (2048, 5120, 24, 32),
}
BYTES_OF_CHECKPOINT = 12  # float32 parameters and two moments of AdamW, for each parameter


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--source_length", type=int, default=512)
    parser.add_argument("--target_length", type=int, default=512)
    parser.add_argument("--text_length", type=int, default=512, help="Tokens of text in an example.")
    parser.add_argument("--global_batch", type=int, default=200, help="Examples in a step, of all devices.")
    parser.add_argument("--max_steps", type=int, default=1_000_000)
    parser.add_argument("--corpus_tokens", type=float, default=156e9, help="Default: C4 en.")
    parser.add_argument("--corpus_gigabytes", type=float, default=305.0, help="On disk, compressed. Default: C4 en.")
    parser.add_argument("--save_total_limit", type=int, default=3)
    parser.add_argument("--examples_per_second", type=float, nargs="*", default=[], help="Measured rates.")
    return parser.parse_args()


def depth_config(size: str) -> DepthConfig:
    """T5 v1.1 of a size, with sentence tokens."""
    d_model, d_ff, num_layers, num_heads = SIZES[size]
    return DepthConfig(
        vocab_size=32_128,
        d_model=d_model,
        d_kv=64,
        d_ff=d_ff,
        num_layers=num_layers,
        num_heads=num_heads,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        first_sentence_token_id=32_100,
        eosen_token_id=32_120,
    )


def training_flops(config: T5Config, source_length: int, target_length: int) -> int:
    """
    FLOPs of an example in training, forward and backward; of T5 and DEPTH alike, which differ in masks only.

    >>> f"{training_flops(depth_config('base'), 512, 114):.2e}"
    '4.26e+11'
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


def num_parameters(config: DepthConfig) -> int:
    with torch.device("meta"):
        return DepthForConditionalGeneration(config).num_parameters()


def cost_table(args: argparse.Namespace, config: DepthConfig) -> list[tuple[str, str]]:
    """What is to be known of a run, without any rate."""
    parameters = num_parameters(config)
    flops = training_flops(config, args.source_length, args.target_length)
    examples = args.global_batch * args.max_steps
    checkpoint = parameters * BYTES_OF_CHECKPOINT
    return [
        ("parameters", f"{parameters / 1e6:,.1f} M"),
        ("tokens in a step", f"{args.global_batch * (args.source_length + args.target_length):,} with padding"),
        ("tokens of text read", f"{examples * args.text_length / 1e9:,.1f} billion at most"),
        ("passes over the corpus", f"{examples * args.text_length / args.corpus_tokens:,.2f}"),
        ("steps of one pass", f"{args.corpus_tokens / args.text_length / args.global_batch:,.0f}"),
        ("FLOPs of an example", f"{flops:.3g}"),
        ("FLOPs of the run", f"{flops * examples:.3g}"),
        ("disk: the corpus as published", f"{args.corpus_gigabytes:,.0f} GB"),
        ("disk: token ids of one pass, two bytes each", f"{args.corpus_tokens * 2 / 1e9:,.0f} GB"),
        ("disk: a checkpoint", f"{checkpoint / 1e9:,.2f} GB"),
        (
            f"disk: {args.save_total_limit} checkpoints and one being written",
            f"{checkpoint * (args.save_total_limit + 1) / 1e9:,.1f} GB",
        ),
    ]


def main() -> None:
    args = parse_args()
    config = depth_config(args.size)
    flops = training_flops(config, args.source_length, args.target_length)
    print(f"| {args.size}, {args.max_steps:,} steps of {args.global_batch} | |\n|---|---|")
    for row in cost_table(args, config):
        print(f"| {row[0]} | {row[1]} |")
    if args.examples_per_second:
        print("\n| examples/s | TFLOP/s | hours |\n|---|---|---|")
    for rate in args.examples_per_second:
        hours = args.global_batch * args.max_steps / rate / 3600
        print(f"| {rate:g} | {rate * flops / 1e12:,.3g} | {hours:,.1f} |")


if __name__ == "__main__":
    main()

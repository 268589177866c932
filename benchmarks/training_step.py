"""
Time of a DEPTH training step beside the same step of T5: the cost of the hierarchical masks.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --d_model 256 --batch_size 16 --source_length 256 --target_length 128

Both models have the same size and both batches the same shapes, padding included; a step is forward, backward and
AdamW. The steps alternate (T5, DEPTH, T5, …), so that other load on the machine affects both. On a CPU the time is CPU
time of the process, which other load affects less than wall-clock time. The goal is a ratio of at most 1.10.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from transformers import PreTrainedModel, T5Config

from hf_depth.models.configuration_depth import DepthConfig
from hf_depth.models.modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--source_length", type=int, default=512)
    parser.add_argument("--target_length", type=int, default=256)
    parser.add_argument("--d_model", type=int, default=512)
    parser.add_argument("--d_kv", type=int, default=64)
    parser.add_argument("--d_ff", type=int, default=1024)
    parser.add_argument("--num_heads", type=int, default=6)
    parser.add_argument("--num_layers", type=int, default=4, help="Of the encoder, and as many of the decoder.")
    parser.add_argument("--vocab_size", type=int, default=32128)
    parser.add_argument("--sentence_length", type=int, default=28, help="Mean number of tokens of a sentence.")
    parser.add_argument("--attn_implementation", choices=["eager", "sdpa", "flex_attention"], default="sdpa")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num_threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--warmup_steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def random_ids(
    batch_size: int, max_length: int, sentence_length: int, config: DepthConfig, pad: int, rng: np.random.Generator
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    Sequences of sentences as in pre-training, of 60 to 100 % of `max_length`; the first has the full length.

    Returns:
        `tuple[torch.LongTensor, torch.LongTensor]`, each of shape `(batch_size, max_length)`: the ids for DEPTH, and
        those for T5, which have another token in the place of each sentence token and `<eosen>` and the same padding
        (`pad`).
    """
    depth = np.full((batch_size, max_length), pad)
    lengths = rng.integers(int(0.6 * max_length), max_length + 1, batch_size)
    lengths[0] = max_length
    first = config.first_sentence_token_id
    for row, length in zip(depth, lengths, strict=True):
        row[:length] = rng.integers(3, min(first, config.eosen_token_id), length)
        num_sentences = int(np.clip(length // sentence_length, 1, config.num_sentence_tokens))
        starts = np.sort(rng.choice(np.arange(1, length // 3), num_sentences - 1, replace=False)) * 3
        row[np.append(0, starts)] = config.eosen_token_id
        row[np.append(0, starts) + 1] = first + rng.permutation(config.num_sentence_tokens)[:num_sentences]
        row[length - 1] = config.eos_token_id
    plain = np.where(depth >= min(first, config.eosen_token_id), 3, depth)
    return torch.from_numpy(depth), torch.from_numpy(plain)


def make_batches(args: argparse.Namespace, config: DepthConfig) -> tuple[dict, dict]:
    """The batches of DEPTH and of T5: equal shapes and lengths, with and without sentence tokens."""
    rng = np.random.default_rng(args.seed)
    sources = random_ids(args.batch_size, args.source_length, args.sentence_length, config, config.pad_token_id, rng)
    targets = random_ids(args.batch_size, args.target_length, args.sentence_length // 2, config, -100, rng)
    return tuple(
        {
            "input_ids": source.to(args.device),
            "attention_mask": (source != config.pad_token_id).to(args.device),
            "labels": target.to(args.device),
        }
        for source, target in zip(sources, targets, strict=True)
    )


def training_step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: dict) -> float:
    """Seconds of one step."""
    started = read_clock(batch)
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return read_clock(batch) - started


def read_clock(batch: dict) -> float:
    """Seconds since some moment: CPU time of the process, or wall-clock time once a GPU has finished its work."""
    if not batch["input_ids"].is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    size = {name: getattr(args, name) for name in ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_layers")}
    # Flex attention does not support dropout.
    size["dropout_rate"] = 0.0 if args.attn_implementation == "flex_attention" else 0.1
    size |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    sentence_ids = {"first_sentence_token_id": args.vocab_size - 28, "eosen_token_id": args.vocab_size - 8}
    t5_config, depth_config = T5Config(**size), DepthConfig(**size, **sentence_ids)
    depth_batch, t5_batch = make_batches(args, depth_config)
    runs = []
    for model_class, config, batch in (
        (T5ForConditionalGeneration, t5_config, t5_batch),
        (DepthForConditionalGeneration, depth_config, depth_batch),
    ):
        config._attn_implementation = args.attn_implementation
        model = model_class(config).to(args.device).train()
        runs.append((model, torch.optim.AdamW(model.parameters(), lr=1e-4), batch))

    seconds = ([], [])
    for step in range(args.warmup_steps + args.steps):
        for (model, optimizer, batch), times in zip(runs, seconds, strict=True):
            elapsed = training_step(model, optimizer, batch)
            if step >= args.warmup_steps:
                times.append(elapsed)

    t5, depth = (statistics.median(times) for times in seconds)
    ratios = [ours / theirs for theirs, ours in zip(*seconds, strict=True)]
    print(
        f"{sum(p.numel() for p in runs[1][0].parameters()) / 1e6:.1f} M parameters, {args.attn_implementation}, "
        f"batch {args.batch_size} x ({args.source_length}, {args.target_length}), torch {torch.__version__}, "
        f"{args.num_threads} threads, {args.device}, median of {args.steps} steps"
    )
    print(f"T5     {t5:8.3f} s/step")
    print(f"DEPTH  {depth:8.3f} s/step")
    print(f"ratio  {statistics.median(ratios):8.3f}  (goal: at most 1.10; {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()

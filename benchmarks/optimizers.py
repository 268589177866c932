"""
Time of a step of the optimizers, as a ratio to torch's AdamW with `foreach`, at the shapes of a T5-base.

    python benchmarks/optimizers.py
    python benchmarks/optimizers.py --device cuda --num_layers 12

The optimizers take turns in one process, so that other load on the machine affects all of them. On a CPU the time is
CPU time of the process; on a GPU it is the wall-clock time until the device has finished, and a step of AdamWScale
that waits for the device in between is an error. Figures are medians over the steps.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import Adafactor

from hf_depth.training.optimizers import AdamWScale, MuonWithAdamW


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d_model", type=int, default=768)
    parser.add_argument("--d_ff", type=int, default=2048)
    parser.add_argument("--num_layers", type=int, default=2, help="of encoder and of decoder; a T5-base has 12")
    parser.add_argument("--vocab_size", type=int, default=32128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    shapes = t5_shapes(args.d_model, args.d_ff, args.num_layers, args.vocab_size)
    optimizers = {
        "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3, foreach=True),
        "adamw_scale": lambda params: AdamWScale(params, lr=1e-2),
        "adafactor": lambda params: Adafactor(params, scale_parameter=True, relative_step=True),
        "muon": muon,
    }
    total = sum(shape.numel() for shape in shapes)
    print(f"{len(shapes)} tensors, {total / 1e6:.1f} million parameters, {args.device}, {args.steps} steps")
    times = step_times({name: stepper(make, shapes, args.device) for name, make in optimizers.items()}, args.steps)
    base = statistics.median(times["adamw"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:12} {1e3 * median:9.2f} ms   ratio {median / base:.2f}")


def t5_shapes(d_model: int, d_ff: int, num_layers: int, vocab_size: int) -> list[torch.Size]:
    """Of a T5 1.1: two embeddings, attention and gated feed-forward layers, layer norms."""
    attention = [(d_model, d_model)] * 4 + [(d_model,)]
    feed_forward = [(d_ff, d_model)] * 2 + [(d_model, d_ff), (d_model,)]
    layers = num_layers * (3 * attention + 2 * feed_forward)
    return [torch.Size(shape) for shape in [(vocab_size, d_model)] * 2 + layers]


def muon(params: list[torch.nn.Parameter]) -> MuonWithAdamW:
    """Of all matrices but the two embeddings."""
    matrices = [p for p in params[2:] if p.ndim == 2]
    others = params[:2] + [p for p in params[2:] if p.ndim == 1]
    return MuonWithAdamW([{"params": matrices, "use_muon": True}, {"params": others}], lr=1e-3)


def stepper(make: Callable, shapes: list[torch.Size], device: str) -> Callable[[], float]:
    """A function that takes a step of an optimizer with parameters of its own; it returns the seconds."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter((torch.randn(shape, generator=generator) * 0.05).to(device)) for shape in shapes]
    for p in params:
        p.grad = torch.full_like(p, 1e-3)
    optimizer, is_cuda = make(params), torch.device(device).type == "cuda"
    clock = time.perf_counter if is_cuda else time.process_time
    waits = not isinstance(optimizer, AdamWScale)

    def step() -> float:
        started = clock()
        if not is_cuda:
            optimizer.step()
            return clock() - started
        torch.cuda.set_sync_debug_mode("default" if waits else "error")
        optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        return clock() - started

    return step


def step_times(steps: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each step, after one that is not counted, in which states are made."""
    times = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            seconds = step()
            if number > 0:
                times[name].append(seconds)
    return times


if __name__ == "__main__":
    main()

"""
Whether all implementations of attention compute the same on a device.

    python benchmarks/attention_check.py                # on a GPU if there is one: some minutes, most to compile
    python benchmarks/attention_check.py --device cpu --quick

T5 and DEPTH, padded and packed, in float32 and under bfloat16 autocast: loss and gradients of each implementation
against eager attention in float32. Then generation, and compiled steps. Each line comes when it is known, and a
failure does not stop the others; the exit status is 1 if there was one.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from common import make_config
from torch import nn
from transformers import PreTrainedModel, T5Config

from hf_depth import DepthConfig, DepthForConditionalGeneration, T5ForConditionalGeneration

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Of the difference of a loss, and of the relative error of a gradient (by norms).
TOLERANCE = {"bf16": 2e-2, "fp32": 1e-4}
GRADIENT_TOLERANCE = {"bf16": 0.1, "fp32": 1e-3}
SENTENCE = 25  # tokens
Batch = dict[str, torch.Tensor]
CONFIGS = {"depth": DepthConfig, "t5": T5Config}
SIZE = {"vocab_size": 512, "d_model": 128, "d_kv": 64, "d_ff": 256, "num_heads": 2, "num_layers": 2}
FIRST_SENTENCE_TOKEN, EOSEN = 484, 504


class Report:
    """Prints a line for each check, and counts those that failed."""

    def __init__(self, only: list[str] | None = None) -> None:
        self.only = only
        self.failures, self.began = 0, time.perf_counter()

    def check(self, name: str, function: Callable[..., tuple[bool, str]], *arguments: Any) -> None:
        """`function` says whether it is right, and what was found."""
        if self.only and not any(word in name for word in self.only):
            return
        try:
            is_right, found = function(*arguments)
        except Exception as error:
            is_right, found = False, f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        self.failures += not is_right
        verdict = "right" if is_right else "WRONG"
        print(f"{time.perf_counter() - self.began:6.1f} s  {verdict}  {name}: {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="Only one kind of batch, in float32, not compiled.")
    parser.add_argument("--only", nargs="+", help="Checks with one of these words in their names.")
    args = parser.parse_args()
    report = Report(args.only)
    device = torch.device(args.device)
    print(f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}")
    check_models(report, device, args.quick)
    sys.exit(report.failures > 0)


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    right = right.double()
    return ((found.double() - right).norm() / right.norm().clamp(min=1e-12)).item()


def check_models(report: Report, device: torch.device, quick: bool) -> None:
    """Loss and gradients of T5 and DEPTH by each implementation, against eager attention in float32."""
    attentions = ["sdpa", "depth_sdpa"]
    for kind, packed in product(CONFIGS, (False,) if quick else (False, True)):
        batch = make_batch(kind, packed, device)
        right = results_of_steps(kind, "eager", "fp32", batch)
        for attention, precision in product(attentions, ("fp32",) if quick else DTYPES):
            name = f"{kind}, {attention}, {'packed' if packed else 'padded'}, {precision}"
            report.check(name, compare_steps, right, kind, attention, precision, batch)
    report.check("generation", compare_generation, attentions, device)
    if quick:
        return
    batch = make_batch("depth", False, device)
    right = results_of_steps("depth", "eager", "fp32", batch)
    for mode, attention in product(("default", "reduce-overhead"), attentions):
        compiled = partial(torch.compile, mode=mode, fullgraph=True, dynamic=False)
        name = f"depth, {attention}, compiled by the mode {mode}, bf16"
        report.check(name, compare_steps, right, "depth", attention, "bf16", batch, compiled)


def make_model(kind: str, attention: str, device: torch.device) -> PreTrainedModel:
    torch.manual_seed(0)
    model_class = DepthForConditionalGeneration if kind == "depth" else T5ForConditionalGeneration
    return model_class(make_config(CONFIGS[kind], attention=attention, **SIZE)).to(device).train()


def make_batch(kind: str, packed: bool, device: torch.device) -> Batch:
    """Rows of sentences: padded, or of two examples each."""
    generator = torch.Generator().manual_seed(1)
    source, labels = (torch.randint(3, 450, (5, length), generator=generator) for length in (150, 70))
    if kind == "depth":
        for ids in (source, labels):
            ids[:, ::SENTENCE] = EOSEN
            ids[:, 1::SENTENCE] = FIRST_SENTENCE_TOKEN + torch.arange(len(range(1, ids.shape[1], SENTENCE)))
    batch = {"input_ids": source, "labels": labels}
    labels[2, -9:] = -100
    if packed:
        for name, ids, border in (("encoder", source, 75), ("decoder", labels, 50)):
            batch[f"{name}_segment_ids"] = (1 + (torch.arange(ids.shape[1]) >= border)).repeat(len(ids), 1)
    else:
        source[1, -30:] = 0
        batch["attention_mask"] = (source != 0).long()
    return {name: tensor.to(device) for name, tensor in batch.items()}


def results_of_steps(
    kind: str, attention: str, precision: str, batch: Batch, wrap: Callable = lambda module: module
) -> Batch:
    """Loss and gradients of a new model, of the third time: a graph is captured at the first two."""
    device = batch["labels"].device
    model = make_model(kind, attention, device)
    forward: nn.Module = wrap(model)
    for _ in range(3):
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = forward(**batch, use_cache=False).loss
        loss.backward()
    return {"loss": loss.detach().clone(), **{name: p.grad.clone() for name, p in model.named_parameters()}}


def compare_steps(right: Batch, kind: str, attention: str, precision: str, *arguments: Any) -> tuple[bool, str]:
    """A step of a model of its own against the results that are right."""
    torch._dynamo.reset()  # graphs of other models do not count among those of this one
    found = results_of_steps(kind, attention, precision, *arguments)
    difference = abs(found["loss"] - right["loss"]).item()
    errors = {name: relative_error(found[name], value) for name, value in right.items() if name != "loss"}
    worst = max(errors, key=lambda name: float("inf") if errors[name] != errors[name] else errors[name])
    is_right = difference <= TOLERANCE[precision] and errors[worst] <= GRADIENT_TOLERANCE[precision]
    return is_right, f"loss off by {difference:.1e}, the gradient of {worst} by {errors[worst]:.1e}"


def compare_generation(attentions: list[str], device: torch.device) -> tuple[bool, str]:
    """Twelve tokens by greedy search, the same by all implementations."""
    model, batch = make_model("depth", "eager", device).eval(), make_batch("depth", False, device)
    generated = {}
    for attention in ("eager", *attentions):
        model.set_attn_implementation(attention)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        generated[attention] = model.generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    others = [name for name, ids in generated.items() if not torch.equal(ids, generated["eager"])]
    return not others, f"other tokens than eager: {', '.join(others)}" if others else "the same tokens"


if __name__ == "__main__":
    main()

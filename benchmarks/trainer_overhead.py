r"""
What a trainer costs beside the step itself: the time of a step of `DepthTrainer.train()` and of stock
`Seq2SeqTrainer.train()` beside a bare loop around the same step.

    python benchmarks/trainer_overhead.py
    python benchmarks/trainer_overhead.py --d_model 768 --d_ff 2048 --num_layers 12 --num_heads 12 --batch_size 64 \
        --max_source_length 512 --bf16 --torch_compile
    python benchmarks/trainer_overhead.py --d_model 32 --d_ff 64 --num_layers 1 --steps 200  # little but overhead

All of them have the same model, collator, data loader, optimizer, schedule and clipping. At the end of each step of a
trainer the bare loop makes one of its own, so that other load on the machine affects both; logs are included. On a CPU
the time is CPU time of the process, on a GPU wall-clock time until the device has finished. The goal is a ratio of at
most 1.03.
"""

import argparse
import copy
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

import torch  # noqa: E402
from common import read_clock  # noqa: E402
from datasets import Dataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import (  # noqa: E402
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    get_cosine_schedule_with_warmup,
    set_seed,
)

from hf_depth import (  # noqa: E402
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    add_sentence_tokens,
    load_model,
    train_tokenizer,
)
from hf_depth.data.default_corpus import python_reference_documents  # noqa: E402
from hf_depth.data.objectives import Collator  # noqa: E402

SIZES = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 4, "num_heads": 4}
CLIPPING, RATE, LOGGING_STEPS, WARMUP_STEPS = 1.0, 1e-3, 20, 3  # the first steps do not count


def model_inputs(collator: Collator, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch without what only [`DepthTrainer`] reads."""
    return {name: values for name, values in collator(examples).items() if name != "num_cut_tokens"}


class BareLoop(TrainerCallback):
    """
    A training loop with nothing but the step. As a callback it times each step of a trainer, from the end of the one
    before, and makes one of its own after each.
    """

    def __init__(self, model: PreTrainedModel, data: Dataset, collator: Collator, args: argparse.Namespace):
        self.model = model.to(args.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, fused=True, weight_decay=0.0)
        self.schedule = get_cosine_schedule_with_warmup(self.optimizer, 0, WARMUP_STEPS + args.steps)
        self.device, self.bf16 = torch.device(args.device), args.bf16
        settings = {"drop_last": True, "pin_memory": self.device.type == "cuda"}  # as the trainers copy batches
        self.batches = iter(DataLoader(data, args.batch_size, collate_fn=partial(model_inputs, collator), **settings))
        self.forward = torch.compile(self.model) if args.torch_compile else self.model
        self.seconds: list[tuple[float, float]] = []  # of the trainer, of the bare loop
        self.ended = 0.0

    def on_step_end(self, args, state, control, **kwargs) -> None:
        began = read_clock(self.device)
        self.step()
        before, self.ended = self.ended, read_clock(self.device)
        if state.global_step > WARMUP_STEPS:
            self.seconds.append((began - before, self.ended - began))

    def step(self) -> None:
        batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in next(self.batches).items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.forward(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPING)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()


def measure(
    name: str, model: PreTrainedModel, data: Dataset, collator: Collator, args: argparse.Namespace
) -> list[tuple[float, float]]:
    """Seconds of each step of a trainer and of the bare loop beside it."""
    bare = BareLoop(copy.deepcopy(model), data, copy.deepcopy(collator), args)
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "output_dir": folder,
            "max_steps": WARMUP_STEPS + args.steps,
            "per_device_train_batch_size": args.batch_size,
            "train_sampling_strategy": "sequential",
            "dataloader_drop_last": True,
            "learning_rate": RATE,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0,
            "max_grad_norm": CLIPPING,
            "optim": "adamw_torch_fused",
            "bf16": args.bf16,
            "torch_compile": args.torch_compile,
            "logging_steps": LOGGING_STEPS,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": args.device == "cpu",
        }
        parts = {"train_dataset": data, "callbacks": [bare]}
        if name == "DepthTrainer":
            trainer = DepthTrainer(copy.deepcopy(model), DepthTrainingArguments(**settings), collator, **parts)
        else:
            stock = Seq2SeqTrainingArguments(**settings, remove_unused_columns=False)
            trainer = Seq2SeqTrainer(copy.deepcopy(model), stock, partial(model_inputs, collator), **parts)
        trainer.train()
    return bare.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--max_source_length", type=int, default=256)
    parser.add_argument("--vocab_size", type=int, default=32128)
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--torch_compile", action="store_true")
    parser.add_argument("--num_threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.num_threads)
    documents = python_reference_documents()
    tokenizer = add_sentence_tokens(train_tokenizer([each["text"] for each in documents], 2000, allow_fewer=True))
    set_seed(0)
    objective = DepthObjective(tokenizer, args.max_source_length)
    data = objective.prepare(Dataset.from_list(documents))
    number = (WARMUP_STEPS + args.steps) * args.batch_size
    data = data.select([row % len(data) for row in range(number)])  # one epoch
    sizes = {name: getattr(args, name) for name in SIZES} | {"vocab_size": max(args.vocab_size, len(tokenizer))}
    model = load_model(None, tokenizer, dropout_rate=0.1, **sizes)
    print(
        f"{model.num_parameters() / 1e6:.1f} M parameters, {args.batch_size} x {args.max_source_length} tokens, "
        f"{args.steps} steps, a log every {LOGGING_STEPS}, torch {torch.__version__}, {args.device}"
    )
    print("| trainer | ms per step | bare loop | ratio of medians | of means | overhead (ms) |")
    print("|---|---|---|---|---|---|")
    for name in ("DepthTrainer", "Seq2SeqTrainer"):
        seconds = measure(name, model, data, objective.collator(padding="max_length"), args)
        trainer, bare = zip(*seconds, strict=True)
        medians = statistics.median(trainer), statistics.median(bare)
        overhead = statistics.median(one - other for one, other in seconds)
        print(
            f"| {name} | {1e3 * medians[0]:.2f} | {1e3 * medians[1]:.2f} | {medians[0] / medians[1]:.3f} | "
            f"{sum(trainer) / sum(bare):.3f} | {1e3 * overhead:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

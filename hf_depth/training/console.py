"""What a run prints while it goes on: a line for each log, above transformers' bars if there are any."""

import logging
import sys

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerState

# The figures that are printed, and how. All others are in trainer_state.json and all_results.json.
FIGURES = {
    "loss": "loss {:.4g}",
    "sentence_loss": "sentence loss {:.4g}",
    "reconstruction_loss": "reconstruction loss {:.4g}",
    "learning_rate": "learning rate {:.2e}",
    "grad_norm": "grad norm {:.3g}",
    "tokens_per_second": "tokens/s {:,.0f}",
    "sentence_accuracy": "sentence accuracy {:.4f}",
    "order_exact_shuffled": "order exact shuffled {:.4f}",
    "with_metadata_loss": "with metadata loss {:.4g}",
    "attention_entropy": "attention entropy {:.2f}",
    "score": "score {:.4f}",
    "unparsed_fraction": "unparsed fraction {:.4f}",
    "runtime": "seconds {:,.0f}",
}
LEGEND = (
    "loss: cross-entropy per target token, in nats{weight}; sentence loss: of the sentence tokens of DEPTH alone; "
    "reconstruction loss: of text and sentinels. From scratch, both begin near the logarithm of the vocabulary size."
)


class LogLines(PrinterCallback):
    """Prints one line with a few figures for each log on the first process; nothing with `log_level` error."""

    _is_explained = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = log_line(state, logs or {})
        if line is None or not state.is_world_process_zero or args.get_process_log_level() > logging.WARNING:
            return
        if "reconstruction loss" in line and not self._is_explained:  # of pre-training
            weight = args.sentence_loss_coefficient
            counted = "" if weight == 1.0 else f", in which a sentence token counts {weight:g} times"
            line, self._is_explained = f"{LEGEND.format(weight=counted)}\n{line}", True
        tqdm.write(line, file=sys.stdout)  # above the bars, if there are any
        sys.stdout.flush()

    def on_predict(self, args, state, control, metrics, **kwargs):
        super().on_predict(args, state, control, metrics=metrics, **kwargs)
        self.on_log(args, state, control, logs=metrics)


class ProgressBar(LogLines, ProgressCallback):
    """A [`ProgressCallback`] that writes the lines of [`LogLines`] above its bars."""


def install_console(trainer: Trainer) -> None:
    """Print by [`LogLines`], or on a terminal by a [`ProgressBar`]. A notebook keeps its own callback."""
    for stock in list(trainer.callback_handler.callbacks):
        if type(stock) in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(stock)
            trainer.add_callback(ProgressBar if type(stock) is ProgressCallback and sys.stderr.isatty() else LogLines)


def log_line(state: TrainerState, logs: dict[str, float]) -> str | None:
    """
    The line to print for a log; `None` if it has no figure.

    >>> log_line(TrainerState(global_step=25, max_steps=400), {"eval_loss": 8.5, "eval_runtime": 2.0})
    'step  25/400 | evaluation: loss 8.5, seconds 2'
    """
    parts = []
    # Each data set that was evaluated has a runtime, as has the end of training.
    for prefix in [name.removesuffix("runtime") for name in logs if name.endswith("_runtime")] or [""]:
        figures = [form.format(logs[prefix + name]) for name, form in FIGURES.items() if prefix + name in logs]
        split, _, dataset = prefix.strip("_").partition("_")
        title = {"eval": "evaluation", "train": "training"}.get(split, split) + (dataset and f" of {dataset}")
        parts += [f"{title}: {', '.join(figures)}"] if prefix else figures
    parts += [f"mean score {logs['eval_score']:.4f}"] if "eval_score" in logs and "eval_runtime" not in logs else []
    total = str(state.max_steps or "")
    return " | ".join([f"step {state.global_step:>{len(total)}}" + (total and f"/{total}"), *parts]) if parts else None

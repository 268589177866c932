"""What a run prints while it goes on: a line for each log, above transformers' bars if there are any."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerState

# The figures that are printed, and how. All others are in trainer_state.json and all_results.json.
FIGURES = {
    "loss": ".4g",
    "sentence_loss": ".4g",
    "reconstruction_loss": ".4g",
    "learning_rate": ".2e",
    "grad_norm": ".3g",
    "tokens_per_second": ",.0f",
    "sentence_accuracy": ".4f",
    "order_exact_shuffled": ".4f",
    "with_metadata_loss": ".4g",
    "attention_entropy": ".2f",
    "score": ".4f",
    "unparsed_fraction": ".4f",
    "runtime": ",.0f",
}
LEGEND = (
    "loss: cross-entropy per target token, in nats{weight}; sentence loss: of the sentence tokens of DEPTH alone; "
    "reconstruction loss: of all other tokens. From scratch, both begin near the logarithm of the vocabulary size."
)


class LogLines(PrinterCallback):
    """Prints one line with a few figures for each log on the first process; nothing with `log_level` error."""

    _is_explained = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = log_line(state, logs or {})
        if line is None or not state.is_world_process_zero or args.get_process_log_level() > logging.WARNING:
            return
        if "reconstruction loss" in line and not self._is_explained:  # of pre-training
            coefficient = getattr(args, "sentence_loss_coefficient", 1.0)
            weight = "" if coefficient == 1.0 else f", in which a sentence token counts {coefficient:g} times"
            tqdm.write(LEGEND.format(weight=weight), file=sys.stdout)
            self._is_explained = True
        tqdm.write(line, file=sys.stdout)  # above the bars, if there are any
        sys.stdout.flush()

    def on_predict(self, args, state, control, metrics, **kwargs):
        super().on_predict(args, state, control, metrics=metrics, **kwargs)
        self.on_log(args, state, control, logs=metrics)


class ProgressBar(LogLines, ProgressCallback):
    """A [`ProgressCallback`] that writes the lines of [`LogLines`] above its bars."""


def install_console(trainer: Trainer) -> None:
    """Print by [`LogLines`], or on a terminal by a [`ProgressBar`]. A notebook keeps its own callback."""
    for stock in trainer.callback_handler.callbacks:
        if type(stock) in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(stock)
            trainer.add_callback(ProgressBar if type(stock) is ProgressCallback and sys.stderr.isatty() else LogLines)
            return


def log_line(state: TrainerState, logs: Mapping[str, Any]) -> str | None:
    """
    The line to print for a log of training, of evaluations, or of the end of training; `None` if it has no figure.

    >>> state = TrainerState(global_step=25, max_steps=400)
    >>> log_line(state, {"loss": 8.508, "sentence_loss": 6.5, "learning_rate": 1e-3, "padding_fraction": 0.3})
    'step  25/400 | loss 8.508 | sentence loss 6.5 | learning rate 1.00e-03'
    >>> log_line(state, {"eval_loss": 8.5, "eval_score": 0.25, "eval_runtime": 2.0})
    'step  25/400 | evaluation: loss 8.5, score 0.2500, seconds 2'
    """
    # Each data set that was evaluated has a runtime, as has the end of training.
    prefixes = [name.removesuffix("runtime") for name in logs if name.endswith("_runtime")]
    parts = [f"{_title(prefix)}: {', '.join(_figures(logs, prefix))}" for prefix in prefixes] or _figures(logs, "")
    if prefixes and "eval_" not in prefixes and "eval_score" in logs:  # of several tasks
        parts.append(f"mean score {logs['eval_score']:.4f}")
    total = str(state.max_steps or "")
    step = f"step {state.global_step:>{len(total)}}" + (total and f"/{total}")
    return " | ".join([step, *parts]) if parts else None


def _title(prefix: str) -> str:
    split, _, dataset = prefix.strip("_").partition("_")
    return {"eval": "evaluation", "train": "training"}.get(split, split) + (dataset and f" of {dataset}")


def _figures(logs: Mapping[str, Any], prefix: str) -> list[str]:
    shown = [(name, format(logs[prefix + name], spec)) for name, spec in FIGURES.items() if prefix + name in logs]
    names = {"tokens_per_second": "tokens/s", "runtime": "seconds"}
    return [f"{names.get(name, name.replace('_', ' '))} {number}" for name, number in shown]

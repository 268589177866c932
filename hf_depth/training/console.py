"""What a run prints: one line of a few figures for each log, and what a finished run left in its folder."""

import datetime
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerState,
)

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
}
TITLES = {"train": "training", "eval": "evaluation"}
FILES = {
    "model*.safetensors": "the trained model, for load_model and from_pretrained",
    "README.md": "the model card",
    "all_results.json": "all metrics at the end",
    "trainer_state.json": "every log",
    "task_config.json": "its tasks, for TaskPredictor.from_pretrained",
    "losses.png": "the curves of training",
    "unshuffling*.png": "how well sentences are put in order",
    "confusion_matrix_*": "which labels were taken for which",
    "predictions*.jsonl": "predictions, one example a line",
    "submission": "predictions as the server of the benchmark reads them",
    "spikes.jsonl": "steps with a spike, and which examples they read",
    "checkpoint-*": "to continue from: run the same command again",
}


class LogLines(PrinterCallback):
    """Prints one line with a few figures for each log on the first process; nothing with `log_level` error."""

    _start: tuple[float, int] | None = None  # time and step after the first step, which takes longer than others

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        self._start = None

    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        self._start = self._start or (time.perf_counter(), state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or args.get_process_log_level() > logging.WARNING:
            return
        seconds_left = None
        if self._start is not None and state.global_step > self._start[1]:
            seconds_per_step = (time.perf_counter() - self._start[0]) / (state.global_step - self._start[1])
            seconds_left = seconds_per_step * (state.max_steps - state.global_step)
        if (line := log_line(state, logs or {}, seconds_left)) is not None:
            tqdm.write(line, file=sys.stdout)  # above the bars, if there are any
            sys.stdout.flush()

    def on_predict(self, args, state, control, metrics, **kwargs):
        super().on_predict(args, state, control, metrics=metrics, **kwargs)
        self.on_log(args, state, control, logs=metrics)


class ProgressBar(LogLines, ProgressCallback):
    """A [`ProgressCallback`] that writes the lines of [`LogLines`] above its bars."""


def install_console(trainer: Trainer) -> None:
    """Print by [`LogLines`], or on a terminal by a [`ProgressBar`]. A notebook keeps its own callback."""
    for stock in (PrinterCallback, ProgressCallback):
        if trainer.pop_callback(stock) is not None:
            trainer.add_callback(ProgressBar if stock is ProgressCallback and sys.stderr.isatty() else LogLines)


def log_line(state: TrainerState, logs: Mapping[str, Any], seconds_left: float | None = None) -> str | None:
    """
    The line to print for a log of training, of evaluations, or of the end of training; `None` if it has no figure.

    >>> state = TrainerState(global_step=25, max_steps=400)
    >>> log_line(state, {"loss": 8.508, "sentence_loss": 6.5, "learning_rate": 1e-3, "padding_fraction": 0.3}, 75)
    'step  25/400 | loss 8.508 | sentence loss 6.5 | learning rate 1.00e-03 | 0:01:15 left'
    >>> log_line(state, {"eval_loss": 8.5, "eval_score": 0.25, "eval_runtime": 2.0})
    'step  25/400 | evaluation: loss 8.5, score 0.2500, 0:00:02'
    """
    # Each data set that was evaluated has a runtime, as has the end of training.
    prefixes = [name.removesuffix("runtime") for name in logs if name.endswith("_runtime")]
    parts = [_evaluation(logs, prefix) for prefix in prefixes] if prefixes else _figures(logs, "")
    if prefixes and "eval_" not in prefixes and "eval_score" in logs:  # of several tasks
        parts.append(f"mean score {logs['eval_score']:.4f}")
    if not parts:
        return None
    if seconds_left and not prefixes:
        parts.append(f"{_duration(seconds_left)} left")
    total = str(state.max_steps or "")
    return " | ".join([f"step {state.global_step:>{len(total)}}" + (total and f"/{total}"), *parts])


def _evaluation(logs: Mapping[str, Any], prefix: str) -> str:
    split, _, dataset = prefix.removesuffix("_").partition("_")
    title = TITLES.get(split, split) + (dataset and f" of {dataset}")
    return f"{title}: {', '.join([*_figures(logs, prefix), _duration(logs[prefix + 'runtime'])])}"


def _figures(logs: Mapping[str, Any], prefix: str) -> list[str]:
    shown = [(name, format(logs[prefix + name], spec)) for name, spec in FIGURES.items() if prefix + name in logs]
    return [f"{name.replace('_per_second', '/s').replace('_', ' ')} {number}" for name, number in shown]


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def files_table(folder: str | os.PathLike) -> str:
    """
    Which files a run has left in its folder and what they are, as lines of text.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "all_results.json").write_text("{}")
    ...     print(files_table(folder).replace(folder, "runs/mine"))
    The run is in runs/mine:
      all_results.json  all metrics at the end
    """
    found = {pattern: text for pattern, text in FILES.items() if any(Path(folder).glob(pattern))}
    width = max(map(len, found), default=0)
    return "\n".join([f"The run is in {folder}:", *(f"  {name:{width}}  {text}" for name, text in found.items())])

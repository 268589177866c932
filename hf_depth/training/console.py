"""What the Trainer prints: one line for each log, beside the progress bar or, in a log file, without one."""

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

# Name in the logs, what is printed for it, and how. All other figures are in trainer_state.json and all_results.json.
TRAINING_FIGURES = (
    ("loss", "loss", ".4g"),
    ("sentence_loss", "sentence loss", ".4g"),
    ("reconstruction_loss", "reconstruction loss", ".4g"),
    ("learning_rate", "lr", ".2e"),
    ("grad_norm", "grad norm", ".3g"),
    ("tokens_per_second", "tokens/s", ",.0f"),
)
EVALUATION_FIGURES = (
    ("loss", "loss", ".4g"),
    ("sentence_loss", "sentence loss", ".4g"),
    ("reconstruction_loss", "reconstruction loss", ".4g"),
    ("sentence_accuracy", "sentence accuracy", ".4f"),
    ("order_exact_shuffled", "exact order of shuffled", ".4f"),
    ("with_metadata_loss", "loss with metadata", ".4g"),
    ("attention_entropy", "attention entropy", ".2f"),
    ("score", "score", ".4f"),
    ("unparsed_fraction", "unparsed", ".4f"),
)
END_FIGURES = (("train_loss", "mean loss", ".4g"), ("train_steps_per_second", "steps/s", ".3g"))


# What the folder of a run may hold, and what each of it is; a directory is named with a slash.
FILES = (
    ("model.safetensors", "the trained model; load_model and from_pretrained read the folder"),
    ("model.safetensors.index.json", "the trained model in several files; load_model and from_pretrained read them"),
    ("README.md", "the model card"),
    ("all_results.json", "all metrics at the end"),
    ("trainer_state.json", "the log of each step"),
    ("task_config.json", "its tasks, for TaskPredictor.from_pretrained"),
    ("losses.png", "the curves of training"),
    ("unshuffling*.png", "how well sentences are put in order"),
    ("confusion_matrix_*.png", "which labels were taken for which"),
    ("predictions*.jsonl", "predictions, one example a line"),
    ("submission/", "predictions as the server of the benchmark reads them"),
    ("checkpoint-*/", "to continue from: run the same command again"),
)
MAX_NAMES = 3  # of files of one kind that are named
MAX_SOURCES = 4  # of a mixture that a line names; trainer_state.json and trackers have all


class _LogLines(TrainerCallback):
    """Prints a line for each log, on the first of all processes; none with a `log_level` above that of warnings."""

    started: float | None = None  # when the first step of this process began

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.started = None  # of an earlier training, or of a try of larger batches

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.started is None:
            self.started, self.first_step = time.perf_counter(), state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or args.get_process_log_level() > logging.WARNING:
            return
        line = log_line(state, logs or {}, self._seconds_left(state))
        if line is not None:
            tqdm.write(line, file=sys.stdout)  # above the bars, if there are any
            sys.stdout.flush()

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        super().on_predict(args, state, control, metrics=metrics, **kwargs)
        self.on_log(args, state, control, logs=metrics)

    def _seconds_left(self, state: TrainerState) -> float | None:
        """By the steps of this process: a resumed run does not know how long those before took."""
        if self.started is None or state.global_step <= self.first_step:
            return None
        per_step = (time.perf_counter() - self.started) / (state.global_step - self.first_step)
        return per_step * (state.max_steps - state.global_step)


class LogLines(_LogLines, PrinterCallback):
    """A [`PrinterCallback`] that prints one line with a few figures for each log: for log files and `disable_tqdm`."""


class ProgressBar(_LogLines, ProgressCallback):
    """A [`ProgressCallback`] that writes the lines of [`LogLines`] above its bars."""

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        if self.prediction_bar is not None and self.prediction_bar.n >= self.prediction_bar.total:
            self._close_prediction_bar()  # that of the data set before
        super().on_prediction_step(*args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self._close_prediction_bar()  # the Trainer logs an evaluation before it is over
        super().on_log(*args, **kwargs)

    def _close_prediction_bar(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None


def install_console(trainer: Trainer) -> None:
    """
    Replace the callback by which a trainer prints: a progress bar is shown on a terminal only, unless `disable_tqdm`
    is set. In a notebook its own callback stays.

    Args:
        trainer (`Trainer`): with the callback that `Trainer` has chosen by `disable_tqdm`.
    """
    own = (LogLines, ProgressBar)
    callbacks = [type(callback) for callback in trainer.callback_handler.callbacks]
    chosen = next((one for one in (PrinterCallback, ProgressCallback) if one in callbacks), None)
    if chosen is None or any(one in callbacks for one in own):
        return
    trainer.remove_callback(chosen)
    shows_bar = chosen is ProgressCallback and sys.stderr.isatty()
    trainer.add_callback(ProgressBar if shows_bar else LogLines)


def log_line(state: TrainerState, logs: Mapping[str, Any], seconds_left: float | None = None) -> str | None:
    """
    The line to print for a log: of training, of an evaluation of one or several data sets, or of the end of training.

    Args:
        state (`TrainerState`): at which step.
        logs (`Mapping[str, Any]`): what is logged, by the names of the Trainer.
        seconds_left (`float`, *optional*): until the end of training.

    Returns:
        `str`, *optional*: `None` for a log without any of the figures.

    >>> state = TrainerState(global_step=25, max_steps=400)
    >>> log_line(state, {"loss": 8.508, "sentence_loss": 6.5, "learning_rate": 1e-3, "padding_fraction": 0.3}, 75)
    'step  25/400 | loss 8.508 | sentence loss 6.5 | lr 1.00e-03 | 0:01:15 left'
    >>> log_line(state, {"loss": 8.508, "novels/examples": 1400, "news/examples": 600})
    'step  25/400 | loss 8.508 | examples: novels 1,400, news 600'
    >>> log_line(state, {"eval_loss": 8.5, "eval_score": 0.25, "eval_runtime": 2.0})
    'step  25/400 | evaluation: loss 8.5, score 0.2500, 0:00:02'
    """
    if "train_runtime" in logs:
        parts = [f"trained for {_duration(logs['train_runtime'])}", *_figures(logs, END_FIGURES)]
    elif "loss" in logs:
        left = [f"{_duration(seconds_left)} left"] if seconds_left else []
        parts = _figures(logs, TRAINING_FIGURES) + _source_figures(logs) + left
    else:
        # Each data set that was evaluated has a runtime, whatever prefix its metrics have.
        prefixes = [name.removesuffix("_runtime") for name in logs if name.endswith("_runtime")]
        parts = [_evaluation(logs, prefix) for prefix in prefixes]
        if "eval" not in prefixes:
            parts += _figures(logs, (("score", "mean score", ".4f"),), "eval_")
    if not parts:
        return None
    total = str(state.max_steps) if state.max_steps else ""
    step = f"step {state.global_step:>{len(total)}}/{total}" if total else f"step {state.global_step}"
    return " | ".join([step, *parts])


def _source_figures(logs: Mapping[str, Any]) -> list[str]:
    """How many examples of each source of a mixture were seen, if there are few."""
    seen = [f"{name.removesuffix('/examples')} {logs[name]:,}" for name in logs if name.endswith("/examples")]
    return [f"examples: {', '.join(seen)}"] if 0 < len(seen) <= MAX_SOURCES else []


def _evaluation(metrics: Mapping[str, Any], prefix: str) -> str:
    split, _, dataset = prefix.partition("_")
    title = {"eval": "evaluation", "predict": "prediction"}.get(split, split) + (dataset and f" of {dataset}")
    figures = [*_figures(metrics, EVALUATION_FIGURES, f"{prefix}_"), _duration(metrics[f"{prefix}_runtime"])]
    return f"{title}: {', '.join(figures)}"


def _figures(logs: Mapping[str, Any], figures: Sequence[tuple[str, str, str]], prefix: str = "") -> list[str]:
    numbers = [(label, format(logs[prefix + name], spec)) for name, label, spec in figures if prefix + name in logs]
    return [f"{number} {label}" if label.endswith("/s") else f"{label} {number}" for label, number in numbers]


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def files_table(folder: str | os.PathLike) -> str:
    """
    Which files a run has left in its folder and what each of them is, as lines of text.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "all_results.json").write_text("{}")
    ...     print(files_table(folder).replace(folder, "runs/mine"))
    The run is in runs/mine:
      all_results.json  all metrics at the end
    """
    rows = []
    for pattern, description in FILES:
        paths = [path for path in Path(folder).glob(pattern.rstrip("/")) if path.is_dir() == pattern.endswith("/")]
        names = [path.name + "/" * path.is_dir() for path in sorted(paths, key=lambda path: path.stat().st_mtime)]
        if names and pattern.startswith("checkpoint"):
            rows.append((names[-1], description))
        elif len(names) > MAX_NAMES:
            rows.append((pattern, f"{description} ({len(names)} files)"))
        else:
            rows += [(name, description) for name in sorted(names)]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([f"The run is in {folder}:", *(f"  {name:{width}}  {text}" for name, text in rows)])

"""The files of an evaluation (predictions, submissions, confusion matrices), and tables of scores."""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..tables import aligned, markdown_table
from ..tasks.spec import UNLABELED, UNPARSED, Example, TaskSpec
from .metrics import exact_match, get_metric
from .plots import MOST_LABELS_OF_A_PICTURE, plot_confusion_matrix
from .scoring import BASELINES, TaskEvaluation, TaskResult

logger = logging.getLogger(__name__)

# Columns that say which example it is, beside the text that the model read.
IDENTITY_COLUMNS = ("idx", "id", "task", "category")


def write_outputs(folder: str | os.PathLike, evaluations: Iterable[TaskEvaluation]) -> list[Path]:
    """
    Write what was predicted for each data set.

    - `predictions_<task>_<split>.jsonl`: every example, see [`write_predictions`].
    - `submission/<name>.tsv`: what the benchmark's server reads, for its test sets, see [`write_submission`].
    - `confusion_matrix_<task>_<split>.png`: for tasks of at most 40 labels, if examples are labeled.

    Where there are several benchmarks, their names stand in front of the tasks', and their submissions in folders.

    Args:
        folder (`str` or `os.PathLike`): is made.
        evaluations (`Iterable[TaskEvaluation]`): such as `trainer.evaluations.values()`.

    Returns:
        `list[Path]`: the files of predictions.
    """
    written = []
    evaluations = list(evaluations)
    one_benchmark = len({evaluation.dataset.spec.benchmark for evaluation in evaluations}) == 1
    for evaluation in evaluations:
        dataset, predictions = evaluation.dataset, evaluation.predictions
        spec, rows = dataset.spec, dataset.rows
        name = "_".join(dataset.key[1:] if one_benchmark else dataset.key)
        path = Path(folder, f"predictions_{name}.jsonl")
        write_predictions(path, spec, rows, predictions.texts, predictions.label_ids, predictions.scores)
        written.append(path)
        if spec.labels is None:
            continue
        submissions = Path(folder, "submission", *([] if one_benchmark else [spec.benchmark]))
        indices = rows["idx"] if "idx" in rows.column_names else None
        write_submission(submissions, spec, dataset.split, predictions.label_ids, indices)
        if dataset.has_targets and spec.num_labels <= MOST_LABELS_OF_A_PICTURE:
            path, title = Path(folder, f"confusion_matrix_{name}.png"), f"{spec.full_name}, {dataset.split}"
            plot_confusion_matrix(path, spec, spec.label_ids(rows), predictions.label_ids, title)
    return written


def write_predictions(
    path: str | os.PathLike,
    spec: TaskSpec,
    rows: Sequence[Example],
    texts: Sequence[str] | None = None,
    predicted_ids: Sequence[int] | None = None,
    scores: Sequence[Sequence[float]] | None = None,
) -> None:
    """
    Write one JSON object per example and line.

    - `index`, and of `idx`, `id`, `task` and `category` those that the example has; `input`: the prompt.
    - `answer`: the generated text, if there is one; `scores`: if labels were scored, the log-probability of each, with
      `length_normalize_scores` divided by its number of tokens.
    - `prediction`: the label's text, or its number (of the nearest label) if the task predicts numbers; `null` for
      unparseable text.
    - `label`: the same of the example, `null` if it is unlabeled; for a free-form task instead all `references`.
    - `correct`: whether the two are the same (free-form: up to case and punctuation), `null` if it is unlabeled.

    Args:
        path (`str` or `os.PathLike`): file to write; its folder is made.
        spec (`TaskSpec`): the task.
        rows (`Dataset` or `Sequence[Mapping]`): the examples.
        texts (`Sequence[str]`, *optional*): generated texts.
        predicted_ids (`Sequence[int]`, *optional*): instead of them or beside them, the class of each example.
        scores (`np.ndarray` of shape `(num_examples, num_labels)`, *optional*): as `score_labels` returns them.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for line in _predictions(spec, rows, texts, predicted_ids, scores):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _predictions(spec, rows, texts, predicted_ids, scores) -> Iterator[dict]:
    if predicted_ids is None and spec.labels is not None:
        predicted_ids = spec.parse_all(texts)
    for index, row in enumerate(rows):
        line = {"index": index} | {name: row[name] for name in IDENTITY_COLUMNS if name in row}
        line["input"] = spec.prompt(row)
        if texts is not None:
            line["answer"] = texts[index]
        if scores is not None:
            line["scores"] = dict(zip(spec.labels.values(), map(float, scores[index]), strict=True))
        if spec.labels is None:
            references = spec.targets(row)
            (right,) = exact_match([texts[index]], [references])
            line |= {"references": references, "correct": bool(right) if references else None}
        else:
            predicted, label = int(predicted_ids[index]), spec.label_id(row)
            line |= {"prediction": _label(spec, predicted), "label": _label(spec, label)}
            if spec.is_regression and label != UNLABELED:
                line["label"] = spec.label_value(row)
            line["correct"] = predicted == label if label != UNLABELED else None
        yield line


def _label(spec: TaskSpec, label_id: int) -> str | float | None:
    if label_id not in spec.labels:
        return None
    return float(spec.label_values([label_id])[0]) if spec.is_regression else spec.labels[label_id]


def write_submission(
    folder: str | os.PathLike,
    spec: TaskSpec,
    split: str,
    predicted_ids: Sequence[int],
    indices: Sequence[int] | None = None,
) -> Path | None:
    """
    Write the predictions for a test set as the server of the benchmark reads them: the header
    `index<TAB>prediction`, then a row per example, ordered by index.

    A server rejects a file with anything but labels, so an unparseable prediction becomes the first label (the lowest
    number). How many there were is logged.

    Args:
        folder (`str` or `os.PathLike`): is made.
        spec (`TaskSpec`): the task.
        split (`str`): one of the task's `test_splits`.
        predicted_ids (`Sequence[int]`): the class of each example.
        indices (`Sequence[int]`, *optional*):
            The index of each example (GLUE's column `idx`); by default they count up from 0.

    Returns:
        `Path`, *optional*: the file, named by the task; `None` if there is no such file for this split.

    Raises:
        `ValueError`: if an index is given twice.
    """
    files = dict(zip(spec.test_splits, spec.submission_names, strict=False))
    if split not in files:
        return None
    predicted_ids = np.asarray(predicted_ids, dtype=np.int64)
    indices = np.arange(len(predicted_ids)) if indices is None else np.asarray(indices, dtype=np.int64)
    _check_submission(spec, split, predicted_ids, indices)
    by_id = spec.submission_labels == "id"
    texts = {label_id: str(label_id) if by_id else text for label_id, text in spec.labels.items()}
    first = texts[min(texts)]
    lines = [f"{indices[i]}\t{texts.get(int(predicted_ids[i]), first)}\n" for i in np.argsort(indices)]
    path = Path(folder) / files[split]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8")
    return path


def _check_submission(spec: TaskSpec, split: str, predicted_ids: np.ndarray, indices: np.ndarray) -> None:
    task = f"Task {spec.name!r}, split {split!r}"
    values, counts = np.unique(indices, return_counts=True)
    if (counts > 1).any():
        raise UserError(f"{task}: the index {values[counts > 1][0]} is given twice. Predict each example once.")
    unparsed = int((predicted_ids == UNPARSED).sum())
    if unparsed:
        first = spec.labels[min(spec.labels)]
        logger.warning(f"{task}: {unparsed} predictions are unparseable; the file has {first!r} for them.")
    expected = dict(zip(spec.test_splits, spec.submission_rows, strict=False)).get(split)
    if expected and expected != len(predicted_ids):
        logger.warning(
            f"{task}: {len(predicted_ids)} predictions, but the server expects {expected} and will reject the file. "
            "Predict the benchmark's own test set, all of it."
        )


def results_table(results: Sequence[TaskResult], markdown: bool = False) -> str:
    """
    The scores as lines of text: task, split, metric, model, majority class, chance and, where a result has them, the
    baselines that were fitted and the unparsed fraction.

    Args:
        results (`Sequence[TaskResult]`): a line for each of their metrics.
        markdown (`bool`, *optional*, defaults to `False`): write a Markdown table.
    """
    shown = ("majority", "chance", *BASELINES, "from_scratch")
    head = ["task", "split", "metric", "model", *(name.replace("_", " ") for name in shown), "unparsed"]
    lines = []
    for result in results:
        for name in result.spec.metric_names:
            if name in result.metrics:
                keys = (name, *(f"{baseline}_{name}" for baseline in shown), "unparsed_fraction")
                digits = 4 if get_metric(name).scale == 1 else 2
                texts = [f"{result.metrics[key]:.{digits}f}" if key in result.metrics else "" for key in keys]
                lines.append([result.spec.full_name, result.split, name, *texts])
    # Not always are there baselines that were fitted, and only generated text can be unparseable.
    filled = [column < 6 or any(line[column] for line in lines) for column in range(len(head))]
    rows = [list(compress(line, filled)) for line in [head, *lines]]
    return markdown_table(rows, num_text_columns=3) if markdown else aligned(rows, num_text_columns=3)

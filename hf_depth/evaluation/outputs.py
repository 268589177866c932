"""What fine-tuning leaves behind: predictions, files for GLUE's server, confusion matrices, tables, model cards."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..tasks.spec import HIDDEN, Row, TaskSpec
from .metrics import METRICS, UNPARSED
from .scoring import TaskResult, label_values, parse_answers

logger = logging.getLogger(__name__)

# Columns of a row that say which one it is, beside the text that the model read.
IDENTITY_COLUMNS = ("idx", "id", "task", "category")


def write_predictions(
    path: str | os.PathLike,
    spec: TaskSpec,
    rows: Sequence[Row],
    answers: Sequence[str] | None = None,
    predicted_ids: Sequence[int] | None = None,
    scores: Sequence[Sequence[float]] | None = None,
) -> None:
    """
    Write one JSON object per row and line.

    - `index`, and of `idx`, `id`, `task` and `category` those that the row has; `input`: the prompt.
    - `answer`: what was generated, if it was; `scores`: the log-probability of each label, if they were scored.
    - `prediction`: the label's text, or its number if the task predicts numbers; `null` if the answer is no label.
    - `label`: the same of the row, `null` if it is hidden; for open text instead `references`, all right answers.
    - `correct`: whether the two are the same (open text: up to case and punctuation), `null` if the label is hidden.

    Args:
        path: file to write; its folder is made.
        answers: generated texts.
        predicted_ids: instead of them or beside them, the class of each row.
        scores (`(number of rows, number of labels)`): as `score_labels` returns them.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for line in _predictions(spec, rows, answers, predicted_ids, scores):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _predictions(spec, rows, answers, predicted_ids, scores) -> Iterator[dict]:
    if predicted_ids is None and spec.labels is not None:
        predicted_ids = parse_answers(spec, answers)
    for index, row in enumerate(rows):
        line = {"index": index} | {name: row[name] for name in IDENTITY_COLUMNS if name in row}
        line["input"] = spec.prompt(row)
        if answers is not None:
            line["answer"] = answers[index]
        if scores is not None:
            line["scores"] = dict(zip(spec.labels.values(), map(float, scores[index]), strict=True))
        if spec.labels is None:
            references = spec.targets(row)
            (right,) = METRICS["exact_match"].row_scores([answers[index]], [references])
            line |= {"references": references, "correct": bool(right) if references else None}
        else:
            predicted, label = int(predicted_ids[index]), spec.label_id(row)
            line |= {"prediction": _label(spec, predicted), "label": _label(spec, label)}
            if spec.is_regression and label != HIDDEN:
                line["label"] = spec.label_value(row)
            line["correct"] = predicted == label if label != HIDDEN else None
        yield line


def _label(spec: TaskSpec, label_id: int) -> str | float | None:
    if label_id not in spec.labels:
        return None
    return float(label_values(spec, [label_id])[0]) if spec.is_regression else spec.labels[label_id]


def write_submission(
    folder: str | os.PathLike,
    spec: TaskSpec,
    split: str,
    predicted_ids: Sequence[int],
    indices: Sequence[int] | None = None,
) -> Path | None:
    """
    Write the answers to a test set as the server of the benchmark reads them: the header `index<TAB>prediction`, then
    a row per example, ordered by index.

    A server rejects a file with anything but labels, so an answer that is none becomes the first label (the lowest
    number). How many there were is logged.

    Args:
        folder: is made.
        split: one of the task's `test_splits`.
        predicted_ids: the class of each row.
        indices: the index of each row (GLUE's column `idx`); by default they count up from 0.

    Returns:
        The file, named by the task; `None` if there is no such file for this split.

    Raises:
        `ValueError`: if an index is missing, given twice or belongs to no prediction, or a prediction is no class.
    """
    files = dict(zip(spec.test_splits, spec.submission_names, strict=False))
    if split not in files:
        return None
    predicted_ids = np.asarray(predicted_ids, dtype=np.int64)
    indices = np.arange(len(predicted_ids)) if indices is None else np.asarray(indices, dtype=np.int64)
    _check_submission(spec, split, predicted_ids, indices)
    first = min(spec.labels)
    texts = {
        "text": dict(spec.labels),
        "id": {label_id: str(label_id) for label_id in spec.labels},
        "number": dict(spec.labels),
    }[spec.submission_labels]
    lines = [f"{indices[i]}\t{texts.get(int(predicted_ids[i]), texts[first])}\n" for i in np.argsort(indices)]
    path = Path(folder) / files[split]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8")
    return path


def _check_submission(spec: TaskSpec, split: str, predicted_ids: np.ndarray, indices: np.ndarray) -> None:
    task = f"Task {spec.name!r}, split {split!r}"
    if len(indices) != len(predicted_ids):
        raise ValueError(f"{task}: {len(indices)} `indices` for {len(predicted_ids)} predictions. Give one for each.")
    values, counts = np.unique(indices, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{task}: the index {values[counts > 1][0]} is given twice. Predict each row once.")
    strange = set(predicted_ids.tolist()) - set(spec.labels) - {UNPARSED}
    if strange:
        raise ValueError(
            f"{task}: {min(strange)} is no class. The classes are {min(spec.labels)} to {max(spec.labels)}."
        )
    unparsed = int((predicted_ids == UNPARSED).sum())
    if unparsed:
        first = spec.labels[min(spec.labels)]
        logger.warning("%s: %d answers are no label; the file has %r for them.", task, unparsed, first)
    expected = dict(zip(spec.test_splits, spec.submission_rows, strict=False)).get(split)
    if expected and expected != len(predicted_ids):
        logger.warning(
            "%s: %d predictions, but the server expects %d and will reject the file. Predict the benchmark's own test "
            "set, all of it.",
            task,
            len(predicted_ids),
            expected,
        )


def results_table(results: Sequence[TaskResult], markdown: bool = False) -> str:
    """
    The scores as lines of text: task, split, metric, model, majority class, chance, fraction of unparsed answers.

    Args:
        markdown: write a Markdown table.
    """
    head = ["task", "split", "metric", "model", "majority", "chance", "unparsed"]
    lines = []
    for result in results:
        for name in result.spec.metric_names:
            if name in result.metrics:
                keys = (name, f"majority_{name}", f"chance_{name}", "unparsed_fraction")
                digits = 4 if METRICS[name].scale == 1 else 2
                texts = [f"{result.metrics[key]:.{digits}f}" if key in result.metrics else "" for key in keys]
                lines.append([_title(result.spec), result.split, name, *texts])
    if not any(line[-1] for line in lines):  # labels were scored, or there are none
        head, lines = head[:-1], [line[:-1] for line in lines]
    if markdown:
        rows = [head, ["---"] * 3 + ["---:"] * (len(head) - 3), *lines]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 3 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *lines]
    )


def _title(spec: TaskSpec) -> str:
    return f"{spec.benchmark}/{spec.name}"

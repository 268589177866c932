"""What fine-tuning leaves behind: predictions, files for GLUE's server, confusion matrices, tables, model cards."""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .answer_metrics import METRICS, UNPARSED
from .reporting import card_section
from .task_metrics import label_values, parse_answers
from .tasks import HIDDEN, Row, TaskSpec

logger = logging.getLogger(__name__)

# Columns of a row that say which one it is, beside the text that the model read.
IDENTITY_COLUMNS = ("idx", "id", "task", "category")

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass(frozen=True)
class TaskResult:
    """
    The scores of one task on one split.

    Args:
        metrics: what `compute_task_metrics` returned.
    """

    spec: TaskSpec
    split: str
    metrics: Mapping[str, float]


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


def confusion_matrix(spec: TaskSpec, label_ids: Sequence[int], predicted_ids: Sequence[int]) -> np.ndarray:
    """
    How often each class was answered by each: int64, `(num_labels, num_labels + 1)`, rows are the true classes, the
    last column counts answers that are no label. Rows of the data whose label is hidden are left out.
    """
    position = {label_id: index for index, label_id in enumerate(spec.labels)} | {UNPARSED: spec.num_labels}
    counts = np.zeros((spec.num_labels, spec.num_labels + 1), dtype=np.int64)
    for label_id, predicted in zip(label_ids, predicted_ids, strict=True):
        if label_id != HIDDEN:
            counts[position[int(label_id)], position[int(predicted)]] += 1
    return counts


def plot_confusion_matrix(
    path: str | os.PathLike,
    spec: TaskSpec,
    label_ids: Sequence[int],
    predicted_ids: Sequence[int],
    title: str = "",
) -> None:
    """
    Draw the confusion matrix, with counts in the cells, each row coloured by its fractions, and save it as a picture.

    Args:
        path: file to write, `.png`; its folder is made.
        label_ids, predicted_ids: the true and the predicted class of each row.
    """
    counts = confusion_matrix(spec, label_ids, predicted_ids)
    if not counts[:, -1].any():
        counts = counts[:, :-1]  # all answers are labels
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    confusion_figure(spec, counts, title or _title(spec)).savefig(path, dpi=110)


def confusion_figure(spec: TaskSpec, counts: np.ndarray, title: str):
    """The picture of [`plot_confusion_matrix`] as a matplotlib figure, from the counts of [`confusion_matrix`]."""
    from matplotlib.figure import Figure

    cell = 0.6 if spec.num_labels <= 12 else 0.34  # inches; counts of three digits must fit
    longest = max(len(text) for text in spec.labels.values())
    margin = 1.2 + 0.08 * longest
    side = margin + cell * (spec.num_labels + 1)
    figure = Figure(figsize=(max(4.0, side + 1), max(3.4, side)), layout="constrained")
    axes = figure.subplots()
    fractions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    names = list(spec.labels.values())
    answers = [*names, "no label"][: counts.shape[1]]
    axes.set_xticks(range(len(answers)), answers, rotation=90 if 0.1 * max(longest, 8) > cell else 0)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="answer", ylabel="label", title=title)
    if len(answers) > len(names):
        axes.axvline(len(names) - 0.5, color="gray", linewidth=0.8)
    for row, column in zip(*counts.nonzero(), strict=True):
        color = "white" if fractions[row, column] > 0.6 else "black"
        size = 9 if spec.num_labels <= 12 else 6
        axes.text(column, row, counts[row, column], ha="center", va="center", color=color, fontsize=size)
    figure.colorbar(image, ax=axes, label="fraction of the label's rows", shrink=0.8)
    return figure


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


def model_index(results: Sequence[TaskResult], datasets: Sequence[str] = ()) -> list[EvalResult]:
    """
    The scores in the form in which the Hub shows them beside a model, one per task, split and metric.

    Args:
        datasets: the names on the Hub of what was read from there. Rows from files have the name of their task
            instead, since nobody can tell that they are those of the Hub.
    """
    return [
        EvalResult(
            task_type="text-classification" if result.spec.labels is not None else "text-generation",
            task_name=result.spec.name,
            dataset_type=result.spec.path if result.spec.path in datasets else _title(result.spec),
            dataset_name=_title(result.spec),
            dataset_config=result.spec.config_name if result.spec.path in datasets else None,
            dataset_split=result.split,
            metric_type=METRICS[name].hub_name or name,
            metric_name=name,
            metric_value=round(float(result.metrics[name]), 6),
        )
        for result in results
        for name in result.spec.metric_names
        if math.isfinite(result.metrics.get(name, math.nan))
    ]


RESULTS_SECTION = """## Results

Beside the scores stand those of always answering the most frequent class, and of guessing; `unparsed` is the fraction
of generated answers that are no label, which count as wrong.

{table}

"""


def fine_tuning_card(
    model_name: str,
    model_type: str,
    results: Sequence[TaskResult],
    sections: Mapping[str, Mapping],
    base_model: str | None = None,
    datasets: Sequence[str] = (),
) -> str:
    """
    A README for the Hub of a fine-tuned model, with its scores as the Hub's `model-index`.

    Args:
        model_name: title.
        model_type: `depth` or `t5`.
        results: the scores, those of validation and test sets.
        sections: title -> what to list there, such as data and settings; values must be JSON-serialisable.
        base_model: what was fine-tuned; a folder is named in the text only, without the way to it.
        datasets: the names on the Hub of the data, if it is from there.
    """
    is_folder = base_model is not None and (Path(base_model).exists() or not _HUB_NAME.fullmatch(base_model))
    scores = model_index(results, datasets)
    data = ModelCardData(
        library_name="transformers",
        tags=sorted({model_type, "hf_depth", *(result.spec.benchmark for result in results)}),
        base_model=None if is_folder else base_model,
        datasets=sorted(set(datasets)) or None,
        metrics=sorted({score.metric_type for score in scores}) or None,
        model_name=model_name,
        eval_results=scores or None,
    )
    tasks = ", ".join(dict.fromkeys(_title(result.spec) for result in results))
    trust = ", trust_remote_code=True" if model_type == "depth" else ""
    source = f" from {Path(base_model).name if is_folder else base_model}" if base_model else ""
    body = [
        f"# {model_name}",
        "",
        f"A {model_type.upper()} model, fine-tuned with hf_depth{source}{' on ' + tasks if tasks else ''}.",
        "",
        "```python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{model_name}")',
        f'model = AutoModelForSeq2SeqLM.from_pretrained("{model_name}"{trust})',
        "```",
        "",
        *(RESULTS_SECTION.format(table=results_table(results, markdown=True)).splitlines() if results else ()),
        *(line for title, values in sections.items() for line in card_section(title, values)),
    ]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(body)))


def _title(spec: TaskSpec) -> str:
    return f"{spec.benchmark}/{spec.name}"

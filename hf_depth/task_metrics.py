"""
Scores of answers: the metrics of GLUE, DiscoEval and Natural Instructions as [`evaluate.Metric`]s that need no
download, and what an answer that names no label counts as.

An unparsed answer is of the class `UNPARSED`, which no row has, and so is always wrong:

- accuracy: wrong.
- F1, precision and recall of two classes: it counts as the class that the row is not, as in T5. Otherwise, in place of
  a negative answer, it would cost nothing.
- F1, precision and recall of more classes: missed for the row's class, found for none. Averages are over the classes
  that occur in the rows or in the answers.
- Matthews correlation: a class of its own.
- Pearson and Spearman correlation: the number -1, as in T5.
"""

import string
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from .tasks import HIDDEN, Row, TaskSpec

UNPARSED = -1
GROUP_COLUMNS = ("category", "task")

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TaskMetric(evaluate.Metric):
    """
    A metric of this package. Rows stay in memory, so that no two processes write to one file.

    `compute(predictions=…, references=…)` returns a `dict` with the one key `key`.
    """

    key: str
    kind: str  # what it compares: class "ids", "values" or "texts"
    scale = 1.0  # the best score
    hub_name: str | None = None  # on the Hub, if it is another
    citation = ""

    def __init__(self, config_name: str | None = None, keep_in_memory: bool | None = None, num_process: int = 1, **kw):
        keep_in_memory = num_process == 1 if keep_in_memory is None else keep_in_memory
        super().__init__(config_name=config_name, keep_in_memory=keep_in_memory, num_process=num_process, **kw)

    def _info(self):
        text = datasets.Value("string")
        reference, prediction = {
            "ids": (datasets.Value("int64"), datasets.Value("int64")),
            "values": (datasets.Value("float64"), datasets.Value("float64")),
            "texts": (datasets.List(text), text),
        }[self.kind]
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation=self.citation,
            inputs_description="",
            features=datasets.Features({"predictions": prediction, "references": reference}),
        )

    def _compute(self, predictions, references, **kwargs) -> dict[str, float]:
        return {self.key: self.scale * float(self.score(predictions, references, **kwargs)) if predictions else 0.0}

    @staticmethod
    def score(predictions: Sequence, references: Sequence, **kwargs) -> float:
        """The score, at best 1."""
        raise NotImplementedError


class Accuracy(TaskMetric):
    """The fraction of right answers."""

    key, kind = "accuracy", "ids"

    @staticmethod
    def score(predictions, references, num_labels=None, sample_weight=None):
        return sklearn_metrics.accuracy_score(references, predictions, sample_weight=sample_weight)


class MatthewsCorrelation(TaskMetric):
    """The correlation of two labellings: 0 at chance and for a constant answer; of more classes: Gorodkin's R_K."""

    key, kind = "matthews_correlation", "ids"

    @staticmethod
    def score(predictions, references, num_labels=None, sample_weight=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a single class
            return sklearn_metrics.matthews_corrcoef(references, predictions, sample_weight=sample_weight)


class ClassMetric(TaskMetric):
    """Of two classes the score of class 1, or the mean over the classes if there are more."""

    kind, function, average = "ids", "", ""

    @classmethod
    def score(cls, predictions, references, num_labels=None, sample_weight=None):
        predictions, references = np.asarray(predictions), np.asarray(references)
        classes = sorted({*predictions.tolist(), *references.tolist()} - {UNPARSED})
        if num_labels == 2 or (num_labels is None and set(classes) <= {0, 1}):
            predictions = np.where(predictions == UNPARSED, 1 - references, predictions)
            if cls.average != "macro":
                classes = [1]
        return getattr(sklearn_metrics, cls.function)(
            references,
            predictions,
            labels=classes,
            average="macro",
            sample_weight=sample_weight,
            zero_division=0,
        )


class F1(ClassMetric):
    """F1 of class 1 if there are two classes, else the mean over the classes."""

    key, function = "f1", "f1_score"


class F1Macro(ClassMetric):
    """The mean of F1 over the classes."""

    key, function, average, hub_name = "f1_macro", "f1_score", "macro", "f1"


class Precision(ClassMetric):
    """Precision of class 1 if there are two classes, else the mean over the classes."""

    key, function = "precision", "precision_score"


class Recall(ClassMetric):
    """Recall of class 1 if there are two classes, else the mean over the classes."""

    key, function = "recall", "recall_score"


class Correlation(TaskMetric):
    """A correlation of numbers. Of a constant, where it is not defined, 0: it tells nothing about the rows."""

    kind, function = "values", ""

    @classmethod
    def score(cls, predictions, references):
        if len(set(predictions)) < 2 or len(set(references)) < 2:
            return 0.0
        return getattr(stats, cls.function)(predictions, references).statistic


class Pearson(Correlation):
    """Pearson's correlation; 0 for a constant."""

    key, function, hub_name = "pearson", "pearsonr", "pearsonr"


class Spearman(Correlation):
    """Spearman's correlation of ranks; 0 for a constant."""

    key, function, hub_name = "spearman", "spearmanr", "spearmanr"


class ExactMatch(TaskMetric):
    """
    The fraction of answers equal to one of the references, but for case, ASCII punctuation and white space, as in
    Natural Instructions.
    """

    key, kind = "exact_match", "texts"

    @staticmethod
    def score(predictions, references):
        pairs = zip(predictions, references, strict=True)
        return np.mean([_normalized(answer) in map(_normalized, allowed) for answer, allowed in pairs])


class RougeL(TaskMetric):
    """
    ROUGE-L (F1, with the Porter stemmer) against the most similar of the references, from 0 to 100, as Natural
    Instructions states it. Its words are those of `[a-z0-9]`: it is made for English.
    """

    key, kind, scale, hub_name = "rougeL", "texts", 100.0, "rouge"
    citation = "Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries"

    @staticmethod
    def score(predictions, references):
        return np.mean(rouge_l(predictions, references))


METRICS: dict[str, type[TaskMetric]] = {
    metric.key: metric
    for metric in (
        Accuracy,
        F1,
        F1Macro,
        Precision,
        Recall,
        MatthewsCorrelation,
        Pearson,
        Spearman,
        RougeL,
        ExactMatch,
    )
}


def rouge_l(answers: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L of each answer against the most similar of its references, from 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer  # brings nltk, which takes a moment to import

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return [
        max((scorer.score(target, answer)["rougeL"].fmeasure for target in targets), default=0.0)
        for answer, targets in zip(answers, references, strict=True)
    ]


def compute_task_metrics(
    spec: TaskSpec,
    rows: Sequence[Row],
    answers: Sequence[str] | None = None,
    predicted_ids: Sequence[int] | None = None,
    *,
    train_label_ids: Iterable[int] | None = None,
    group_columns: Sequence[str] = GROUP_COLUMNS,
) -> dict[str, float]:
    """
    Score answers by the metrics of their task. Rows whose label is hidden are left out.

    Args:
        spec: the task.
        rows: a data set or a list, with the task's label column.
        answers: the generated texts, one per row.
        predicted_ids: instead of answers the class of each row, as from scores of the labels.
        train_label_ids: classes of the training rows, in which the majority class is counted; by default it is counted
            in the rows.
        group_columns: for open text, the columns that name groups of rows which are also scored apart.

    Returns:
        `dict[str, float]`: each of the task's metrics, in 0..1 but for correlations (-1..1) and `rougeL` (0..100), and

        - `unparsed_fraction`: of the answers, those that are none of the labels; for all rows, hidden labels included.
        - `majority_<metric>` and `chance_<metric>`: what always answering the most frequent class gives, and what
          choosing among the labels at random is expected to give (the score of the expected confusion matrix). For
          numbers, both are 0.
        - for open text `<metric>_<group>`, such as `rougeL_question_answering`.

        Without any label (GLUE's test sets) there is nothing but `unparsed_fraction`.

    Raises:
        `ValueError`: if there is not one answer or class for each row.
    """
    _check_predictions(spec, len(rows), answers, predicted_ids)
    if spec.labels is None:
        return _open_text_metrics(spec, rows, answers, group_columns)

    metrics = {}
    if answers is not None:
        predicted_ids = parse_answers(spec, answers)
        if len(rows):
            metrics["unparsed_fraction"] = float(np.mean(predicted_ids == UNPARSED))
    predicted_ids = np.asarray(predicted_ids, dtype=np.int64)
    reference_ids, reference_values = _references(spec, rows)
    known = reference_ids != HIDDEN
    if not known.any():
        return metrics
    predicted_ids, reference_ids, reference_values = (
        array[known] for array in (predicted_ids, reference_ids, reference_values)
    )
    for name in spec.metric_names:
        metrics[name] = _score(spec, name, predicted_ids, reference_ids, reference_values)
    return metrics | _baselines(spec, reference_ids, train_label_ids)


def parse_answers(spec: TaskSpec, answers: Sequence[str]) -> np.ndarray:
    """The class of each generated answer, `UNPARSED` if it is none of the labels; int64, `(number of answers,)`."""
    return np.array([spec.parse(answer) for answer in answers], dtype=np.int64)


def label_values(spec: TaskSpec, label_ids: Sequence[int]) -> np.ndarray:
    """
    The numbers of classes, -1 for `UNPARSED`: those of the labels' texts if the task predicts a number, else the ids
    themselves; float64, `(number of classes,)`.
    """
    ids = np.asarray(label_ids, dtype=np.int64)
    if not spec.is_regression:
        return ids.astype(np.float64)
    value_of = {label_id: float(text) for label_id, text in spec.labels.items()} | {UNPARSED: float(UNPARSED)}
    return np.array([value_of[label_id] for label_id in ids.tolist()], dtype=np.float64)


def majority_class(label_ids: Iterable[int]) -> int:
    """The most frequent class, the smallest of several; hidden labels do not count."""
    labels = np.asarray([label_id for label_id in label_ids if label_id != HIDDEN], dtype=np.int64)
    if not len(labels):
        raise ValueError("There is no label that is not hidden, hence no majority class.")
    classes, counts = np.unique(labels, return_counts=True)
    return int(classes[counts.argmax()])


def optimized_score(spec: TaskSpec, metrics: Mapping[str, float]) -> float:
    """The task's `metric_to_optimize`, with 1 for the best score whatever its scale, for means over several tasks."""
    return metrics[spec.metric_to_optimize] / METRICS[spec.metric_to_optimize].scale


def _check_predictions(spec, number, answers, predicted_ids) -> None:
    if (answers is None) == (predicted_ids is None):
        raise ValueError("Give either `answers` or `predicted_ids`, not both or none.")
    name, given = ("answers", answers) if predicted_ids is None else ("predicted_ids", predicted_ids)
    if len(given) != number:
        raise ValueError(f"Task {spec.name!r} has {number} rows, but {len(given)} `{name}`: give one for each row.")
    if spec.labels is None and answers is None:
        raise ValueError(f"Task {spec.name!r} has open answers: give `answers`, not `predicted_ids`.")


def _references(spec: TaskSpec, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """The class of each row, and for a task that predicts a number the number, not rounded."""
    rows = _columns(rows, [spec.label_column_name])
    ids = np.array([spec.label_id(row) for row in rows], dtype=np.int64)
    if spec.is_regression:
        return ids, np.array([spec.label_value(row) for row in rows], dtype=np.float64)
    return ids, ids.astype(np.float64)


def _score(spec: TaskSpec, name: str, predicted_ids, reference_ids, reference_values) -> float:
    metric = METRICS[name]
    if metric.kind == "ids":
        predictions, references, kwargs = predicted_ids, reference_ids, {"num_labels": spec.num_labels}
    elif metric.kind == "values":
        predictions, references, kwargs = label_values(spec, predicted_ids), reference_values, {}
    else:
        predictions = [spec.labels.get(label_id, "") for label_id in predicted_ids.tolist()]
        references, kwargs = [[spec.labels[label_id]] for label_id in reference_ids.tolist()], {}
    return metric().compute(predictions=predictions, references=references, **kwargs)[name]


def _baselines(spec: TaskSpec, reference_ids: np.ndarray, train_label_ids: Iterable[int] | None) -> dict[str, float]:
    """The scores of the most frequent class and of guessing, of metrics that compare classes or numbers."""
    train_label_ids = reference_ids if train_label_ids is None else list(train_label_ids)
    majority = majority_class(train_label_ids)
    classes, counts = np.unique(reference_ids, return_counts=True)
    # One row for each class and guess, weighted by how often they are expected to meet.
    guesses = np.tile(list(spec.labels), len(classes))
    guessed_classes = np.repeat(classes, spec.num_labels)
    weights = np.repeat(counts / spec.num_labels, spec.num_labels)
    baselines = {}
    for name in spec.metric_names:
        metric = METRICS[name]
        if metric.kind == "values":
            baselines |= {f"majority_{name}": 0.0, f"chance_{name}": 0.0}
        elif metric.kind == "ids":
            size = {"num_labels": spec.num_labels}
            constant = np.full(len(classes), majority)
            baselines[f"majority_{name}"] = float(metric.score(constant, classes, sample_weight=counts, **size))
            baselines[f"chance_{name}"] = float(metric.score(guesses, guessed_classes, sample_weight=weights, **size))
    return baselines


def _open_text_metrics(spec: TaskSpec, rows, answers, group_columns) -> dict[str, float]:
    """Scores over all rows and over the rows of each group."""
    groups = [name for name in group_columns if len(rows) and name in rows[0]]
    rows = list(_columns(rows, [spec.label_column_name, *groups]))
    references = [spec.targets(row) for row in rows]
    known = [index for index, targets in enumerate(references) if targets]
    if not known:
        return {}
    members = {"": known}
    for column in groups:
        for index in known:
            if rows[index][column]:
                members.setdefault("_" + _key(rows[index][column]), []).append(index)
    metrics = {}
    for suffix, chosen in members.items():
        texts = {"predictions": [answers[i] for i in chosen], "references": [references[i] for i in chosen]}
        for name in spec.metric_names:
            metrics[name + suffix] = METRICS[name]().compute(**texts)[name]
    return metrics


def _columns(rows: Any, names: Sequence[str]) -> Any:
    """The rows with no more columns than needed, if they are a data set: to decode all of them takes long."""
    return rows.select_columns([name for name in names if name in rows.column_names]) if _is_dataset(rows) else rows


def _is_dataset(rows: Any) -> bool:
    return isinstance(rows, datasets.Dataset)


def _key(group: str) -> str:
    return "_".join(str(group).lower().split())


def _normalized(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())

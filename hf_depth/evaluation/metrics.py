"""
Metrics of predictions: those of GLUE, DiscoEval and Natural Instructions as [`evaluate.Metric`]s that need no
download, and what an unparseable prediction (generated text that is none of the labels) counts as.

Such a prediction is of the class `UNPARSED`, which no example has, and so is always wrong:

- accuracy: wrong.
- F1, precision and recall of two classes: it counts as the class that the example does not have, as in T5. Otherwise,
  in place of a negative prediction, it would cost nothing.
- F1, precision and recall of more classes: missed for the example's class, found for none. Averages are over the
  classes that occur among the labels or the predictions.
- Matthews correlation: a class of its own.
- Pearson and Spearman correlation: the number -1, as in T5. (A number on the scale between two labels is parsed as the
  nearest, see [`TaskSpec.parse`].)
"""

import inspect
import string
import warnings
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from ..suggestions import listed
from ..tasks.checks import METRIC_ALIASES, METRIC_KINDS
from ..tasks.spec import UNPARSED

# What `score` of a metric of each kind is called with, beside predictions and references.
_SCORE_ARGUMENTS = {"ids": ("num_labels", "sample_weight"), "values": (), "texts": ()}

# What evaluations report beside the metrics of the task: trainers, runs and probes.
_REPORTED = ("loss", "score", "unparsed_fraction", "samples", "runtime")
_REPORTED += ("model_preparation_time", "jit_compilation_time")
_REPORTED_BEGINS = ("attention_entropy", "majority_", "chance_", "bag_of_words_", "random_weights_", "mem_")

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TaskMetric(evaluate.Metric):
    """
    A metric of this package. Predictions stay in memory, so that no two processes write to one file.

    `compute(predictions=…, references=…)` returns a `dict` with the one key `key`.
    """

    key: str = ""
    kind: str = ""  # what it compares: class "ids", "values" or "texts"
    scale = 1.0  # the best score
    baseline: float | None = None  # of numbers: what guessing and always the same number get, whatever the data
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
        if not len(predictions):
            return {self.key: 0.0}
        if self.kind != "texts":  # `evaluate` gives lists
            predictions, references = np.asarray(predictions), np.asarray(references)
        return {self.key: self.scale * float(self.score(predictions, references, **kwargs))}

    @staticmethod
    def score(predictions: Sequence, references: Sequence, **kwargs: Any) -> float:
        """The score, at best 1."""
        raise NotImplementedError


class Accuracy(TaskMetric):
    """The fraction of right predictions."""

    key, kind = "accuracy", "ids"

    @staticmethod
    def score(
        predictions: Sequence[int],
        references: Sequence[int],
        num_labels: int | None = None,
        sample_weight: Sequence[float] | None = None,
    ) -> float:
        return sklearn_metrics.accuracy_score(references, predictions, sample_weight=sample_weight)


class MatthewsCorrelation(TaskMetric):
    """The correlation of labels and predictions: 0 at chance and for a constant; of more classes Gorodkin's R_K."""

    key, kind = "matthews_correlation", "ids"

    @staticmethod
    def score(
        predictions: Sequence[int],
        references: Sequence[int],
        num_labels: int | None = None,
        sample_weight: Sequence[float] | None = None,
    ) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a single class
            return sklearn_metrics.matthews_corrcoef(references, predictions, sample_weight=sample_weight)


class ClassMetric(TaskMetric):
    """Of two classes the score of class 1, or the mean over the classes if there are more."""

    kind, function, average = "ids", "", ""

    @classmethod
    def score(
        cls,
        predictions: Sequence[int],
        references: Sequence[int],
        num_labels: int | None = None,
        sample_weight: Sequence[float] | None = None,
    ) -> float:
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
    """A correlation of numbers. Of a constant, where it is not defined, 0: it tells nothing about the examples."""

    kind, function, baseline = "values", "", 0.0

    @classmethod
    def score(cls, predictions: Sequence[float], references: Sequence[float]) -> float:
        if len(set(predictions)) < 2 or len(set(references)) < 2:
            return 0.0
        return getattr(stats, cls.function)(predictions, references).statistic


class Pearson(Correlation):
    """Pearson's correlation; 0 for a constant."""

    key, function, hub_name = "pearson", "pearsonr", "pearsonr"


class Spearman(Correlation):
    """Spearman's correlation of ranks; 0 for a constant."""

    key, function, hub_name = "spearman", "spearmanr", "spearmanr"


class TextMetric(TaskMetric):
    """A mean over the examples."""

    kind = "texts"

    @staticmethod
    def row_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        """The score of each example, at best 1."""
        raise NotImplementedError

    @classmethod
    def score(cls, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        return np.mean(cls.row_scores(predictions, references))


class ExactMatch(TextMetric):
    """
    The fraction of predictions equal to one of the references, but for case, ASCII punctuation and white space, as in
    Natural Instructions.
    """

    key = "exact_match"

    @staticmethod
    def row_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        pairs = zip(predictions, references, strict=True)
        return [float(_normalized(text) in map(_normalized, allowed)) for text, allowed in pairs]


class RougeL(TextMetric):
    """
    ROUGE-L (F1, with the Porter stemmer) against the most similar of the references, from 0 to 100, as Natural
    Instructions states it. Its words are those of `[a-z0-9]`: it is made for English.
    """

    key, scale, hub_name = "rougeL", 100.0, "rouge"
    citation = "Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries"

    @staticmethod
    def row_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
        from rouge_score.rouge_scorer import RougeScorer  # brings nltk, which takes a moment to import

        scorer = RougeScorer(["rougeL"], use_stemmer=True)
        return [
            max((scorer.score(reference, text)["rougeL"].fmeasure for reference in allowed), default=0.0)
            for text, allowed in zip(predictions, references, strict=True)
        ]


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


def register_metric(metric: type[TaskMetric], overwrite: bool = False) -> type[TaskMetric]:
    """
    Add a metric, which the `metric_names` of a task may then name by its `key`.

    Args:
        metric (`type[TaskMetric]`):
            A class with a `key`, a `kind` and a static method `score`; `scale` times that is reported. Of the
            kind `"ids"`, for tasks with labels, it is called as `score(predictions, references, num_labels=…,
            sample_weight=…)` with the numbers of classes, -1 for an unparseable prediction, and with weights for
            majority and chance, `None` for the model; of `"values"`, for tasks on numbers, as `score(predictions,
            references)`. Both get numpy arrays. One of `"texts"`, for free-form tasks, is a [`TextMetric`] with
            `row_scores(predictions, references)`, where each example has a list of references.
        overwrite (`bool`, *optional*, defaults to `False`): replace another metric of that key. (On tasks with labels,
            `exact_match` always compares the classes.)

    Returns:
        `type[TaskMetric]`: the metric, so that this can be a decorator.

    Raises:
        `TypeError`: if it is no subclass of [`TaskMetric`], or `score` does not take what it is called with.
        `ValueError`: if it has no key or no such kind, or there is another metric of that key, or an evaluation
            reports something else by that name.

    >>> from hf_depth import TaskSpec, register_metric
    >>> from hf_depth.evaluation.metrics import TaskMetric
    >>> @register_metric
    ... class WithinOne(TaskMetric):
    ...     "The fraction of numbers that are at most one off."
    ...
    ...     key, kind = "within_one", "values"
    ...
    ...     @staticmethod
    ...     def score(predictions, references):
    ...         return np.mean(np.abs(np.subtract(predictions, references)) <= 1)
    >>> stars = TaskSpec("mine", "stars", "review", "", list("12345"), label_step=1, metric_names="within_one")
    >>> WithinOne().compute(predictions=[1.0, 5.0], references=[2.0, 2.0])
    {'within_one': 0.5}
    >>> del METRICS["within_one"], METRIC_KINDS["within_one"]
    """
    if not (isinstance(metric, type) and issubclass(metric, TaskMetric)):
        raise TypeError(f"`metric` must be a subclass of `TaskMetric`, got {metric!r:.80}.")
    _check_metric(metric)
    if metric.key in METRIC_ALIASES or (not overwrite and METRICS.get(metric.key, metric) is not metric):
        raise ValueError(
            f"There already is another metric {metric.key!r}. Choose another `key`. (`overwrite=True` replaces one of "
            "the same `key`.)"
        )
    METRICS[metric.key] = metric
    METRIC_KINDS[metric.key] = metric.kind
    return metric


def _check_metric(metric: type[TaskMetric]) -> None:
    """Stop on a metric that could not be computed after the training."""
    name = metric.__name__
    if not metric.key or metric.kind not in _SCORE_ARGUMENTS:
        raise ValueError(
            f"{name} must have a `key`, its name, and a `kind` among {listed(_SCORE_ARGUMENTS)}, got {metric.key!r} "
            f"and {metric.kind!r}."
        )
    if metric.key in _REPORTED or metric.key.startswith(_REPORTED_BEGINS) or metric.key.endswith("_per_second"):
        raise ValueError(
            f"`eval_{metric.key}` is what an evaluation reports beside the metrics, which {name} would replace: "
            "choose another `key`."
        )
    if metric.kind == "texts" and not issubclass(metric, TextMetric):
        raise TypeError(f"{name} compares texts: make it a subclass of `TextMetric`, with `row_scores`.")
    arguments = _SCORE_ARGUMENTS[metric.kind]
    try:
        inspect.signature(metric.score).bind([], [], **dict.fromkeys(arguments))
    except TypeError as error:
        called = ", ".join(("predictions", "references", *(f"{argument}=…" for argument in arguments)))
        raise TypeError(f"`{name}.score` is called as `score({called})`: {error}.") from error


def _normalized(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())

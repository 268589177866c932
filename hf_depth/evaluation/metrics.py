"""
Metrics of predictions, a table of functions, and what an unparseable prediction (generated text that is none of the
labels) counts as.

Such a prediction is of the class `UNPARSED`, which no example has, and so is always wrong:

- accuracy: wrong.
- F1, precision and recall of two classes: it counts as the class that the example does not have, as in T5. Otherwise,
  in place of a negative prediction, it would cost nothing.
- F1, precision and recall of more classes: missed for the example's class, found for none. Averages are over the
  classes that occur among the labels or the predictions.
- Matthews correlation: a class of its own.
- Pearson and Spearman correlation: the number -1, as in T5. (A number on the scale between two labels is parsed as the
  nearest, see [`TaskSpec.parse`].)

The libraries that compute them are imported when they are first used.
"""

import importlib.util
import inspect
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..suggestions import listed
from ..tasks.checks import METRIC_ALIASES, METRIC_KINDS
from ..tasks.spec import UNPARSED

if TYPE_CHECKING:
    import evaluate

KINDS = ("ids", "values", "texts")
_OPTIONS = ("num_labels", "sample_weight")  # of functions of "ids" that take them

# What evaluations report beside the metrics of the task: trainers, runs and probes.
_REPORTED = ("loss", "score", "unparsed_fraction", "samples", "runtime")
_REPORTED += ("model_preparation_time", "jit_compilation_time")
_REPORTED_BEGINS = ("attention_entropy", "majority_", "chance_", "bag_of_words_", "random_weights_", "mem_")

_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class TaskMetric:
    """
    A metric as the metrics of tasks are computed by it.

    Args:
        key (`str`): its name.
        kind (`str`): what it compares: class `"ids"`, `"values"` (numbers) or `"texts"`.
        function (`Callable`):
            Takes predictions and references, and returns one score for all examples or one for each, of which the mean
            counts. See [`register_metric`].
        scale (`float`, *optional*, defaults to 1.0): what is reported is so many times what the function returns.
        baseline (`float`, *optional*): of numbers: what guessing and always the same number get, whatever the data.
        hub_name (`str`, *optional*): the name of the metric on the Hub, if it is another.
        needs (`str`, *optional*): a package that is no requirement of hf_depth.
    """

    key: str
    kind: str
    function: Callable[..., Any]
    scale: float = 1.0
    baseline: float | None = None
    hub_name: str | None = None
    needs: str | None = None

    @property
    def has_baseline(self) -> bool:
        """Whether the majority class and random guesses are scored by it, too."""
        return self.baseline is not None or (self.kind == "ids" and self._takes("sample_weight"))

    def score(self, predictions: Sequence, references: Sequence, **options: Any) -> Any:
        """
        What the function returns.

        Args:
            predictions, references: of `"texts"`, each example has a list of references.
            options: `num_labels` and `sample_weight`, for functions of `"ids"` that take them.
        """
        if self.kind != "texts":
            predictions, references = np.asarray(predictions), np.asarray(references)
        return self.function(predictions, references, **{name: options[name] for name in options if self._takes(name)})

    def compute(self, predictions: Sequence, references: Sequence, **options: Any) -> float:
        """The score as it is reported: `scale` times the mean; 0 of no examples."""
        if not len(predictions):
            return 0.0
        return self.scale * float(np.mean(self.score(predictions, references, **options)))

    def _takes(self, name: str) -> bool:
        return name in inspect.signature(self.function).parameters


# ---- Of classes -----------------------------------------------------------------------------------------------------


def accuracy(predictions: np.ndarray, references: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    """The fraction of right predictions."""
    return np.average(predictions == references, weights=sample_weight)


def matthews_correlation(
    predictions: np.ndarray, references: np.ndarray, sample_weight: np.ndarray | None = None
) -> float:
    """The correlation of labels and predictions: 0 at chance and for a constant; of more classes Gorodkin's R_K."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single class
        return matthews_corrcoef(references, predictions, sample_weight=sample_weight)


def _of_classes(
    name: str,
    is_macro: bool,
    predictions: np.ndarray,
    references: np.ndarray,
    num_labels: int | None = None,
    sample_weight: np.ndarray | None = None,
) -> float:
    """A function of scikit-learn: of two classes that of class 1 unless `is_macro`, else the mean over the classes."""
    import sklearn.metrics

    classes = sorted({*predictions.tolist(), *references.tolist()} - {UNPARSED})
    if num_labels == 2 or (num_labels is None and set(classes) <= {0, 1}):
        predictions = np.where(predictions == UNPARSED, 1 - references, predictions)
        classes = classes if is_macro else [1]
    options = {"labels": classes, "average": "macro", "sample_weight": sample_weight, "zero_division": 0}
    return getattr(sklearn.metrics, name)(references, predictions, **options)


# ---- Of numbers -----------------------------------------------------------------------------------------------------


def _correlation(name: str, predictions: np.ndarray, references: np.ndarray) -> float:
    """A correlation of scipy; 0 where it is not defined, for a constant, which tells nothing about the examples."""
    from scipy import stats

    if len(set(predictions)) < 2 or len(set(references)) < 2:
        return 0.0
    return getattr(stats, name)(predictions, references).statistic


# ---- Of texts -------------------------------------------------------------------------------------------------------

References = Sequence[Sequence[str]]  # those of each example


def _best(score: Callable[[str, str], float], predictions: Sequence[str], references: References) -> list[float]:
    """The score of each prediction against the best of its references."""
    pairs = zip(predictions, references, strict=True)
    return [max((float(score(text, one)) for one in allowed), default=0.0) for text, allowed in pairs]


def exact_match(predictions: Sequence[str], references: References) -> list[float]:
    """Equal to a reference but for case, ASCII punctuation and white space, as in Natural Instructions."""
    return _best(lambda text, one: _normalized(text) == _normalized(one), predictions, references)


def squad_exact_match(predictions: Sequence[str], references: References) -> list[float]:
    """Equal to a reference but for case, ASCII punctuation, white space and articles, as in SQuAD."""
    return _best(lambda text, one: _squad_words(text) == _squad_words(one), predictions, references)


def squad_f1(predictions: Sequence[str], references: References) -> list[float]:
    """F1 of the words in common with the most similar reference, without articles, as in SQuAD."""
    return _best(_squad_f1, predictions, references)


def _squad_f1(text: str, reference: str) -> float:
    words, expected = _squad_words(text), _squad_words(reference)
    if not words or not expected:
        return words == expected
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected))


def _normalized(text: str) -> str:
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def _squad_words(text: str) -> list[str]:
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def _rouge(name: str, predictions: Sequence[str], references: References) -> list[float]:
    """
    ROUGE (F1, with the Porter stemmer) against the most similar reference, as Natural Instructions states it. Its
    words are those of `[a-z0-9]`: it is made for English.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([name], use_stemmer=True)
    return _best(lambda text, one: scorer.score(one, text)[name].fmeasure, predictions, references)


def _sacrebleu(name: str, predictions: Sequence[str], references: References) -> float:
    """A corpus score of sacrebleu by its default settings, with any number of references for each example."""
    import sacrebleu

    most = max(map(len, references))
    streams = [[one[place] if place < len(one) else None for one in references] for place in range(most)]
    return getattr(sacrebleu, name)(list(predictions), streams).score / 100


# ---- The table ------------------------------------------------------------------------------------------------------


def _metric(key: str, function: Callable, **options: Any) -> TaskMetric:
    return TaskMetric(key, METRIC_KINDS[key], function, **options)


METRICS: dict[str, TaskMetric] = {
    metric.key: metric
    for metric in (
        _metric("accuracy", accuracy),
        _metric("f1", partial(_of_classes, "f1_score", False)),
        _metric("f1_macro", partial(_of_classes, "f1_score", True), hub_name="f1"),
        _metric("precision", partial(_of_classes, "precision_score", False)),
        _metric("recall", partial(_of_classes, "recall_score", False)),
        _metric("matthews_correlation", matthews_correlation),
        _metric("pearson", partial(_correlation, "pearsonr"), baseline=0.0, hub_name="pearsonr"),
        _metric("spearman", partial(_correlation, "spearmanr"), baseline=0.0, hub_name="spearmanr"),
        *(_metric(key, partial(_rouge, key), scale=100.0, hub_name="rouge") for key in ("rouge1", "rouge2", "rougeL")),
        _metric("exact_match", exact_match),
        _metric("squad_exact_match", squad_exact_match, scale=100.0, hub_name="squad"),
        _metric("squad_f1", squad_f1, scale=100.0, hub_name="squad"),
        _metric("bleu", partial(_sacrebleu, "corpus_bleu"), scale=100.0, hub_name="sacrebleu", needs="sacrebleu"),
        _metric("chrf", partial(_sacrebleu, "corpus_chrf"), scale=100.0, needs="sacrebleu"),
    )
}


def get_metric(name: str) -> TaskMetric:
    """A metric of `METRICS`; [`TaskSpec`] has checked its name."""
    return METRICS[name]


def check_installed(names: Iterable[str]) -> None:
    """
    Check that metrics can be computed, before hours of training.

    Raises:
        `ValueError`: if the package of a metric is not installed.
    """
    for name in names:
        needed = METRICS[name].needs
        if needed is not None and importlib.util.find_spec(needed) is None:
            raise UserError(
                f"The metric {name!r} needs {needed}, which is not installed: `pip install {needed}`, or install "
                "hf_depth with its extra `metrics`."
            )


def register_metric(
    metric: "Callable[..., Any] | evaluate.EvaluationModule",
    key: str | None = None,
    *,
    kind: str,
    scale: float = 1.0,
    baseline: float | None = None,
    hub_name: str | None = None,
    overwrite: bool = False,
) -> TaskMetric:
    """
    Add a metric, which the `metric_names` of a task may then name.

    Args:
        metric (`Callable` or `evaluate.Metric`):
            A function of `(predictions, references)` that returns one score for all examples, or one for each, of
            which the mean counts; or a metric of `evaluate`, such as `evaluate.load("meteor")`.
        key (`str`, *optional*): the name; by default that of the function or metric.
        kind (`str`):
            Of `"ids"`, for tasks with labels, both are arrays of the numbers of classes, -1 for an unparseable
            prediction. If the function takes `num_labels`, it gets their number; if it takes `sample_weight`, it also
            scores majority and chance, with an array of weights (`None` for the model). Of `"values"`, for tasks on
            numbers, both are arrays of numbers. Of `"texts"`, for free-form tasks, predictions are texts, and
            references lists of texts.
        scale (`float`, *optional*, defaults to 1.0): so many times what the function returns is reported.
        baseline (`float`, *optional*): of `"values"`, what guessing scores.
        hub_name (`str`, *optional*): the name of the metric on the Hub, for the model card.
        overwrite (`bool`, *optional*, defaults to `False`): replace another metric of that key. (On tasks with labels,
            `exact_match` always compares the classes.)

    Returns:
        [`TaskMetric`]

    Raises:
        `TypeError`: if it is no function, or does not take predictions and references.
        `ValueError`: if it has no key or no such kind, or there is another metric of that key, or an evaluation
            reports something else by that name.

    >>> from hf_depth import TaskSpec, register_metric
    >>> def within_one(predictions, references):
    ...     return np.abs(predictions - references) <= 1
    >>> metric = register_metric(within_one, kind="values")
    >>> stars = TaskSpec("mine", "stars", "review", "", list("12345"), label_step=1, metric_names="within_one")
    >>> metric.compute(predictions=[1.0, 5.0], references=[2.0, 2.0])
    0.5
    >>> del METRICS["within_one"], METRIC_KINDS["within_one"]
    """
    key = key or getattr(metric, "name", None) or getattr(metric, "__name__", None)
    function = _of_evaluate(metric, key) if _is_of_evaluate(metric) else metric
    found = TaskMetric(key, kind, function, scale, baseline, hub_name)
    _check_metric(found)
    if key in METRIC_ALIASES or (not overwrite and METRICS.get(key, found) != found):
        raise UserError(
            f"There already is another metric {key!r}. Choose another `key`. (`overwrite=True` replaces one of the "
            "same `key`.)"
        )
    METRICS[key] = found
    METRIC_KINDS[key] = kind
    return found


def _check_metric(metric: TaskMetric) -> None:
    """Stop on a metric that could not be computed after the training."""
    if not metric.key or not isinstance(metric.key, str) or metric.kind not in KINDS:
        raise UserError(
            f"A metric must have a `key`, its name, and a `kind` among {listed(KINDS)}, got {metric.key!r} and "
            f"{metric.kind!r}."
        )
    if metric.key in _REPORTED or metric.key.startswith(_REPORTED_BEGINS) or metric.key.endswith("_per_second"):
        raise UserError(f"`eval_{metric.key}` is what an evaluation reports beside the metrics: choose another `key`.")
    try:
        signature = inspect.signature(metric.function)
        signature.bind([], [], **{name: None for name in _OPTIONS if name in signature.parameters})
    except TypeError as error:
        raise TypeError(
            f"The metric {metric.key!r} must be a function that is called as `metric(predictions, references)`, got "
            f"{metric.function!r:.80}: {error}."
        ) from error


# ---- evaluate -------------------------------------------------------------------------------------------------------


def _is_of_evaluate(metric: Any) -> bool:
    return hasattr(metric, "compute") and hasattr(metric, "add_batch")


def _of_evaluate(metric: "evaluate.EvaluationModule", key: str) -> Callable[..., float]:
    """A metric of `evaluate` as a function; of several results, the one named `key` counts."""

    def function(predictions: Sequence, references: Sequence) -> float:
        found = metric.compute(predictions=predictions, references=references)
        if key not in found and len(found) > 1:
            raise UserError(f"The metric has {listed(found)}, not {key!r}: give one of them as `key`.")
        return found.get(key, next(iter(found.values())))

    return function

"""What a score is worth: the same task by a bag of words, and by the same training of a model from scratch."""

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..errors import UserError
from ..evaluation.probing import BagOfWords, Probe, with_random_weights
from ..evaluation.scoring import compute_task_metrics
from ..tasks.dataset import TaskDataset
from ..tasks.splits import LoadedTask, TaskSplits
from .inputs import by_name

if TYPE_CHECKING:
    from .task_trainer import TaskTrainer

# By which the learning rate of a run is multiplied for a model from scratch, which often wants a higher one.
SCRATCH_FACTORS = (1.0, 2.0, 4.0)

Scores = dict[tuple[str, str, str], dict[str, float]]  # by benchmark, task and split


def fit_baselines(trainer: "TaskTrainer", splits: TaskSplits, names: Sequence[str]) -> Scores:
    """
    The metrics of baselines on the data sets that a trainer evaluates, as `<baseline>_<metric>`.

    `"bag_of_words"` is a logistic regression on TF-IDF weights of the tokens, `"from_scratch"` the same training of
    random weights. Validation examples choose the regularization of the one, and the learning rate of the other.
    """
    found: Scores = {}
    for name in names:
        if name == "bag_of_words":
            parts = [_bag_of_words(part, trainer) for part in splits.parts]
        else:
            parts = [_from_scratch(trainer, splits)]
            set_seed(trainer.args.seed)
        for part in parts:
            for key, scores in part.items():
                found.setdefault(key, {}).update({f"{name}_{metric}": score for metric, score in scores.items()})
    return found


def _bag_of_words(part: LoadedTask, trainer: "TaskTrainer") -> Scores:
    spec, examples = part.spec, part.examples
    if spec.labels is None or spec.train_split not in examples:
        raise UserError(f"The baseline bag_of_words is for tasks with labels and training examples: {spec.full_name}.")
    validation = next((examples[split] for split in spec.validation_splits if split in examples), None)
    features = BagOfWords(trainer.processing_class, spec, seed=trainer.args.seed)
    probe = Probe(spec, features, trainer.args.seed).fit(examples[spec.train_split], validation)
    return {
        (spec.benchmark, spec.name, split): _own(
            spec, compute_task_metrics(spec, rows, predicted_ids=probe.predict(rows))
        )
        for split, rows in examples.items()
        if split != spec.train_split
    }


def _own(spec: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in spec.metric_names if name in metrics}


def _from_scratch(trainer: "TaskTrainer", splits: TaskSplits) -> Scores:
    best, found = None, {}
    datasets = [*by_name(splits.eval_dataset()).values(), *by_name(splits.test_datasets()).values()]
    datasets = {dataset.key: dataset for dataset in datasets if isinstance(dataset, TaskDataset)}
    for factor in SCRATCH_FACTORS:
        other = _trainer_from_scratch(trainer, factor * trainer.args.learning_rate)
        other.train()
        has_validation = other.eval_dataset is not None
        score = (
            other.evaluate_tasks(other.eval_dataset, metric_key_prefix="eval")["eval_score"] if has_validation else 0.0
        )
        if trainer.is_world_process_zero():
            print(f"from scratch, learning rate {other.args.learning_rate:.2g}: score {score:.4f}", flush=True)
        if best is None or score > best:
            best = score
            other.evaluate_tasks({"/".join(key): dataset for key, dataset in datasets.items()})
            found = {key: _own(one.dataset.spec, one.metrics) for key, one in other.evaluations.items()}
        if not has_validation:  # nothing to choose by
            break
    if trainer.is_world_process_zero():
        shutil.rmtree(other.args.output_dir, ignore_errors=True)
    return found


def _trainer_from_scratch(trainer: "TaskTrainer", learning_rate: float) -> "TaskTrainer":
    """A trainer of a model with random weights, which writes and reports nothing."""
    args = copy.copy(trainer.args)
    args.output_dir = str(Path(args.output_dir, "from_scratch"))
    args.learning_rate, args.report_to, args.push_to_hub, args.disable_tqdm = learning_rate, [], False, True
    args.eval_strategy = args.logging_strategy = IntervalStrategy.NO
    args.save_strategy, args.load_best_model_at_end, args.eval_on_start = SaveStrategy.NO, False, False
    set_seed(args.seed)
    return type(trainer)(
        model=with_random_weights(trainer.model, args.seed),
        args=args,
        data_collator=trainer.data_collator,
        train_dataset=trainer.train_dataset,
        eval_dataset=trainer.eval_dataset,
        processing_class=trainer.processing_class,
        task_config=trainer.task_config,
    )

"""What a score is worth: the same task by a bag of words, and by the same training of a model from scratch."""

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..arguments.training_flags import BASELINES
from ..errors import UserError, suggestion
from ..evaluation.probing import BagOfWords, Probe, with_random_weights
from ..evaluation.scoring import TaskEvaluation, compute_task_metrics
from ..tasks.dataset import TaskDataset
from ..tasks.spec import TaskSpec
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
        if name not in BASELINES:
            raise UserError(f"There is no baseline {name!r}.{suggestion(name, BASELINES, 'baselines')}")

    def add(name: str, spec: TaskSpec, split: str, metrics: Mapping[str, float]) -> None:
        own = {f"{name}_{metric}": metrics[metric] for metric in spec.metric_names if metric in metrics}
        found.setdefault((spec.benchmark, spec.name, split), {}).update(own)

    if "bag_of_words" in names:
        for part in splits.parts:
            probe = _bag_of_words(part, trainer)
            for split, rows in part.examples.items():
                if split != part.spec.train_split:
                    metrics = compute_task_metrics(part.spec, rows, predicted_ids=probe.predict(rows))
                    add("bag_of_words", part.spec, split, metrics)
    if "from_scratch" in names:
        for one in _from_scratch(trainer, splits):
            add("from_scratch", one.dataset.spec, one.dataset.split, one.metrics)
        set_seed(trainer.args.seed)
    return found


def _bag_of_words(part: LoadedTask, trainer: "TaskTrainer") -> Probe:
    spec, examples = part.spec, part.examples
    if spec.labels is None or spec.train_split not in examples:
        raise UserError(f"The baseline bag_of_words is for tasks with labels and training examples: {spec.full_name}.")
    validation = next((examples[split] for split in spec.validation_splits if split in examples), None)
    features = BagOfWords(trainer.processing_class, spec, seed=trainer.args.seed)
    return Probe(spec, features, trainer.args.seed).fit(examples[spec.train_split], validation)


def _from_scratch(trainer: "TaskTrainer", splits: TaskSplits) -> list[TaskEvaluation]:
    """The evaluations by the best of several trainings; of the first one where there is nothing to choose by."""
    datasets = [*by_name(splits.eval_dataset()).values(), *by_name(splits.test_datasets()).values()]
    datasets = {"/".join(one.key): one for one in datasets if isinstance(one, TaskDataset)}
    has_validation = trainer.eval_dataset is not None
    best, found = 0.0, []
    for factor in SCRATCH_FACTORS if has_validation else SCRATCH_FACTORS[:1]:
        other, score = _trainer_from_scratch(trainer, factor * trainer.args.learning_rate), 0.0
        other.train()
        if has_validation:
            score = other.evaluate_tasks(other.eval_dataset, metric_key_prefix="eval")["eval_score"]
        if trainer.is_world_process_zero():
            print(f"from scratch, learning rate {other.args.learning_rate:.2g}: score {score:.4f}", flush=True)
        if not found or score > best:
            best = score
            other.evaluate_tasks(datasets)
            found = list(other.evaluations.values())
    if trainer.is_world_process_zero():
        shutil.rmtree(other.args.output_dir, ignore_errors=True)
    return found


def _trainer_from_scratch(trainer: "TaskTrainer", learning_rate: float) -> "TaskTrainer":
    """A trainer of a model with random weights, which writes and reports nothing."""
    args = copy.copy(trainer.args)
    args.output_dir = str(Path(args.output_dir, "from_scratch"))
    args.learning_rate, args.report_to, args.push_to_hub, args.disable_tqdm = learning_rate, [], False, True
    args.eval_strategy = args.logging_strategy = IntervalStrategy.NO
    args.early_stopping_patience = None  # which needs evaluations
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

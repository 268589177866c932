"""[`run_probe`]: the probe of a checkpoint as a run of the fine-tuning script, with the same files."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from ..arguments.model_args import FineTuningModelArguments
from ..arguments.task_args import TaskArguments
from ..evaluation.outputs import results_table, write_outputs
from ..evaluation.probing import ProbeOptions, probe_tasks
from ..evaluation.scoring import TaskEvaluation, mean_score
from ..manifests import replace_text
from ..models.loading import load_model
from ..tasks.checks import EVALUATION_MODES, check_prediction_mode
from ..tasks.dataset import name_datasets
from ..tasks.spec import TaskSpec
from ..tasks.splits import TaskSplits
from .evaluation_order import by_name
from .saving import ALL_RESULTS_FILE
from .training_args import TaskTrainingArguments

logger = logging.getLogger(__name__)


def run_probe(
    model_args: FineTuningModelArguments,
    task_args: TaskArguments,
    training_args: TaskTrainingArguments,
    tasks: Sequence[TaskSpec],
) -> list[TaskEvaluation]:
    """
    Probe a checkpoint on tasks, see [`probe_tasks`]: with `do_train` a classifier is fitted on the training
    examples, with `do_eval` and `do_predict` the validation and test examples are predicted by it. The model is not
    trained and not saved; arguments of training are without effect.

    Args:
        model_args: the checkpoint.
        task_args: the data.
        training_args: what to do, the options of the probe, and `output_dir` for the metrics
            (`eval_results.json`, `predict_results.json`, `all_results.json`) and what [`write_outputs`] writes.
        tasks: those that `task_args` names.

    Returns:
        `list[TaskEvaluation]`: one for each split.

    Raises:
        `ValueError`: before anything is loaded, if there is no checkpoint, `do_train` or evaluation, if there are
            several processes, or if `output_dir` holds a model, whose results would be replaced.
    """
    _check(model_args, training_args, tasks)
    model_args.complete()
    tokenizer = model_args.load_tokenizer()
    steps = {"do_train": True, "do_eval": training_args.do_eval or None, "do_predict": training_args.do_predict}
    splits = TaskSplits.load(
        **task_args.for_loading(tasks, cache_dir=model_args.cache_dir), **steps, seed=training_args.seed
    )
    model = load_model(tokenizer=tokenizer, **model_args.for_loading()).to(training_args.device)
    options = ProbeOptions(
        layer=-1 if training_args.probe_layer is None else training_args.probe_layer,
        pooling=training_args.probe_pooling,
        read_together=training_args.probe_read_together,
        normalization=training_args.probe_normalization,
        batch_size=training_args.per_device_eval_batch_size,
    )
    logger.info(f"Probing {model_args.model_name_or_path}: {options}")
    evaluations = probe_tasks(
        model,
        tokenizer,
        splits,
        options,
        seed=training_args.seed,
        do_eval=training_args.do_eval,
        do_predict=training_args.do_predict,
    )
    folder = Path(training_args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    _write_metrics(folder, evaluations)
    write_outputs(folder, evaluations)
    print("\n" + results_table([evaluation.result for evaluation in evaluations]) + "\n", flush=True)
    logger.info(f"Metrics and predictions are in {folder}")
    return evaluations


def _check(
    model_args: FineTuningModelArguments, training_args: TaskTrainingArguments, tasks: Sequence[TaskSpec]
) -> None:
    check_prediction_mode(tasks, training_args.prediction_mode, EVALUATION_MODES)
    if model_args.model_name_or_path is None:
        raise ValueError("`--prediction_mode probe` needs a checkpoint: name it by `--model_name_or_path`.")
    if not training_args.do_train:
        raise ValueError(
            "`--prediction_mode probe` needs `--do_train`: the probe is fitted on the training examples, and the "
            "model is not changed."
        )
    if not (training_args.do_eval or training_args.do_predict):
        raise ValueError("`--prediction_mode probe` needs `--do_eval` or `--do_predict`: what should it predict?")
    if training_args.world_size > 1:
        raise ValueError(
            f"`--prediction_mode probe` runs in one process, there are {training_args.world_size}: start it by "
            "`python`, not by `accelerate launch`."
        )
    if training_args.push_to_hub:
        raise ValueError("`--push_to_hub`: a probe leaves no model to push. Leave it out.")
    folder = Path(training_args.output_dir)
    if (folder / "config.json").is_file() or any(folder.glob("checkpoint-*")):
        raise ValueError(
            f"`--output_dir {folder}` holds a model, whose results those of the probe would replace. Name another one."
        )


def _write_metrics(folder: Path, evaluations: Sequence[TaskEvaluation]) -> None:
    """Metrics by the names that fine-tuning gives them, such as `eval_accuracy` and `predict_mnli_test_accuracy`."""
    everything: dict[str, float] = {}
    for prefix, attribute in (("eval", "validation_splits"), ("predict", "test_splits")):
        found = {
            evaluation.dataset.key: evaluation
            for evaluation in evaluations
            if evaluation.dataset.split in getattr(evaluation.dataset.spec, attribute)
        }
        if not found:
            continue
        datasets = by_name(name_datasets([evaluation.dataset for evaluation in found.values()]))
        metrics = {}
        for name, dataset in datasets.items():
            own, start = found[dataset.key].metrics, f"{prefix}_{name}_" if name else f"{prefix}_"
            metrics |= {f"{start}{key}": value for key, value in own.items()} | {f"{start}samples": len(dataset.rows)}
        score = mean_score(found.values())
        if score is not None:
            metrics[f"{prefix}_score"] = score
        replace_text(folder / f"{prefix}_results.json", json.dumps(metrics, indent=4, sort_keys=True))
        everything |= metrics
    replace_text(folder / ALL_RESULTS_FILE, json.dumps(everything, indent=4, sort_keys=True))

"""
Fine-tune a DEPTH model or a T5 on the tasks of a benchmark, or on a task of your own, and evaluate it.

    python examples/fine_tune_t5.py examples/configs/quickstart_fine_tune.yaml
    accelerate launch examples/fine_tune_t5.py --model_name_or_path google/t5-v1_1-base --benchmark glue \
        --dataset_name rte --output_dir runs/rte --do_train --do_eval --do_predict --learning_rate 1e-4
    accelerate launch examples/fine_tune_t5.py --model_name_or_path runs/depth --task_file my_task.yaml \
        --train_file train.jsonl --validation_file validation.jsonl --output_dir runs/mine --do_train --do_eval

Arguments come from a YAML or JSON file, from flags, or from a file followed by flags that override it.
"""

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerState, set_seed

from hf_depth.arguments.launch import check_run_arguments, set_up
from hf_depth.arguments.model_args import FineTuningModelArguments
from hf_depth.arguments.parser import parse_arguments
from hf_depth.arguments.task_args import LOADER_OPTIONS, TaskArguments, chosen_tasks, training_tasks
from hf_depth.evaluation.outputs import results_table, write_outputs
from hf_depth.evaluation.plots import plot_losses
from hf_depth.models.loading import load_model
from hf_depth.tasks.dataset import DataCollatorForTasks, TaskDataset, name_datasets
from hf_depth.tasks.loading import load_task
from hf_depth.tasks.preprocessing import TaskPreprocessor, prepare_task, task_statistics
from hf_depth.tasks.spec import TaskSpec
from hf_depth.tasks.splits import mix_tasks
from hf_depth.training.callbacks import RunRecorder
from hf_depth.training.checkpoints import (
    best_checkpoint,
    check_same_model,
    check_same_run,
    checkpoint_to_resume,
    describe_run,
    is_finished,
)
from hf_depth.training.model_card import run_settings
from hf_depth.training.task_trainer import TaskTrainer
from hf_depth.training.training_args import TaskTrainingArguments

logger = logging.getLogger(__name__)

ARGUMENTS = (FineTuningModelArguments, TaskArguments, TaskTrainingArguments)


def check(model_args, training_args, tasks):
    """Stop on arguments that contradict each other, before anything is loaded."""
    check_run_arguments(model_args, training_args)
    open_tasks = [task.name for task in tasks if task.labels is None]
    if open_tasks and training_args.prediction_mode == "score_labels":
        raise ValueError(
            f"`--prediction_mode score_labels` is for tasks with labels; the answers of {', '.join(open_tasks)} are "
            "open text. Use `--prediction_mode generate`."
        )
    if model_args.missing_checkpoint is not None:
        logger.warning(f"There is no {model_args.missing_checkpoint}: the model is trained from scratch.")
    model_args.complete()


# ---- Data -----------------------------------------------------------------------------------------------------------


@dataclass
class Splits:
    """The rows of one task that a run needs, and as ids of the model; prepared by [`prepare`]."""

    spec: TaskSpec
    rows: dict[str, Dataset]
    prepared: dict[str, Dataset] = field(default_factory=dict)

    def dataset(self, split: str) -> TaskDataset:
        rows, prepared = self.rows[split], self.prepared[split]
        return TaskDataset(self.spec, split, rows, prepared, train_label_ids=self.train_label_ids)

    @cached_property
    def train_label_ids(self) -> list[int] | None:
        if self.spec.labels is None or self.spec.train_split not in self.rows:
            return None
        column = self.spec.label_column_name
        return [self.spec.label_id({column: label}) for label in self.rows[self.spec.train_split][column]]


def load(tasks, task_args, model_args, training_args, length=None) -> list[Splits]:
    """
    The rows of the splits that the run needs, at most as many as the arguments allow.

    Args:
        length: counts the tokens of a text, for loaders that choose what fits.
    """
    trained = training_tasks(tasks, task_args)
    predicted = {(task.benchmark, task.name) for task in tasks}
    loaded = []
    for task in [*trained, *(task for task in tasks if task not in trained)]:
        in_training, in_prediction = task in trained, (task.benchmark, task.name) in predicted
        needed = needed_splits(task, in_training, in_prediction, training_args)
        if not needed:
            continue
        with training_args.main_process_first(desc=f"loading {task.name}"):
            rows = load_task(
                task,
                train_file=task_args.train_file if in_training else None,
                validation_file=task_args.validation_file if in_training else None,
                test_file=task_args.test_file if in_prediction else None,
                dataset_dir=task_args.dataset_dir,
                cache_dir=model_args.cache_dir,
                options={name: getattr(task_args, name) for name in LOADER_OPTIONS} | {"length": length},
                seed=training_args.seed,
            )
        loaded.append(Splits(task, limited(task, rows, needed, task_args, training_args.seed)))
    return loaded


def needed_splits(task, in_training, in_prediction, training_args) -> dict[str, str]:
    """The splits that a run needs of a task, and by which flag: `train`, `eval` or `predict`."""
    needed = {}
    if in_training and training_args.do_train:
        needed[task.train_split] = "train"
    if in_training and (training_args.do_eval or training_args.eval_strategy != "no"):
        needed |= dict.fromkeys(task.validation_splits, "eval")
    if in_prediction and training_args.do_predict:
        needed |= dict.fromkeys(task.test_splits, "predict")
    return needed


def limited(task, rows, needed, task_args, seed) -> dict[str, Dataset]:
    """The needed splits, each cut to a random subset of the size that its flag allows, in the order of the data."""
    kept = {}
    for split, purpose in needed.items():
        if split not in rows:
            check_missing(task, split, rows, needed)
            continue
        kept[split] = rows[split]
        limit = getattr(task_args, f"max_{purpose}_samples")
        if limit is not None and limit < len(kept[split]):
            chosen = np.random.default_rng(seed).permutation(len(kept[split]))[:limit]
            kept[split] = kept[split].select(np.sort(chosen))
    return kept


def check_missing(task, split, rows, needed):
    """Stop if a task has no data for what a flag asks; of several splits, or to predict, some may be missing."""
    purpose = needed[split]
    flag = {"train": "train_file", "eval": "validation_file", "predict": "test_file"}[purpose]
    message = f"Task {task.name!r} has no {split!r} data for `--do_{purpose}`, only {', '.join(rows) or 'none'}"
    if purpose == "predict" or any(other in rows for other, role in needed.items() if role == purpose):
        logger.warning(f"{message}.")
        return
    raise ValueError(f"{message}: name `--{flag}`, a `--dataset_dir` that holds them, or leave out `--do_{purpose}`.")


def prepare(loaded, tokenizer, task_args, model_args, training_args) -> dict[str, dict]:
    """Rows -> ids of the model, into `prepared`; returns the statistics of each split."""
    statistics = {}
    for splits in loaded:
        preprocessor = build_preprocessor(splits.spec, tokenizer, task_args, model_args, training_args)
        for split, rows in splits.rows.items():
            name = f"{splits.spec.name} {split}"
            with training_args.main_process_first(desc=f"preparing {name}"):
                splits.prepared[split] = prepare_task(
                    rows,
                    preprocessor,
                    num_proc=task_args.preprocessing_num_workers,
                    overwrite_cache=task_args.overwrite_cache,
                    desc=f"Preparing {name}",
                ).with_format("numpy")
            statistics[name] = task_statistics(splits.prepared[split], tokenizer.unk_token_id)
            report_statistics(statistics[name], name)
    return statistics


def build_preprocessor(spec, tokenizer, task_args, model_args, training_args) -> TaskPreprocessor:
    return TaskPreprocessor(
        tokenizer,
        spec,
        sentence_tokens=model_args.model_type == "depth",
        sentence_language=task_args.sentence_language,
        seed=training_args.seed,
    )


def report_statistics(statistics, name):
    """Say what the preparation made of the rows."""
    logger.info(f"{name}: " + ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in statistics.items()))
    if statistics["cut_examples"]:
        logger.warning(
            f"{name}: {statistics['cut_examples']:,} of {statistics['examples']:,} rows were too long, and lost "
            f"{statistics['tokens_cut']:,} tokens. Raise `--max_source_length` or `--max_target_length` to keep them."
        )
    if statistics["unknown_tokens"] > 0.01 * statistics["tokens"]:
        logger.warning(
            f"{name}: {statistics['unknown_tokens'] / statistics['tokens']:.1%} of the tokens are unknown to the "
            "tokenizer (`<unk>`): does it fit the language? Name another one by `--tokenizer_name`."
        )


def vocabulary_texts(loaded):
    """What a vocabulary of our own is trained on: prompts and answers."""
    for splits in loaded:
        for row in splits.rows.get(splits.spec.train_split, ()):
            yield " ".join([splits.spec.prompt(row), *splits.spec.targets(row)])


def training_rows(loaded, task_args, training_args) -> Dataset:
    parts = [
        splits.prepared[splits.spec.train_split] for splits in loaded if splits.spec.train_split in splits.prepared
    ]
    seed = training_args.data_seed if training_args.data_seed is not None else training_args.seed
    return mix_tasks(parts, seed, task_args.mixing_maximum, task_args.mixing_temperature)


def evaluation_sets(loaded, names) -> list[TaskDataset]:
    """The data sets of the splits `names(spec)`, the first one of each task first."""
    return [splits.dataset(split) for splits in loaded for split in names(splits.spec) if split in splits.prepared]


# ---- Run ------------------------------------------------------------------------------------------------------------


def show_examples(loaded, tokenizer, number=2):
    print("\nWhat the model reads and writes:")
    for splits in loaded:
        rows = next(iter(splits.prepared.values()))
        for row in rows.select(range(min(number, len(rows)))):
            print(f"input:  {tokenizer.decode(row['input_ids'])}")
            print(f"target: {tokenizer.decode(row['labels'])}\n", flush=True)


def train(trainer, checkpoint, statistics):
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    metrics = result.metrics | {f"train_{name}": value for name, value in statistics.items()}
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)


def evaluate(trainer):
    """The scores of the final model (the best one, with `load_best_model_at_end`) on the validation sets."""
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)


def predict(trainer, datasets):
    """Answers to the test sets, and scores where their labels are known."""
    metrics = trainer.evaluate_tasks(name_datasets(datasets), metric_key_prefix="predict")
    trainer.log_metrics("predict", metrics)
    trainer.save_metrics("predict", metrics)


def finish(trainer):
    """
    The table of all scores, files of all answers and, of a model that was trained, its losses and its card; then what
    goes to the Hub.
    """
    args = trainer.args
    if args.should_log and trainer.evaluations:
        results = [evaluation.result for evaluation in trainer.evaluations.values()]
        print("\n" + results_table(results) + "\n", flush=True)
    if args.do_train:
        trainer.save_state()  # once more, with the last evaluation
    if trainer.is_world_process_zero():
        write_outputs(args.output_dir, trainer.evaluations.values())
        if args.do_train:
            plot_losses(trainer.state.log_history, Path(args.output_dir, "losses.png"))
            trainer.create_model_card()
    if args.push_to_hub:
        trainer.push_to_hub()


def card_sections(loaded, statistics, task_args, model_args, training_args, model):
    """What the model card states about the data and the settings of a run."""
    files = {name: getattr(task_args, name) for name in ("train_file", "validation_file", "test_file")}
    data = {name: ", ".join(Path(file).name for file in value) for name, value in files.items() if value}
    if task_args.dataset_dir is not None:
        data["dataset_dir"] = Path(task_args.dataset_dir).name
    # Without files they come from the Hub, or are made of the Python language reference.
    data = data or {one.spec.name: one.spec.path or "the Python language reference" for one in loaded}
    rows = {f"{name}: rows": counts["examples"] for name, counts in statistics.items()}
    settings = {"prediction_mode": training_args.prediction_mode}
    if len(loaded) > 1:
        settings |= {name: getattr(task_args, name) for name in ("mixing_temperature", "mixing_maximum")}
    return {"Data": data | rows, "Settings": settings | run_settings(model_args, training_args, model)}


def hub_datasets(loaded, task_args) -> list[str]:
    """The names on the Hub of the data, if they come from there: without any files of the user's."""
    files = (task_args.dataset_dir, task_args.train_file, task_args.validation_file, task_args.test_file)
    return [] if any(files) else sorted({one.spec.path for one in loaded if one.spec.path})


def build_trainer(loaded, tokenizer, model, task_args, training_args) -> TaskTrainer:
    evaluated = evaluation_sets(loaded, lambda spec: spec.validation_splits)
    return TaskTrainer(
        model=model,
        args=training_args,
        data_collator=DataCollatorForTasks(tokenizer, pad_to_multiple_of=task_args.pad_to_multiple_of),
        train_dataset=training_rows(loaded, task_args, training_args) if training_args.do_train else None,
        eval_dataset=name_datasets(evaluated) if evaluated else None,
        processing_class=tokenizer,
    )


def load_with_tokenizer(tasks, tokenizer, task_args, model_args, training_args):
    """The data, and the tokenizer, which is trained on the data if there is none."""
    if tokenizer is None:
        loaded = load(tasks, task_args, model_args, training_args)
        tokenizer = model_args.train_tokenizer(vocabulary_texts(loaded), training_args)
    # Any task will do for counting tokens.
    counter = build_preprocessor(tasks[0], tokenizer, task_args, model_args, training_args)
    return load(tasks, task_args, model_args, training_args, counter.length), tokenizer


def main(args=None):
    model_args, task_args, training_args = parse_arguments(ARGUMENTS, args)
    set_up(training_args)
    tasks = chosen_tasks(task_args)
    check(model_args, training_args, tasks)
    trained = sorted(
        f"{task.benchmark}/{task.name} version {task.version}" for task in training_tasks(tasks, task_args)
    )
    run = describe_run(model_args, script=Path(__file__).name, tasks=trained)
    checkpoint = checkpoint_to_resume(training_args)
    if checkpoint is not None:
        check_same_run(checkpoint, run)
        best = best_checkpoint(checkpoint, training_args)
    if checkpoint is not None and is_finished(checkpoint, training_args):
        logger.info(f"{checkpoint} is the end of this run: there is nothing left to train.")
        training_args.do_train = False
        if not (training_args.do_eval or training_args.do_predict):
            return None
    set_seed(training_args.seed)

    tokenizer = AutoTokenizer.from_pretrained(checkpoint) if checkpoint else model_args.load_tokenizer()
    loaded, tokenizer = load_with_tokenizer(tasks, tokenizer, task_args, model_args, training_args)
    if training_args.do_predict and not any(split in one.rows for one in loaded for split in one.spec.test_splits):
        raise ValueError("No task has test data: name `--test_file`, or leave out `--do_predict`.")
    statistics = prepare(loaded, tokenizer, task_args, model_args, training_args)
    model = load_model(tokenizer=tokenizer, **model_args.for_loading())
    if checkpoint is not None:
        check_same_model(checkpoint, model)
    if checkpoint is not None and not training_args.do_train:
        model = type(model).from_pretrained(best, dtype=torch.float32)
    logger.info(f"{type(model).__name__} with {model.num_parameters() / 1e6:.1f} M parameters")
    if training_args.should_log:
        show_examples(loaded, tokenizer)

    trainer = build_trainer(loaded, tokenizer, model, task_args, training_args)
    trainer.add_callback(RunRecorder(run))
    trainer.card_sections = card_sections(loaded, statistics, task_args, model_args, training_args, model)
    trainer.base_model = model_args.model_name_or_path
    trainer.card_datasets = hub_datasets(loaded, task_args)
    if checkpoint is not None and not training_args.do_train:
        trainer.state = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json"))
    if training_args.do_train:
        train(trainer, checkpoint, {"examples": len(trainer.train_dataset)})
    if training_args.do_eval:
        evaluate(trainer)
    if training_args.do_predict:
        predict(trainer, evaluation_sets(loaded, lambda spec: spec.test_splits))
    finish(trainer)
    trainer.end()
    return trainer


if __name__ == "__main__":
    main()

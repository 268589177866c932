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
from pathlib import Path

import torch
from transformers import AutoTokenizer, TrainerState, set_seed

from hf_depth.arguments.launch import check_run_arguments, set_up
from hf_depth.arguments.model_args import FineTuningModelArguments, load_tokenizer, own_tokenizer
from hf_depth.arguments.parser import parse_arguments
from hf_depth.arguments.task_args import TaskArguments, chosen_tasks
from hf_depth.evaluation.outputs import results_table, write_outputs
from hf_depth.evaluation.plots import plot_losses
from hf_depth.models.loading import load_model
from hf_depth.tasks.checks import check_prediction_mode
from hf_depth.tasks.dataset import DataCollatorForTasks
from hf_depth.tasks.registry import training_tasks
from hf_depth.tasks.splits import TaskSplits
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


def check(model_args, training_args, tasks):
    """Stop on arguments that contradict each other, before anything is loaded."""
    check_run_arguments(model_args, training_args)
    check_prediction_mode(tasks, training_args.prediction_mode)
    if model_args.missing_checkpoint is not None:
        logger.warning(f"There is no {model_args.missing_checkpoint}: the model is trained from scratch.")
    model_args.complete()


# ---- Data -----------------------------------------------------------------------------------------------------------


def load_splits(tasks, task_args, model_args, training_args) -> TaskSplits:
    """The data that the run needs of the tasks."""
    return TaskSplits.load(
        **task_args.for_loading(tasks, cache_dir=model_args.cache_dir),
        do_train=training_args.do_train,
        do_eval=training_args.do_eval or training_args.eval_strategy != "no",
        do_predict=training_args.do_predict,
        seed=training_args.seed,
        main_process_first=training_args.main_process_first,
    )


# ---- Run ------------------------------------------------------------------------------------------------------------


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
    """Predictions for the test sets, and scores where examples are labeled."""
    metrics = trainer.evaluate_tasks(datasets, metric_key_prefix="predict")
    trainer.log_metrics("predict", metrics)
    trainer.save_metrics("predict", metrics)


def finish(trainer):
    """
    The table of all scores, files of all predictions and, of a model that was trained, its losses and its card; then
    what goes to the Hub.
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


def card_sections(splits, task_args, model_args, training_args, model):
    """What the model card states about the data and the settings of a run."""
    settings = {"prediction_mode": training_args.prediction_mode}
    if len(splits.tasks) > 1:
        settings |= task_args.for_mixing()
    return {"Data": splits.description, "Settings": settings | run_settings(model_args, training_args, model)}


def build_trainer(splits, tokenizer, model, task_args, training_args) -> TaskTrainer:
    seed = training_args.data_seed if training_args.data_seed is not None else training_args.seed
    return TaskTrainer(
        model=model,
        args=training_args,
        data_collator=DataCollatorForTasks(tokenizer, pad_to_multiple_of=task_args.pad_to_multiple_of),
        train_dataset=splits.train_dataset(**task_args.for_mixing(), seed=seed) if training_args.do_train else None,
        eval_dataset=splits.eval_dataset(),
        processing_class=tokenizer,
    )


def main(args=None):
    model_args, task_args, training_args = parse_arguments(
        (FineTuningModelArguments, TaskArguments, TaskTrainingArguments), args
    )
    set_up(training_args)
    tasks = chosen_tasks(task_args)
    check(model_args, training_args, tasks)
    trained = sorted(f"{task.benchmark}/{task.name} version {task.version}" for task in training_tasks(tasks))
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

    tokenizer = AutoTokenizer.from_pretrained(checkpoint) if checkpoint else load_tokenizer(model_args)
    splits = load_splits(tasks, task_args, model_args, training_args)
    if tokenizer is None:
        tokenizer = own_tokenizer(splits.training_texts(), model_args, training_args)
    splits.prepare(tokenizer, sentence_tokens=model_args.model_type == "depth", **task_args.for_preparing())
    model = load_model(tokenizer=tokenizer, **model_args.for_loading())
    if checkpoint is not None:
        check_same_model(checkpoint, model)
    if checkpoint is not None and not training_args.do_train:
        model = type(model).from_pretrained(best, dtype=torch.float32)
    logger.info(f"{type(model).__name__} with {model.num_parameters() / 1e6:.1f} M parameters")
    if training_args.should_log:
        print(f"\nWhat the model reads and writes:\n{splits.preview()}", flush=True)

    trainer = build_trainer(splits, tokenizer, model, task_args, training_args)
    trainer.add_callback(RunRecorder(run))
    trainer.card_sections = card_sections(splits, task_args, model_args, training_args, model)
    trainer.base_model = model_args.model_name_or_path
    trainer.card_datasets = splits.hub_datasets
    if checkpoint is not None and not training_args.do_train:
        trainer.state = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json"))
    if training_args.do_train:
        train(trainer, checkpoint, {"examples": len(trainer.train_dataset)})
    if training_args.do_eval:
        evaluate(trainer)
    if training_args.do_predict:
        predict(trainer, splits.test_datasets())
    finish(trainer)
    trainer.end()
    return trainer


if __name__ == "__main__":
    main()

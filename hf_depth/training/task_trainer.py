"""[`TaskTrainer`]: fine-tuning, with evaluation by what the model answers, never by teacher forcing."""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from transformers.trainer_utils import speed_metrics

from ..evaluation.label_scoring import score_labels
from ..evaluation.scoring import TaskEvaluation, TaskPredictions, compute_task_metrics, optimized_score
from ..tasks.dataset import TaskDataset
from ..tasks.preprocessing import encode_labels
from .callbacks import EarlyStopping
from .model_card import fine_tuning_card
from .statistics import summarize
from .trainer import DepthTrainer
from .training_args import TaskTrainingArguments


class TaskTrainer(DepthTrainer):
    """
    A [`DepthTrainer`] for tasks.

    - Evaluation lets the model write its answers, or scores every label (`prediction_mode="score_labels"`), and
      reports the metrics of the task. `eval_loss` is that of the targets.
    - `eval_dataset` is a [`TaskDataset`], or a dictionary of several, whose keys stand in the names of their metrics:
      `eval_accuracy`, `eval_rte_accuracy`. `eval_score` is the mean over the tasks of `metric_to_optimize` (on a scale
      from 0 to 1) on the first data set of each; a better one is always greater.
    - `predict(...)` returns [`TaskPredictions`] as its `predictions`, in the order of the rows, whatever the number of
      processes.

    Args: those of [`Seq2SeqTrainer`], with `args` a [`TaskTrainingArguments`], `processing_class` a tokenizer and
    `data_collator` a [`DataCollatorForTasks`].
    """

    args: TaskTrainingArguments
    training_metrics = ("padding_fraction", "tokens_cut")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.early_stopping_patience is not None:
            patience, threshold = self.args.early_stopping_patience, self.args.early_stopping_threshold
            self.add_callback(EarlyStopping(patience, threshold))
        # The latest evaluation of each data set, by its key.
        self.evaluations: dict[tuple[str, str, str], TaskEvaluation] = {}
        self._task_dataset, self._label_ids, self._gen_kwargs = None, None, {}

    # ---- Evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
        """As the host's, but one log and one event for all data sets, with their mean score."""
        datasets = self.eval_dataset if eval_dataset is None else eval_dataset
        metrics = self.evaluate_tasks(datasets, ignore_keys, metric_key_prefix, **gen_kwargs)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluate_tasks(self, datasets, ignore_keys=None, metric_key_prefix="predict", **gen_kwargs) -> dict:
        """
        Evaluate on data sets without a log, as for test data. What was predicted is in `evaluations`.

        Args:
            datasets: a [`TaskDataset`], or a dictionary of several.

        Returns:
            The metrics of all data sets, and `{metric_key_prefix}_score` if their labels are known.
        """
        is_own = datasets is self.eval_dataset
        datasets = datasets if isinstance(datasets, Mapping) else {"": datasets}
        self._gen_kwargs = gen_kwargs
        self._memory_tracker.start()
        metrics, scores = {}, {}
        for name, dataset in datasets.items():
            prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
            started = time.time()
            # The host keeps persistent workers by the name of a data set of its own: another one must not get them.
            dataloader = self.get_eval_dataloader(name or None) if is_own else self.get_test_dataloader(dataset)
            output = self.evaluation_loop(dataloader, "Evaluation", ignore_keys=ignore_keys, metric_key_prefix=prefix)
            metrics |= output.metrics | speed_metrics(prefix, started, num_samples=output.num_samples)
            spec, of_task = dataset.spec, self.evaluations[dataset.key].metrics
            if spec.metric_to_optimize in of_task:
                score = optimized_score(spec, of_task)
                scores.setdefault(dataset.key[:2], score if spec.greater_is_better else -score)
        if scores:
            metrics[f"{metric_key_prefix}_score"] = sum(scores.values()) / len(scores)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def evaluation_loop(self, dataloader, *args, metric_key_prefix="eval", **kwargs):
        """The host's loop over a [`TaskDataset`], then the metrics of its task; `predictions` in the order of rows."""
        dataset = self._task_dataset = dataloader.dataset
        self._label_ids = None
        if dataset.spec.labels is not None:
            self._label_ids = encode_labels(self.processing_class, list(dataset.spec.labels.values()))
        try:
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self._task_dataset = None
        predictions = self._task_predictions(dataset, output.predictions, output.label_ids)
        answered = {"answers": predictions.answers}
        if predictions.answers is None:
            answered = {"predicted_ids": predictions.label_ids}
        metrics = compute_task_metrics(dataset.spec, dataset.rows, **answered, train_label_ids=dataset.train_label_ids)
        self.evaluations[dataset.key] = TaskEvaluation(dataset, predictions, metrics)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output._replace(predictions=predictions, label_ids=None)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
        """The loss, then ids (B, G) or scores (B, C), and in the place of labels the index (B,) of each row."""
        inputs = self._prepare_inputs(inputs)
        index = inputs.pop("index")
        loss = self._loss(model, inputs, ignore_keys) if "labels" in inputs else None
        if self._scores_labels():
            return loss, self._label_scores(inputs), index
        gen_kwargs = self._generation_arguments() | gen_kwargs
        return loss, self._generated_ids(model, inputs, ignore_keys, **gen_kwargs), index

    def _scores_labels(self) -> bool:
        return self.args.prediction_mode == "score_labels"

    def _label_scores(self, inputs) -> torch.Tensor:
        if self._label_ids is None:
            raise ValueError(
                f"`prediction_mode` score_labels is for tasks with labels; the answers of task "
                f"{self._task_dataset.spec.name!r} are open text. Use `prediction_mode` generate."
            )
        with torch.no_grad(), self.compute_loss_context_manager():
            return score_labels(
                self.model,
                inputs["input_ids"],
                inputs["attention_mask"],
                self._label_ids,
                length_normalized=self.args.length_normalize_scores,
            )

    def _generation_arguments(self) -> dict:
        """No longer than the longest label or answer, unless told otherwise; `generate()` counts the start token."""
        length = self.args.generation_max_length
        if length is None and self._label_ids is not None:
            length = self._label_ids.shape[1] + 1
        if length is None:
            length = self._task_dataset.spec.max_target_length + 1
        arguments = {"max_length": length, "num_beams": self.args.generation_num_beams}
        return {name: value for name, value in (arguments | self._gen_kwargs).items() if value is not None}

    def _evaluation_metrics(self):
        """The exact loss; the accuracies of the tokens would be those of teacher forcing."""
        return {name: value for name, value in summarize(self._eval_sums).items() if name == "loss"}

    def _task_predictions(self, dataset: TaskDataset, outputs: np.ndarray, index: np.ndarray) -> TaskPredictions:
        """What came out of the loop, in the order of the rows."""
        order = np.argsort(index)
        if not np.array_equal(index[order], np.arange(len(dataset))):
            raise RuntimeError(
                f"The {len(dataset)} rows of {dataset.spec.name!r} ({dataset.split}) came back as {len(index)}, not "
                "each of them once: the processes disagree about the data."
            )
        outputs = outputs[order]
        if self._scores_labels():
            # The keys of `labels` are the classes.
            return TaskPredictions(scores=outputs, label_ids=np.array(list(dataset.spec.labels))[outputs.argmax(1)])
        answers = self._texts(outputs)
        return TaskPredictions(answers, None if dataset.spec.labels is None else dataset.spec.parse_all(answers))

    def _texts(self, generated: np.ndarray) -> list[str]:
        """
        What stands before `</s>` in each row of ids. Other special tokens stay in the text: a label beside a sentinel
        is no answer.
        """
        tokenizer = self.processing_class
        nothing = (-100, tokenizer.pad_token_id)  # padding, also by the host, and the start token
        texts = []
        for ids in generated.tolist():
            ids = ids[: ids.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in ids else ids
            texts.append(tokenizer.decode([i for i in ids if i not in nothing]).strip())
        return texts

    # ---- Model card -------------------------------------------------------------------------------------------------

    def create_model_card(self, model_name=None, **kwargs):
        """Write `README.md` with the latest scores on each data set, or without `card` that of `Trainer`."""
        if self.card is None:
            return super().create_model_card(model_name=model_name, **kwargs)
        if self.is_world_process_zero():
            name = getattr(self, "hub_model_id", None) or model_name or Path(self.args.output_dir).name
            results = [evaluation.result for evaluation in self.evaluations.values()]
            text = fine_tuning_card(name, self.model.config.model_type, results, self.card)
            Path(self.args.output_dir, "README.md").write_text(text, encoding="utf-8")

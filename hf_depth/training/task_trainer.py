"""[`TaskTrainer`]: fine-tuning, with evaluation of what the model generates, never by teacher forcing."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from ..data.tokenization import SENTENCE_TOKENS
from ..evaluation.label_scoring import check_finite_scores, score_labels
from ..evaluation.prediction import decode_generated, generation_length
from ..evaluation.scoring import TaskEvaluation, TaskPredictions, compute_task_metrics, has_baseline, mean_score
from ..models.modeling_depth import has_sentence_tokens
from ..suggestions import listed
from ..tasks.checks import check_prediction_mode
from ..tasks.config import TaskConfig, merge_task_configs
from ..tasks.dataset import HOW_TO_PREPARE, DataCollatorForTasks, TaskDataset, TokenCounts, count_tokens
from ..tasks.preprocessing import encode_labels
from ..tasks.splits import TaskSplits
from .baselines import Scores, fit_baselines
from .callbacks import EarlyStopping
from .card_code import Usage, name_in_code, task_usage
from .evaluation_order import by_name
from .model_card import CardContent, fine_tuning_card
from .statistics import summarize
from .trainer import DepthTrainer
from .training_args import TaskTrainingArguments

logger = logging.getLogger(__name__)

EvaluationData = TaskDataset | Mapping[str, TaskDataset]


NO_TOKEN = -1  # an id that no token has


class TaskTrainer(DepthTrainer):
    """
    A [`DepthTrainer`] for tasks.

    - Evaluation lets the model generate text, or scores every label (`prediction_mode="score_labels"`), and reports
      the metrics of the task. `eval_loss` is that of the targets.
    - `eval_score` is the mean over the tasks of `metric_to_optimize` (on a scale from 0 to 1) on the first data set of
      each; a better one is always greater.
    - `predict(...)` returns [`TaskPredictions`] as its `predictions`, in the order of the examples, whatever the
      number of processes.

    Args:
        model (`PreTrainedModel`): a DEPTH model or a T5.
        args (`TaskTrainingArguments`): how to train and evaluate.
        data_collator (`Callable`, *optional*): by default `DataCollatorForTasks(processing_class)`.
        train_dataset (`Dataset`, *optional*): prepared examples, as `TaskSplits.train_dataset` gives them.
        eval_dataset (`TaskDataset` or `Mapping[str, TaskDataset]`, *optional*):
            As `TaskSplits.eval_dataset` gives it. The keys of several stand in the names of their metrics:
            `eval_accuracy`, `eval_rte_accuracy`.
        processing_class (`PreTrainedTokenizerBase`): the tokenizer that the examples were prepared with.
        task_config (`TaskConfig`, *optional*):
            The tasks and how their examples were prepared: `task_config.json` of each saved model, from which
            [`TaskPredictor`] reads it. By default that of `eval_dataset`; `TaskSplits.task_config` gives it.
        kwargs: the other arguments of [`DepthTrainer`], but none that replaces its loss or the metrics of the tasks.

    Raises:
        `TypeError`: if `args` or a data set is of another class, or there is no tokenizer.
        `ValueError`: if examples are not prepared, or not as the model needs them (with sentence tokens for a DEPTH
            model, without for a T5), or with another tokenizer; if labels are to be scored for a free-form task; for
            `compute_metrics`, `preprocess_logits_for_metrics`, `compute_loss_func` and `remove_unused_columns=True`.

    >>> import tempfile
    >>> from hf_depth import T5ForConditionalGeneration, TaskSplits, TaskTrainer, TaskTrainingArguments
    >>> from hf_depth.data.vocabulary import train_tokenizer
    >>> from transformers import T5Config
    >>> rows = {"sentence1": ["It rains."] * 4, "sentence2": ["It is wet."] * 4, "label": [0, 1, 1, 0]}
    >>> splits = TaskSplits.from_datasets("glue/rte", dict.fromkeys(("train", "validation"), Dataset.from_dict(rows)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tokenizer = train_tokenizer(splits.training_texts(), 200, folder, allow_fewer=True)
    >>> splits = splits.prepare(tokenizer)
    >>> size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer = TaskTrainer(
    ...         model=T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **size)),
    ...         args=TaskTrainingArguments(folder, use_cpu=True, disable_tqdm=True, prediction_mode="score_labels"),
    ...         train_dataset=splits.train_dataset(),
    ...         processing_class=tokenizer,
    ...     )
    ...     metrics = trainer.evaluate_tasks(splits.eval_dataset(), metric_key_prefix="eval")
    >>> metrics["eval_chance_accuracy"]
    0.5
    """

    args: TaskTrainingArguments
    args_class = TaskTrainingArguments
    training_metrics = ("padding_fraction", "tokens_cut")

    def __init__(
        self,
        model: PreTrainedModel | torch.nn.Module | None = None,
        args: TaskTrainingArguments | None = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        train_dataset: Dataset | torch.utils.data.Dataset | None = None,
        eval_dataset: EvaluationData | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        task_config: TaskConfig | None = None,
        **kwargs: Any,
    ):
        if processing_class is None:
            raise TypeError(
                "`processing_class` is missing: give the tokenizer that the examples were prepared with, which reads "
                "what the model generates."
            )
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator or DataCollatorForTasks(processing_class),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        self._check_arguments(kwargs)
        if train_dataset is not None:
            self._check_training_data(train_dataset)
        if eval_dataset is not None:
            self._check_evaluation_data(eval_dataset)
        if self.args.early_stopping_patience is not None:
            patience, threshold = self.args.early_stopping_patience, self.args.early_stopping_threshold
            self.add_callback(EarlyStopping(patience, threshold))
        # The latest evaluation of each data set since the latest training began, by its key.
        self.evaluations: dict[tuple[str, str, str], TaskEvaluation] = {}
        self._evaluated_steps: dict[tuple[str, str, str], int] = {}  # of the weights that `evaluations` are of
        self.baselines: Scores = {}  # of `fit_baselines`
        self._task_dataset, self._label_ids = None, None
        self.task_config = self._complete_task_config(task_config)

    def fit_baselines(self, splits: TaskSplits, names: Sequence[str] | None = None) -> None:
        """
        Before training, measure what scores are to be compared with. All evaluations then have it beside their metrics
        and in the tables: `eval_bag_of_words_accuracy`, `predict_from_scratch_accuracy`.

        Args:
            splits ([`TaskSplits`]): whose data sets this trainer has.
            names (`Sequence[str]`, *optional*): see [`fit_baselines`]; by default those of the arguments.
        """
        self.baselines = fit_baselines(self, splits, self.args.baselines or () if names is None else names)

    def _check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Stop on what a `Seq2SeqTrainer` takes, but an evaluation of tasks cannot heed."""
        instead = {
            "compute_metrics": "The metrics are those of the task: `metric_names`.",
            "preprocess_logits_for_metrics": "The metrics are those of the task, of generated text or scored labels.",
        }
        for name, advice in instead.items():
            if arguments.get(name) is not None:
                raise ValueError(f"`{name}` is not supported by TaskTrainer. {advice}")
        check_prediction_mode([], self.args.prediction_mode)  # a probe trains no model
        if self.args.remove_unused_columns:
            raise ValueError(
                "`remove_unused_columns=True` would remove `index`, by which each prediction finds its example. Leave "
                "it at False: the collator takes what the model needs."
            )

    def _complete_task_config(self, task_config: TaskConfig | None) -> TaskConfig | None:
        """What is saved with the model: how examples are prepared, and how these arguments predict them."""
        if task_config is None:
            datasets = by_name(self.eval_dataset).values()
            task_config = merge_task_configs([data.config for data in datasets if getattr(data, "config", None)])
        if task_config is None:
            if self.train_dataset is not None:
                logger.warning(
                    "The saved model will not say what its task is: give `task_config=splits.task_config`, or an "
                    "`eval_dataset` of one `TaskSplits`."
                )
            return None
        names = ("prediction_mode", "length_normalize_scores", "generation_num_beams")
        settings = {name: getattr(self.args, name) for name in names}
        return task_config.replace(generation_max_length=self.generation_max_length, **settings)

    def _report_unknown_length(self) -> None:
        """Not here: it is that of each task."""

    def _longest_target(self) -> int | None:
        """Of the data set that is evaluated: of its longest label, or target."""
        return None if self._task_dataset is None else generation_length(self._task_dataset.spec, self._label_ids)

    def _evaluation_metric_names(self) -> list[str]:
        names = ["score"]
        for key, dataset in by_name(self.eval_dataset).items():
            metrics = dataset.spec.metric_names
            baselines = [f"{kind}_{name}" for kind in ("majority", "chance") for name in filter(has_baseline, metrics)]
            unparsed = ["unparsed_fraction"] if dataset.spec.labels is not None and not self._scores_labels() else []
            metrics = ["loss", *unparsed, *metrics, *baselines]
            names += [f"{key}_{name}" if key else name for name in metrics]
        return names

    def _check_metric_for_best_model(self, name: str) -> None:
        """Also that `greater_is_better` fits what is known of the metric; else the worst model would be kept."""
        super()._check_metric_for_best_model(name)
        greater_is_better = {"score": True}
        for key, dataset in by_name(self.eval_dataset).items():
            known = {"loss": False, "unparsed_fraction": False}
            known[dataset.spec.metric_to_optimize] = dataset.spec.greater_is_better
            greater_is_better |= {f"{key}_{metric}" if key else metric: known[metric] for metric in known}
        expected = greater_is_better.get(name, self.args.greater_is_better)
        if self.args.greater_is_better != expected:
            raise ValueError(
                f"`greater_is_better` is {self.args.greater_is_better}, but of the `metric_for_best_model` {name!r} "
                f"{'more' if expected else 'less'} is better. Give `greater_is_better={expected}`, or leave both out: "
                "the score, by which models then compare, is always the greater the better."
            )

    # ---- Data -------------------------------------------------------------------------------------------------------

    def _check_training_data(self, dataset: Any) -> None:
        if isinstance(dataset, TaskDataset):
            raise TypeError(
                "`train_dataset` is a TaskDataset, which is for evaluation. Train on its `prepared` examples, or on "
                "`TaskSplits.train_dataset()`."
            )
        self._check_examples("train_dataset", dataset)

    def _check_evaluation_data(self, datasets: EvaluationData, name_of_all: str = "eval_dataset") -> None:
        named = by_name(datasets)
        names_by_key: dict[tuple[str, str, str], str] = {}
        for name, dataset in named.items():
            argument = f"{name_of_all}[{name!r}]" if name else name_of_all
            if not isinstance(dataset, TaskDataset):
                raise TypeError(
                    f"`{argument}` must be a TaskDataset, got {type(dataset).__name__}: scores need the task and its "
                    "examples beside their ids. `TaskSplits.load(…).prepare(tokenizer).eval_dataset()` makes it of "
                    "files, `TaskDataset(task, split, examples, prepared)` of data sets."
                )
            other = names_by_key.setdefault(dataset.key, name)
            if other != name:  # what was predicted, files and card know a data set by its task and split
                raise ValueError(
                    f"`{argument}` and `eval_dataset[{other!r}]` are both called {dataset.spec.full_name} "
                    f"({dataset.split}), and the predictions of one would replace those of the other. Give one of "
                    "them another `split`: `TaskDataset(task, 'other', …)`, or `dataclasses.replace(dataset, split="
                    "'other')`."
                )
            self._check_examples(argument, dataset.prepared)
            self._check_targets(argument, dataset)
        check_prediction_mode([dataset.spec for dataset in named.values()], self.args.prediction_mode)

    def _check_examples(self, argument: str, dataset: Iterable[Mapping[str, Any]]) -> None:
        """Stop if examples are not prepared as the model needs them."""
        first = next(iter(dataset), None)
        if first is None:
            return
        if "input_ids" not in first:
            raise ValueError(f"`{argument}` has no column 'input_ids', but: {listed(first)}. {HOW_TO_PREPARE}")
        counts = count_tokens(dataset, self.processing_class.get_vocab().get(SENTENCE_TOKENS[0], NO_TOKEN))
        if counts.greatest_id >= len(self.processing_class):
            raise ValueError(
                f"`{argument}` holds the token id {counts.greatest_id}, but the tokenizer "
                f"{self.processing_class.name_or_path!r} has {len(self.processing_class)} tokens: the examples were "
                "prepared with another one. Prepare them with the `processing_class` of the trainer."
            )
        without = counts.with_text - counts.with_token
        if without and has_sentence_tokens(self.model.config):
            raise ValueError(
                f"`{argument}` was prepared without sentence tokens{_how_many(without, counts)}, but the model is a "
                "DEPTH model, which reads them. Prepare it by `TaskSplits.prepare(tokenizer)` or "
                "`TaskPreprocessor(tokenizer, task)` with the tokenizer of the model "
                "(`add_sentence_tokens(tokenizer)` adds the tokens) and without `sentence_tokens=False`."
            )
        if counts.with_token and not has_sentence_tokens(self.model.config):
            raise ValueError(
                f"`{argument}` was prepared with sentence tokens{_how_many(counts.with_token, counts)}, but the model "
                "is a T5, which knows none. Prepare it with `sentence_tokens=False`, or train a DEPTH model."
            )

    def _check_targets(self, argument: str, dataset: TaskDataset) -> None:
        """Stop if the tokenizer reads a target as another label than the example has."""
        spec, index = dataset.spec, dataset.first_labeled
        expected = spec.targets(dataset.rows[index]) if spec.labels is not None and index is not None else []
        if not expected:
            return
        ids = [int(token_id) for token_id in dataset.prepared[index]["labels"] if token_id >= 0]
        read = self.processing_class.decode(ids, skip_special_tokens=True)
        if spec.parse(read) != spec.parse(expected[0]):
            raise ValueError(
                f"`{argument}`: the tokenizer {self.processing_class.name_or_path!r} reads the target of example "
                f"{index} of {spec.full_name} ({dataset.split}) as {read!r}, but its label is {expected[0]!r}: the "
                "examples were prepared with another tokenizer. Prepare them with the `processing_class` of the "
                "trainer."
            )

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> tuple[torch.nn.Module, DataLoader]:
        # Those of the weights of before, which may be of the same step.
        self.evaluations, self._evaluated_steps = {}, {}
        return super()._prepare_for_training(*args, **kwargs)

    # ---- Evaluation -------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        eval_dataset: EvaluationData | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As `Seq2SeqTrainer.evaluate`, but with one log and one event for all data sets, and their mean score."""
        datasets = self.eval_dataset if eval_dataset is None else eval_dataset
        self._memory_tracker.start()  # which knows where it is called by the name of this method
        metrics = self.evaluate_tasks(datasets, ignore_keys, metric_key_prefix, **gen_kwargs)
        self._report_evaluation(metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def evaluate_tasks(
        self,
        datasets: EvaluationData,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "predict",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """
        Evaluate on data sets without a log, as for test data. What was predicted is in `evaluations`.

        Args:
            datasets (`TaskDataset` or `Mapping[str, TaskDataset]`): as `TaskSplits.test_datasets` gives them.
            ignore_keys (`list[str]`, *optional*): as for `Seq2SeqTrainer.evaluate`.
            metric_key_prefix (`str`, *optional*, defaults to `"predict"`): of the names of the metrics.
            gen_kwargs: for `generate()`.

        Returns:
            `dict[str, float]`: the metrics of all data sets, and `{metric_key_prefix}_score` if examples are labeled.
        """
        self._check_evaluation_data(datasets)
        self._begin_evaluation(metric_key_prefix)
        self._gen_kwargs = gen_kwargs
        metrics, evaluations = {}, []
        for _, dataset, output in self._evaluate_each(datasets, ignore_keys, metric_key_prefix):
            metrics |= output.metrics
            evaluations.append(self.evaluations[dataset.key])
        metrics |= self._attention_of(metric_key_prefix)
        score = mean_score(evaluations)
        if score is not None:
            metrics[f"{metric_key_prefix}_score"] = score
        return metrics

    def predict(self, test_dataset: TaskDataset, *args: Any, **kwargs: Any) -> PredictionOutput:
        """As `Seq2SeqTrainer.predict`; `predictions` are [`TaskPredictions`], `label_ids` is `None`."""
        if isinstance(test_dataset, Mapping):
            raise TypeError(
                f"`test_dataset` must be one TaskDataset, but there are several: {listed(test_dataset)}. Predict them "
                "one by one, or all by `trainer.evaluate_tasks(test_datasets)`; `trainer.evaluations` then has the "
                "predictions."
            )
        self._check_evaluation_data(test_dataset, "test_dataset")
        return super().predict(test_dataset, *args, **kwargs)

    def evaluation_loop(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """The loop over a [`TaskDataset`], then the metrics of its task; `predictions` are in the order of `rows`."""
        dataset = self._task_dataset = dataloader.dataset
        self._label_ids = None
        if dataset.spec.labels is not None:
            self._label_ids = encode_labels(self.processing_class, list(dataset.spec.labels.values()))
        if dataset.key not in self.evaluations:
            self._report_short_generation(dataset)
        try:
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        finally:
            self._task_dataset = None
        predictions = self._task_predictions(dataset, output.predictions, output.label_ids)
        predicted = {"texts": predictions.texts}
        if predictions.texts is None:
            predicted = {"predicted_ids": predictions.label_ids}
        metrics = compute_task_metrics(
            dataset.spec, dataset.rows, **predicted, train_label_ids=dataset.train_label_ids
        )
        metrics |= self.baselines.get(dataset.key, {})
        self.evaluations[dataset.key] = TaskEvaluation(dataset, predictions, metrics)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        self._evaluated_steps[dataset.key] = self._weights_step
        return output._replace(predictions=predictions, label_ids=None)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """The loss, then ids (B, G) or scores (B, C), and in the place of labels the index (B,) of each example."""
        inputs = self._prepare_inputs(inputs)
        if "index" not in inputs:
            raise ValueError(
                "The batches of `data_collator` have no `index`, by which each prediction finds its example. Pass on "
                "that column of the examples (int64, one number for each), or build on `DataCollatorForTasks`."
            )
        index = inputs.pop("index")
        loss = self._loss(model, inputs, ignore_keys) if "labels" in inputs else None
        if self._scores_labels():
            return loss, self._label_scores(inputs), index
        gen_kwargs = self._completed(self._gen_kwargs | gen_kwargs)
        return loss, self._generated_ids(model, inputs, ignore_keys, **gen_kwargs), index

    def _scores_labels(self) -> bool:
        return self.args.prediction_mode == "score_labels"

    def _label_scores(self, inputs) -> torch.Tensor:
        with torch.no_grad(), self.compute_loss_context_manager():
            return score_labels(
                self.model,
                inputs["input_ids"],
                inputs["attention_mask"],
                self._label_ids,
                length_normalized=self.args.length_normalize_scores,
            )

    def _report_short_generation(self, dataset: TaskDataset) -> None:
        length = self._completed(self._gen_kwargs).get("max_length")
        if length is None or self._label_ids is None or self._scores_labels():
            return
        needed = self._longest_target()
        if length < needed:
            logger.warning(
                f"{dataset.spec.full_name} ({dataset.split}): text is generated up to `generation_max_length` "
                f"{length}, but the longest label takes {needed} tokens with the start token and "
                "`</s>`: what is cut off is unparseable. Raise it, or leave it out."
            )

    def _evaluation_metrics(self):
        """The exact loss; the accuracies of the tokens would be those of teacher forcing."""
        return {name: value for name, value in summarize(self._eval_sums).items() if name == "loss"}

    def _task_predictions(self, dataset: TaskDataset, outputs: np.ndarray, index: np.ndarray) -> TaskPredictions:
        """What came out of the loop, in the order of the examples."""
        order = np.argsort(index)
        if not np.array_equal(index[order], np.arange(len(dataset))):
            raise AssertionError(
                f"The {len(dataset)} examples of {dataset.spec.name!r} ({dataset.split}) came back as {len(index)}, "
                "not each of them once: the processes disagree about the data."
            )
        outputs = outputs[order]
        if self._scores_labels():
            check_finite_scores(outputs)
            # The keys of `labels` are the classes.
            return TaskPredictions(scores=outputs, label_ids=np.array(list(dataset.spec.labels))[outputs.argmax(1)])
        texts = decode_generated(self.processing_class, outputs)
        return TaskPredictions(texts, None if dataset.spec.labels is None else dataset.spec.parse_all(texts))

    # ---- Saving -----------------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """As `Trainer` does, and `task_config.json`."""
        super()._save(output_dir, state_dict)
        self._save_task_config(output_dir or self.args.output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging_folder is None:  # `Trainer` uploads `output_dir`, with the files that it knows
            self._save_task_config(self.args.output_dir)
        super()._push_from_checkpoint(checkpoint_folder)

    def _save_task_config(self, folder: str) -> None:
        if self.args.should_save and self.task_config is not None:
            self.task_config.save_pretrained(folder)

    # ---- Model card -------------------------------------------------------------------------------------------------

    def _model_card(self, model_name: str, content: CardContent) -> ModelCard:
        """With the scores of the present weights on each data set."""
        step = self._weights_step
        keys = [key for key in self.evaluations if self._evaluated_steps.get(key) == step]
        results = [self.evaluations[key].result for key in keys]
        return fine_tuning_card(model_name, self._unwrapped_model, results, content, self._usage(), step)

    def _usage(self) -> Usage | None:
        if self.task_config is None or self._saves_adapter:
            return None
        datasets = [evaluation.dataset for evaluation in self.evaluations.values()]
        datasets += by_name(self.eval_dataset).values()
        dataset = next((data for data in datasets if data is not None and len(data)), None)
        if dataset is None:
            return None
        return task_usage(
            name_in_code(self.hub_model_id, self.args.output_dir),
            self._unwrapped_model,
            self.processing_class,
            self.task_config,
            dataset,
            revision=self.args.hub_revision if self.hub_model_id else None,
        )


def _how_many(number: int, counts: TokenCounts) -> str:
    return "" if number == counts.with_text else f" in {number:,} of {counts.with_text:,} examples"

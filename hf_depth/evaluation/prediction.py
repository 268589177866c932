"""[`TaskPredictor`]: predictions of a fine-tuned model for new examples."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenization import check_sentence_tokens, load_tokenizer
from ..models.loading import load_model
from ..models.modeling_depth import has_sentence_tokens
from ..suggestions import listed
from ..tasks.checks import check_prediction_mode
from ..tasks.dataset import DataCollatorForTasks
from ..tasks.preprocessing import INSTANCE_COLUMN, TaskPreprocessor, encode_labels
from ..tasks.registry import get_task
from ..tasks.spec import TaskSpec
from .label_scoring import score_labels

logger = logging.getLogger(__name__)


def generation_length(spec: TaskSpec, label_ids: torch.LongTensor | None) -> int:
    """
    The `max_length` with which `generate()` can write every label, or the longest target of a free-form task.

    Args:
        spec: the task.
        label_ids (`torch.LongTensor` of shape `(num_labels, label_length)`, *optional*): see [`encode_labels`].
    """
    return 1 + (spec.max_target_length if label_ids is None else label_ids.shape[1])  # the start token counts


def decode_generated(tokenizer: PreTrainedTokenizerBase, generated_ids: np.ndarray | torch.Tensor) -> list[str]:
    """
    What stands before `</s>` in each row of generated ids. Other special tokens stay in the text: a label beside a
    sentinel is unparseable.

    Args:
        generated_ids (`np.ndarray` or `torch.LongTensor` of shape `(batch_size, generated_length)`):
            From `generate()`, with the start token; padded with the pad token or -100.
    """
    nothing = (-100, tokenizer.pad_token_id)  # padding, and the start token
    texts = []
    for ids in generated_ids.tolist():
        ids = ids[: ids.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in ids else ids
        texts.append(tokenizer.decode([i for i in ids if i not in nothing]).strip())
    return texts


class TaskPredictor:
    """
    Predicts new examples of a task, prepared as in training: with its prompt and, for a DEPTH model, sentence tokens.

    Args:
        model (`PreTrainedModel`): a DEPTH model or a T5, fine-tuned on the task.
        tokenizer (`PreTrainedTokenizerBase`): the one that it was trained with.
        task (`TaskSpec` or `str`): the task, or its name in `DATASET_VALS`.
        prediction_mode (`str`, *optional*, defaults to `"generate"`):
            `"generate"` generates text, which may be none of the labels; `"score_labels"` takes the most probable
            label.
        length_normalize_scores (`bool`, *optional*, defaults to `False`):
            Divide the log-probability of a label by its number of tokens.
        batch_size (`int`, *optional*, defaults to 32): examples of one forward pass.
        max_source_length (`int`, *optional*): tokens of an input at most, as in training; by default the task's.
        sentence_language (`str`, *optional*, defaults to `"en"`): of the texts, see [`get_sentence_splitter`].

    Raises:
        `ValueError`: if model and tokenizer do not fit each other, labels of a free-form task are to be scored, or an
            argument is out of range.

    >>> from hf_depth import TaskPredictor, add_sentence_tokens, load_model, train_tokenizer
    >>> text = "rte sentence1: It rains. sentence2: It is wet. entailment not_entailment"
    >>> tokenizer = add_sentence_tokens(train_tokenizer([text], vocab_size=300, allow_fewer=True))
    >>> model = load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    >>> predictor = TaskPredictor(model, tokenizer, "glue/rte", prediction_mode="score_labels")
    >>> (prediction,) = predictor([{"sentence1": "It rains.", "sentence2": "It is wet."}], return_scores=True)
    >>> prediction["label"] == max(prediction["scores"], key=prediction["scores"].get)
    True
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        task: TaskSpec | str,
        *,
        prediction_mode: str = "generate",
        length_normalize_scores: bool = False,
        batch_size: int = 32,
        max_source_length: int | None = None,
        sentence_language: str = "en",
    ):
        self.spec = get_task(task) if isinstance(task, str) else task
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
        check_sentence_tokens(model, tokenizer)
        check_prediction_mode([self.spec], prediction_mode)
        self.model, self.tokenizer = model, tokenizer
        self.prediction_mode = prediction_mode
        self.length_normalize_scores = length_normalize_scores
        self.batch_size = batch_size
        self.preprocessor = TaskPreprocessor(
            tokenizer,
            self.spec,
            sentence_tokens=has_sentence_tokens(model.config),
            max_source_length=max_source_length,
            sentence_language=sentence_language,
        )
        self.collator = DataCollatorForTasks(tokenizer)
        self.label_ids = None
        if self.spec.labels is not None:
            self.label_ids = encode_labels(tokenizer, list(self.spec.labels.values()))  # (num_labels, label_length)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, task: TaskSpec | str, **kwargs: Any) -> "TaskPredictor":
        """
        The predictor of a fine-tuned model: the `output_dir` of a run, or a name on the Hub.

        Args:
            task: what it was fine-tuned on.
            kwargs: further arguments of [`TaskPredictor`].
        """
        tokenizer = load_tokenizer(name_or_path)
        model = load_model(name_or_path, tokenizer)
        return cls(model.to("cuda") if torch.cuda.is_available() else model, tokenizer, task, **kwargs)

    def __call__(
        self,
        examples: Sequence[Mapping[str, Any]] | Dataset,
        return_scores: bool = False,
        **generate_kwargs: Any,
    ) -> list[dict[str, Any]]:
        """
        Predict examples; long ones together, whatever their order.

        Args:
            examples (`Dataset`, or dictionaries): with the text columns of the task; labels are not needed.
            return_scores: also score every label.
            generate_kwargs: for `generate()`, such as `num_beams=4`.

        Returns:
            `list[dict]`: for each example `text`, what was generated; for a task with labels `label`, one of them, or
            `None` if the text is unparseable, and with `return_scores` `scores`, the log-probability of each label.

        Raises:
            `ValueError`: if an example lacks a column, or free-form predictions are to be scored.
        """
        if isinstance(examples, Mapping | str):
            raise ValueError(
                f"`examples` must be several examples or a Dataset, got {type(examples).__name__}. For one example, "
                "write `predictor([example])`."
            )
        if generate_kwargs and self.prediction_mode == "score_labels":
            raise ValueError(f"`{next(iter(generate_kwargs))}`: nothing is generated if labels are scored.")
        if return_scores and self.label_ids is None:
            raise ValueError(f"`return_scores`: the task {self.spec.full_name!r} is free-form, so it has no labels.")
        for name, value in (("num_return_sequences", 1), ("return_dict_in_generate", False)):
            if generate_kwargs.get(name, value) != value:
                raise ValueError(f"`{name}={generate_kwargs[name]}` is not supported: an example has one prediction.")
        examples = examples if isinstance(examples, Dataset) else list(examples)
        self._check_columns(examples)
        predictions: list[dict[str, Any]] = [{} for _ in range(len(examples))]
        was_training = self.model.training
        self.model.eval()
        try:
            for places, batch in self._batches(examples):
                predicted = self._predict(batch, return_scores, generate_kwargs)
                for place, prediction in zip(places, predicted, strict=True):
                    predictions[place] = prediction
        finally:
            self.model.train(was_training)
        return predictions

    def _check_columns(self, examples: list[Mapping[str, Any]] | Dataset) -> None:
        """Check that every example has the text columns of the task."""
        wanted = self.spec.text_column_name
        for place, example in enumerate(
            examples if isinstance(examples, list) else [dict.fromkeys(examples.features)]
        ):
            if not isinstance(example, Mapping):
                raise ValueError(
                    f"Example {place} must be a dictionary with the columns {listed(wanted)}, got {example!r:.80}."
                )
            for name in wanted:
                if name not in example:
                    raise ValueError(f"Example {place} has no column {name!r}. The columns are: {listed(example)}.")

    def _batches(self, examples: Sequence[Mapping[str, Any]] | Dataset) -> Iterator[tuple[list[int], dict]]:
        """Places of examples of similar lengths, and their batch on the model's device."""
        columns = [*self.spec.text_column_name, *_optional_columns(examples)]
        prepared = self.preprocessor({name: [example.get(name) for example in examples] for name in columns})
        cut = sum(number > 0 for number in prepared["num_cut_tokens"])
        if cut:
            logger.warning(
                f"{cut:,} of {len(examples):,} examples are longer than {self.preprocessor.max_source_length} tokens "
                "and were cut."
            )
        token_ids = prepared["input_ids"]
        order = sorted(range(len(token_ids)), key=lambda place: -len(token_ids[place]))
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            batch = self.collator([{"input_ids": token_ids[place]} for place in places])
            yield places, {name: values.to(self.model.device) for name, values in batch.items()}

    @torch.no_grad()
    def _predict(self, batch: dict, return_scores: bool, generate_kwargs: dict) -> list[dict[str, Any]]:
        predictions: list[dict[str, Any]] = [{} for _ in batch["input_ids"]]
        labels = list((self.spec.labels or {}).values())
        scores_labels = self.prediction_mode == "score_labels"
        if scores_labels or return_scores:
            scores = score_labels(
                self.model,
                batch["input_ids"],
                batch["attention_mask"],
                self.label_ids,
                length_normalized=self.length_normalize_scores,
            ).tolist()  # (batch_size, num_labels)
        if scores_labels:
            texts = [labels[int(np.argmax(row))] for row in scores]
        else:
            generate_kwargs = {"max_length": generation_length(self.spec, self.label_ids)} | generate_kwargs
            texts = decode_generated(self.tokenizer, self.model.generate(**batch, **generate_kwargs))
        for place, text in enumerate(texts):
            predictions[place]["text"] = text
            if self.spec.labels is not None:
                predictions[place]["label"] = self.spec.labels.get(self.spec.parse(text))
            if return_scores:
                predictions[place]["scores"] = dict(zip(labels, scores[place], strict=True))
        return predictions


def _optional_columns(examples: Sequence[Mapping[str, Any]] | Dataset) -> list[str]:
    """Columns that are no text of the prompt, but say how it is cut."""
    return [INSTANCE_COLUMN] if len(examples) and INSTANCE_COLUMN in examples[0] else []

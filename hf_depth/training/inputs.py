"""What a trainer is given: raw text, an objective, a model by its name, and collators, also inside of a user's own."""

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, TrainingArguments, set_seed

from ..data.base_objective import Objective
from ..data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from ..data.denoisers import parse_denoisers
from ..data.tokenization import add_mode_tokens, add_sentence_tokens, load_tokenizer
from ..errors import UserError
from ..models.loading import load_model

TEXT_COLUMN = "text"
# The seed of the noise of evaluation, whatever that of training has: runs with different seeds are compared by it.
EVALUATION_SEED = 42
ModelSource = str | os.PathLike | PreTrainedConfig


def prepare_inputs(
    args: TrainingArguments,
    model: Any,
    data_collator: Callable[..., Any] | None,
    train_dataset: Any,
    eval_dataset: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    objective: Objective | type[Objective] | None,
) -> tuple[Any, Callable[..., Any], Any, Any, PreTrainedTokenizerBase | None, Objective | None]:
    """
    What a trainer is given, with what an objective makes of it. A name, a folder or a configuration becomes its model.
    """
    if objective is not None:
        objective = _with_tokenizer(objective, tokenizer, model)
        seed = args.seed if args.data_seed is None else args.data_seed
        train_dataset = _prepared(train_dataset, "train", objective, args, seed)
        if isinstance(eval_dataset, Mapping):
            parts = eval_dataset.items()
            eval_dataset = {name: _prepared(part, "validation", objective, args, seed) for name, part in parts}
        else:
            eval_dataset = _prepared(eval_dataset, "validation", objective, args, seed)
        data_collator = objective.collator(seed=seed) if data_collator is None else data_collator
        tokenizer = tokenizer or objective.tokenizer
    if isinstance(model, ModelSource):
        own = tokenizer or getattr(objective_collator(data_collator), "tokenizer", None)
        own = own if objective is None else objective.tokenizer
        if own is None:
            raise UserError("`model` is a name, which needs a tokenizer: give `objective`, or `processing_class`.")
        set_seed(args.seed)  # rows of new tokens are drawn
        model = load_model(model, own, model_type=None if objective is None else objective.model_type)
    return model, data_collator, train_dataset, eval_dataset, tokenizer, objective


def _with_tokenizer(
    objective: Objective | type[Objective], tokenizer: PreTrainedTokenizerBase | None, model: Any
) -> Objective:
    """An objective as it is, of a class the default one with the tokenizer of the model."""
    if isinstance(objective, Objective):
        return objective
    if not (isinstance(objective, type) and issubclass(objective, Objective)):
        raise TypeError(
            f"`objective` must be an objective such as `DepthObjective(tokenizer)`, got {type(objective).__name__}."
        )
    if tokenizer is None:
        if not isinstance(model, str | os.PathLike):
            raise UserError(f"`objective` needs a tokenizer: give `{objective.__name__}(tokenizer)`.")
        tokenizer = load_tokenizer(model)
    if objective.model_type == "depth":
        add_sentence_tokens(tokenizer)
    if getattr(objective, "mode_tokens", False):
        add_mode_tokens(tokenizer, [one.mode for one in parse_denoisers(objective.denoisers) if one.mode])
    return objective(tokenizer)


def _prepared(dataset: Any, split: str, objective: Objective, args: TrainingArguments, seed: int) -> Any:
    """A data set as it is, or what the objective makes of its text. A stream to train on becomes endless."""
    name = "train_dataset" if split == "train" else "eval_dataset"
    if isinstance(dataset, list | tuple):
        if dataset and all(isinstance(row, Mapping) for row in dataset):
            return dataset
        if not dataset or not all(isinstance(text, str) for text in dataset):
            raise UserError(f"`{name}` is no list of texts: {dataset!r:.60}.")
        dataset = Dataset.from_dict({TEXT_COLUMN: list(dataset)})
    if not isinstance(dataset, Dataset | IterableDataset):
        return dataset
    columns = dataset.column_names or list(next(iter(dataset), {}))
    if "input_ids" in columns:
        return dataset
    if TEXT_COLUMN not in columns:
        raise UserError(f"`{name}` has no column `{TEXT_COLUMN}`, but: {', '.join(columns)}.")
    data, _ = objective.prepare_splits({split: dataset}, main_process_first=args.main_process_first, seed=seed)
    return data[split]


def objective_collator(data_collator: Callable[..., Any]) -> Callable[..., Any]:
    """The collator of an objective, also inside of a user's own; the user's own if there is none in it."""
    return next(iter(objective_collators(data_collator)), data_collator)


def objective_collators(data_collator: Callable[..., Any]) -> list[Callable[..., Any]]:
    """All collators of objectives in that of a trainer: itself, or what it has in an attribute, a list or a dict."""
    if isinstance(data_collator, DataCollatorForT5SpanCorruption | DataCollatorForDepth):
        return [data_collator]
    held = []
    for part in getattr(data_collator, "__dict__", {}).values():
        held += part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else [part]
    return [one for one in held if isinstance(one, DataCollatorForT5SpanCorruption | DataCollatorForDepth)]


def objective_name(data_collator: Callable[..., Any]) -> str | None:
    """The `objective` of the collator, or `None` of one whose noise is the user's own, of which nothing is known."""
    collator = objective_collator(data_collator)
    ours = (DataCollatorForT5SpanCorruption._corrupt, DataCollatorForDepth._corrupt)
    return collator.objective if getattr(type(collator), "_corrupt", None) in ours else None


def metadata_collators(data_collator: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The collators that put the metadata of examples before their inputs, also a user's own that is around none."""
    collators = objective_collators(data_collator) or [data_collator]
    return [collator for collator in collators if hasattr(collator, "set_metadata_probability")]


def evaluation_collator(data_collator: Callable[..., Any]) -> Callable[..., Any]:
    """A copy that corrupts the same way in each evaluation and in every run, and puts no metadata before inputs."""
    collators = objective_collators(data_collator)
    if not collators and not hasattr(data_collator, "set_epoch"):
        return data_collator
    data_collator = copy.deepcopy(data_collator)
    collators = objective_collators(data_collator)
    # An earlier trainer may have left it in a later epoch.
    for one in [data_collator] if hasattr(data_collator, "set_epoch") else collators:
        one.set_epoch(0)
    for collator in collators:
        collator.seed = EVALUATION_SEED
    for collator in metadata_collators(data_collator):
        collator.set_metadata_probability(0.0)
    return data_collator

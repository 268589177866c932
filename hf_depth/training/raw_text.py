"""What a [`DepthTrainer`] makes of raw text, of an objective and of a model that is given by its name."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, set_seed

from ..data.base_objective import Objective
from ..data.denoisers import parse_denoisers
from ..data.tokenization import add_mode_tokens, add_sentence_tokens, load_tokenizer
from ..errors import UserError
from ..models.loading import load_model
from ..suggestions import listed
from .collators import objective_collator

TEXT_COLUMN = "text"
ModelSource = str | os.PathLike | PreTrainedConfig


def is_text(dataset: Any) -> bool:
    """Whether something is raw text: strings, or a data set with a column `text` and no `input_ids`."""
    if isinstance(dataset, list | tuple):
        return bool(dataset) and all(isinstance(text, str) for text in dataset)
    if isinstance(dataset, Dataset):
        columns = dataset.column_names
    elif isinstance(dataset, IterableDataset):
        columns = dataset.column_names or list(next(iter(dataset), {}))
    else:
        return False
    return TEXT_COLUMN in columns and "input_ids" not in columns


def _what_it_is(dataset: Any) -> str | None:
    """What is known to be neither text nor prepared examples; `None` for all else."""
    if isinstance(dataset, Mapping):
        return f"is several data sets, {listed(dataset)}"
    if isinstance(dataset, str | Iterator):
        return f"is of the type {type(dataset).__name__}"
    if isinstance(dataset, Dataset) and "input_ids" not in dataset.column_names:
        return f"has no column `text`, but: {listed(dataset.column_names)}"
    if isinstance(dataset, list | tuple):
        if not dataset:
            return "is an empty list"
        is_prepared = isinstance(dataset[0], Mapping) and "input_ids" in dataset[0]
        for number, item in enumerate(dataset):
            if not isinstance(item, Mapping if is_prepared else str):
                return f"is no list of texts: its item {number} is {item!r:.40}"
    return None


def with_tokenizer(
    objective: Objective | type[Objective], tokenizer: PreTrainedTokenizerBase | None, model: Any
) -> Objective:
    """
    An objective as it is, or one of default settings for its class, with the tokenizer of the model and the tokens
    that the objective needs.

    Raises:
        `TypeError`: if it is neither.
        `ValueError`: if there is no tokenizer.
    """
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


def loaded(
    model: ModelSource | PreTrainedModel | None,
    args: TrainingArguments,
    objective: Objective | None,
    tokenizer: PreTrainedTokenizerBase | None,
    data_collator: Callable[..., Any] | None,
) -> PreTrainedModel | None:
    """
    A model as it is, or the one of a name, a folder or a configuration, that fits the tokenizer.

    Raises:
        `ValueError`: if there is no tokenizer, or as [`load_model`].
    """
    if not isinstance(model, ModelSource):
        return model
    if objective is not None:
        tokenizer = objective.tokenizer
    elif tokenizer is None:
        tokenizer = getattr(objective_collator(data_collator), "tokenizer", None)
    if tokenizer is None:
        raise UserError("`model` is a name, which needs a tokenizer: give `objective`, or `processing_class`.")
    set_seed(args.seed)  # rows of new tokens are drawn
    return load_model(model, tokenizer, model_type=None if objective is None else objective.model_type)


def prepared(dataset: Any, split: str, objective: Objective, args: TrainingArguments) -> Any:
    """
    A data set as it is, or what the objective makes of its text; of a stream to train on an endless one.

    Args:
        dataset: raw text, see [`is_text`], or anything else; to evaluate on also a mapping of names to such.
        split (`str`): `"train"` or `"validation"`.
        objective ([`Objective`]): what prepares text.
        args (`TrainingArguments`): with the seed of the order of a stream.

    Raises:
        `ValueError`: for what is neither text nor prepared, and as `Objective.prepare_splits`.
    """
    if isinstance(dataset, Mapping) and split != "train":
        return {name: prepared(part, split, objective, args) for name, part in dataset.items()}
    if not is_text(dataset):
        if (wrong := _what_it_is(dataset)) is not None:
            raise UserError(
                f"`{'train' if split == 'train' else 'eval'}_dataset` {wrong}. Give a list of texts, a data set with "
                "a column `text`, or one that `objective.prepare` has made."
            )
        return dataset
    if isinstance(dataset, list | tuple):
        dataset = Dataset.from_dict({TEXT_COLUMN: list(dataset)})
    seed = args.seed if args.data_seed is None else args.data_seed
    data, _ = objective.prepare_splits({split: dataset}, main_process_first=args.main_process_first, seed=seed)
    return data[split]

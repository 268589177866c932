"""Whether the model, the tokenizer and the collator of a trainer fit each other, and the collator of evaluations."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from ..data.tokenization import check_sentence_tokens
from ..models.modeling_depth import has_sentence_tokens

# Of the noise of evaluation, whatever that of training has: runs with different seeds are compared by it.
EVALUATION_SEED = 42
MAX_WRAPPERS = 2  # around the collator of an objective, one in the other


def objective_collator(data_collator: Callable[..., Any]) -> Callable[..., Any]:
    """
    The collator of an objective, also inside of a user's own: in an attribute of it, in a list, tuple or dict that is
    one, or among what a [`functools.partial`] holds. The user's own if there is none in it.

    Args:
        data_collator (`Callable`): that of a trainer.

    >>> from hf_depth import DataCollatorForT5SpanCorruption, train_tokenizer
    >>> collator = DataCollatorForT5SpanCorruption(train_tokenizer(["It rains."], vocab_size=200, allow_fewer=True))
    >>> objective_collator(functools.partial(collator)) is collator
    True
    """
    return next(iter(objective_collators(data_collator)), data_collator)


def objective_collators(data_collator: Callable[..., Any]) -> list[Callable[..., Any]]:
    """
    All collators of objectives, of which a user's own may hold several; the first is that of [`objective_collator`].

    Args:
        data_collator (`Callable`): that of a trainer.
    """
    collators, level = [], [data_collator]
    for _ in range(MAX_WRAPPERS + 1):
        collators += [one for one in level if _is_of_objective(one)]
        level = [part for one in level if not _is_of_objective(one) for part in _parts(one)]
    return collators


def objective_name(data_collator: Callable[..., Any]) -> str | None:
    """
    The `objective` of the collator, or `None` of one whose noise is the user's own, of which nothing is known here.

    Args:
        data_collator (`Callable`): that of a trainer.
    """
    collator = objective_collator(data_collator)
    ours = (DataCollatorForT5SpanCorruption._corrupt, DataCollatorForDepth._corrupt)
    return collator.objective if getattr(type(collator), "_corrupt", None) in ours else None


def metadata_collators(data_collator: Callable[..., Any]) -> list[Callable[..., Any]]:
    """
    The collators that put the metadata of examples before their inputs, also a user's own that is around none.

    Args:
        data_collator (`Callable`): that of a trainer.
    """
    collators = objective_collators(data_collator) or [data_collator]
    return [collator for collator in collators if hasattr(collator, "set_metadata_probability")]


def _is_of_objective(collator: Any) -> bool:
    return isinstance(collator, DataCollatorForT5SpanCorruption | DataCollatorForDepth)


def _parts(wrapper: Any) -> list[Any]:
    if isinstance(wrapper, functools.partial):
        return [wrapper.func, *wrapper.args, *wrapper.keywords.values()]
    if inspect.ismethod(wrapper):
        return [wrapper.__self__]
    held = list(getattr(wrapper, "__dict__", {}).values())
    inside = [
        part.values() if isinstance(part, dict) else part for part in held if isinstance(part, list | tuple | dict)
    ]
    found = held + [one for part in inside for one in part if callable(one)]
    return list({id(one): one for one in found}.values())


def evaluation_collator(data_collator: Callable[..., Any]) -> Callable[..., Any]:
    """
    A copy that corrupts the same way in each evaluation and in every run, and puts no metadata before inputs.

    Args:
        data_collator (`Callable`): that of the training. One without noise is returned itself.
    """
    if not hasattr(objective_collator(data_collator), "set_epoch"):
        return data_collator
    try:
        data_collator = copy.deepcopy(data_collator)
    except TypeError as error:
        raise TypeError(
            f"`data_collator` cannot be copied, as evaluation with noise of its own needs it: {error}. Keep what "
            "cannot be copied outside of it."
        ) from error
    collators = objective_collators(data_collator)
    # An earlier trainer may have left it in a later epoch.
    for one in [data_collator] if hasattr(data_collator, "set_epoch") else collators:
        one.set_epoch(0)
    for collator in collators:
        collator.seed = EVALUATION_SEED
    for collator in metadata_collators(data_collator):
        collator.set_metadata_probability(0.0)
    return data_collator


def check_parts(
    model: PreTrainedModel, processing_class: Any, data_collator: Callable[..., Any], constrains_order: bool
) -> None:
    """
    Stop on a model, a tokenizer and a collator that do not fit each other.

    Args:
        model (`PreTrainedModel`): out of what is wrapped around it.
        processing_class: the tokenizer that is saved with the model, or `None`.
        data_collator (`Callable`): that of an objective, with a tokenizer of its own, one around it, or any other.
        constrains_order (`bool`): whether sentences are to be generated each once.

    Raises:
        `ValueError`: naming what does not fit.
    """
    is_depth = has_sentence_tokens(model.config)
    collators = objective_collators(data_collator) or [data_collator]
    tokenizers = (processing_class, *(getattr(collator, "tokenizer", None) for collator in collators))
    tokenizers = [tokenizer for tokenizer in tokenizers if isinstance(tokenizer, PreTrainedTokenizerBase)]
    for tokenizer in tokenizers:
        check_sentence_tokens(model, tokenizer)
    if constrains_order and not (is_depth and tokenizers):
        missing = "a tokenizer: give `processing_class`" if is_depth else "a DEPTH model"
        raise ValueError(f"`constrain_sentence_order` needs {missing}, or leave it out.")
    if any(tokenizer.get_vocab() != tokenizers[0].get_vocab() for tokenizer in tokenizers[1:]):
        raise ValueError(
            "`processing_class` and the tokenizer of `data_collator` have different vocabularies. Use one tokenizer "
            "for the data, the collator, the model and the trainer."
        )
    for collator, needs_depth in ((DataCollatorForDepth, True), (DataCollatorForT5SpanCorruption, False)):
        if isinstance(collators[0], collator) and is_depth != needs_depth:
            objective = "SpanCorruptionObjective" if needs_depth else "DepthObjective"
            model_type = "depth" if needs_depth else "t5"
            raise ValueError(
                f"{collator.__name__} writes {'' if needs_depth else 'no '}sentence tokens, which does not fit a "
                f"{type(model).__name__}. Make data and collator by `{objective}(tokenizer, ...)`, or load the other "
                f'kind of model by `load_model(..., tokenizer, model_type="{model_type}")`.'
            )


def check_packed_rows(model: PreTrainedModel, data_collator: Callable[..., Any]) -> None:
    """
    Stop on a model that would let the examples of a packed row see each other, or start them otherwise.

    Args:
        model (`PreTrainedModel`): out of what is wrapped around it, PEFT included.
        data_collator (`Callable`): that makes the rows.

    Raises:
        `ValueError`: naming what does not fit.
    """
    if "encoder_segment_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"A {type(model).__name__} takes no `encoder_segment_ids`: the examples of a packed row would attend to "
            "each other. Load the model by `load_model`, or prepare the data without `packing`."
        )
    start = getattr(objective_collator(data_collator), "decoder_start_token_id", model.config.decoder_start_token_id)
    if start != model.config.decoder_start_token_id:
        raise ValueError(
            f"The collator starts the targets of packed rows with {start}, the model with "
            f"{model.config.decoder_start_token_id}. Give the model to the collator: "
            "`objective.collator(model=model)`."
        )

"""Whether the model, the tokenizer and the collator of a trainer fit each other."""

import inspect
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from ..data.tokenization import check_sentence_tokens
from ..models.masking_depth import has_sentence_tokens


def check_parts(
    model: PreTrainedModel, processing_class: Any, data_collator: Callable[..., Any], constrains_order: bool
) -> None:
    """
    Stop on a model, a tokenizer and a collator that do not fit each other.

    Args:
        model (`PreTrainedModel`): out of what is wrapped around it.
        processing_class: the tokenizer that is saved with the model, or `None`.
        data_collator (`Callable`): that of an objective, with a tokenizer of its own, or any other.
        constrains_order (`bool`): whether sentences are to be generated each once.

    Raises:
        `ValueError`: naming what does not fit.
    """
    is_depth = has_sentence_tokens(model.config)
    tokenizers = (processing_class, getattr(data_collator, "tokenizer", None))
    tokenizers = [tokenizer for tokenizer in tokenizers if isinstance(tokenizer, PreTrainedTokenizerBase)]
    for tokenizer in tokenizers:
        check_sentence_tokens(model, tokenizer)
    if constrains_order and not (is_depth and tokenizers):
        missing = "a tokenizer: give `processing_class`" if is_depth else "a DEPTH model"
        raise ValueError(f"`constrain_sentence_order` needs {missing}, or leave it out.")
    if len(tokenizers) == 2 and tokenizers[0].get_vocab() != tokenizers[1].get_vocab():
        raise ValueError(
            "`processing_class` and the tokenizer of `data_collator` have different vocabularies. Use one tokenizer "
            "for the data, the collator, the model and the trainer."
        )
    for collator, needs_depth in ((DataCollatorForDepth, True), (DataCollatorForT5SpanCorruption, False)):
        if isinstance(data_collator, collator) and is_depth != needs_depth:
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
    start = getattr(data_collator, "decoder_start_token_id", model.config.decoder_start_token_id)
    if start != model.config.decoder_start_token_id:
        raise ValueError(
            f"The collator starts the targets of packed rows with {start}, the model with "
            f"{model.config.decoder_start_token_id}. Give the model to the collator: "
            "`objective.collator(model=model)`."
        )

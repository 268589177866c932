"""What a model generates in an evaluation, freely or with each sentence token once."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, Seq2SeqTrainer

from ..errors import UserError
from ..evaluation.ordering import SentenceOrderLogitsProcessor
from ..ranges import Range, check_ranges
from .collators import objective_collator, objective_collators
from .sharding import gather_in_generation

if TYPE_CHECKING:
    from .trainer import DepthTrainer

logger = logging.getLogger(__name__)

GENERATION_RANGES = {
    "num_beams": Range(least=1),
    "num_return_sequences": Range(least=1, most=1),  # one prediction for each example
    "max_length": Range(least=2),  # with the start token
    "max_new_tokens": Range(least=1),
}
# Widths of the encoder inputs with a static cache, which is as wide: each other width is compiled anew.
STATIC_MULTIPLE = 128


def use_generation_config(trainer: "DepthTrainer", model: PreTrainedModel) -> None:
    """Give a model the generation configuration of the arguments, with the model's ids where it has none."""
    if trainer.args.generation_config is None:
        return
    generation = model.generation_config = trainer.load_generation_config(trainer.args.generation_config)
    check_ranges(generation, GENERATION_RANGES, "generation_config.")
    for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        if getattr(generation, name) is None:
            setattr(generation, name, getattr(model.config, name, None))


def longest_target(data_collator: Any) -> int | None:
    """The most tokens of a target with the start token; `None` if the collator does not say."""
    collators = objective_collators(data_collator) or [data_collator]
    lengths = [getattr(collator, "max_target_length", None) for collator in collators]
    return None if None in lengths else max(lengths) + 1


def maximum_length(trainer: "DepthTrainer") -> int | None:
    """
    What is generated at most, in tokens with the start token: `generation_max_length` of the arguments, else that of
    the generation configuration given there, else that of the longest target. `None` where `generate()` decides. Never
    more than the decoder has places for.
    """
    lengths = (_maximum_length(trainer), trainer.places["labels"])
    return min(lengths) if None not in lengths else lengths[0]


def _maximum_length(trainer: "DepthTrainer") -> int | None:
    if trainer.args.generation_max_length is not None:
        return trainer.args.generation_max_length
    if trainer.args.generation_config is not None and has_length(trainer.model.generation_config):
        return trainer.model.generation_config.max_length  # none beside `max_new_tokens`
    return trainer.longest_target()


def has_length(generation: GenerationConfig) -> bool:
    """Whether a generation configuration says how long a text gets."""
    return generation.max_length is not None or generation.max_new_tokens is not None


def warn_of_unknown_length(trainer: "DepthTrainer") -> None:
    """Warn if nobody has said how much to generate."""
    is_known = trainer.generation_max_length is not None or has_length(trainer.model.generation_config)
    if trainer.args.predict_with_generate and not is_known:
        logger.warning(
            "`generate()` stops after 20 tokens: `data_collator` does not say how long targets get. Give "
            "`max_target_length` to the objective, or `generation_max_length` to the training arguments."
        )


def generation_settings(trainer: "DepthTrainer", gen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `generate()`: those given, else those of the trainer."""
    settings = {"num_beams": trainer.args.generation_num_beams}
    if gen_kwargs.get("max_new_tokens") is None:  # `generate()` warns of both
        settings["max_length"] = trainer.generation_max_length
    settings |= {name: value for name, value in gen_kwargs.items() if value is not None}
    return {name: value for name, value in settings.items() if value is not None}


def generate(trainer: "DepthTrainer", model: nn.Module, inputs: Mapping[str, Any], **settings: Any) -> torch.Tensor:
    """
    What a model generates for a batch.

    Args:
        trainer (`DepthTrainer`): that evaluates.
        model (`nn.Module`): as the evaluation loop has it.
        inputs (`Mapping`): `input_ids` and `attention_mask` (B, S).
        settings: of `generate()`.

    Returns:
        `torch.LongTensor` of shape `(B, G)`.

    Raises:
        `ValueError`: for more than one returned sequence, of which the second would be taken for the next example's.
    """
    gather_in_generation(trainer.model)
    # Without the labels, for whose loss `Seq2SeqTrainer.prediction_step` would run a second forward pass.
    prompt = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
    generation = trainer.model.generation_config
    number = settings.get("num_return_sequences") or generation.num_return_sequences
    if number not in (None, 1):
        raise UserError(f"`num_return_sequences={number}` is not supported: an example has one prediction.")
    if trainer.args.generation_cache_implementation is not None:
        settings = {"cache_implementation": trainer.args.generation_cache_implementation} | settings
    if (settings.get("cache_implementation") or generation.cache_implementation) == "static":
        prompt = _padded(prompt, trainer.model.config.pad_token_id)
    before = dict(vars(generation))
    try:
        with trainer.autocast():
            return Seq2SeqTrainer.prediction_step(trainer, model, prompt, False, **settings)[1]
    finally:
        # `Seq2SeqTrainer` of transformers 5.24 leaves the defaults of `generate()` in it, which is saved.
        vars(generation).clear()
        vars(generation).update(before)


def generate_in_order(
    trainer: "DepthTrainer", model: nn.Module, inputs: Mapping[str, Any], **settings: Any
) -> torch.Tensor:
    """As [`generate`], but each sentence token of the input comes exactly once."""
    generation = trainer.model.generation_config
    max_length = settings.pop("max_length", None) or generation.max_length or 20  # as `generate()` has it
    max_new_tokens = settings.pop("max_new_tokens", None) or generation.max_new_tokens
    limit = max_length - 1 if max_new_tokens is None else max_new_tokens
    collator = objective_collator(trainer.data_collator)
    tokenizer = collator.tokenizer if trainer.processing_class is None else trainer.processing_class
    constraint = SentenceOrderLogitsProcessor(trainer.model.config, tokenizer, inputs["input_ids"], limit)
    # The one that counts: `generate()` warns of both.
    name, start = ("max_length", 1) if max_new_tokens is None else ("max_new_tokens", 0)
    settings[name] = start + constraint.max_new_tokens
    settings["logits_processor"] = [*settings.get("logits_processor", []), constraint]
    return generate(trainer, model, inputs, **settings)


def _padded(prompt: dict[str, torch.Tensor], pad_token_id: int) -> dict[str, torch.Tensor]:
    """An input (B, S) with padding behind, which changes nothing but its width."""
    width = -prompt["input_ids"].shape[1] % STATIC_MULTIPLE
    fillings = {"input_ids": pad_token_id, "attention_mask": 0}
    return {name: nn.functional.pad(prompt[name], (0, width), value=fillings[name]) for name in prompt}

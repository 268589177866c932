"""[`GenerationTrainer`]: what a model generates in an evaluation, freely or with each sentence token once."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from ..evaluation.ordering import SentenceOrderLogitsProcessor
from ..ranges import Range, check_ranges
from .fsdp import gather_in_generation
from .health import HealthTrainer
from .parts import objective_collator, objective_collators

logger = logging.getLogger(__name__)

GENERATION_RANGES = {
    "num_beams": Range(least=1),
    "num_return_sequences": Range(least=1, most=1),  # one prediction for each example
    "max_length": Range(least=2),  # with the start token
    "max_new_tokens": Range(least=1),
}
# Widths of the encoder inputs with a static cache, which is as wide: each other width is compiled anew.
STATIC_MULTIPLE = 128


class GenerationTrainer(HealthTrainer):
    """
    A [`HealthTrainer`] that generates in an evaluation.

    With `generation_cache_implementation="static"`, keys and values are kept in tensors of fixed sizes. On a GPU
    `generate()` compiles the step of decoding then; so that it does so for a few shapes only, inputs are padded.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._gen_kwargs: dict[str, Any] = {}  # of the latest evaluation
        if self.args.generation_config is not None:
            self._complete_generation_config(self.model)
        self._report_unknown_length()

    @property
    def generation_max_length(self) -> int | None:
        """
        What is generated at most, in tokens with the start token: that of the arguments, else of the generation
        configuration given there, else of the longest target. `None` where `generate()` decides.
        """
        if self.args.generation_max_length is not None:
            return self.args.generation_max_length
        generation = self.model.generation_config
        if self.args.generation_config is not None and self._has_length(generation):
            return generation.max_length  # none beside `max_new_tokens`
        return self._longest_target()

    def _longest_target(self) -> int | None:
        """Tokens of the longest target with the start token; `None` if it is not known."""
        collators = objective_collators(self.data_collator) or [self.data_collator]
        lengths = [getattr(collator, "max_target_length", None) for collator in collators]
        return None if None in lengths else max(lengths) + 1

    @staticmethod
    def _has_length(generation: GenerationConfig) -> bool:
        return generation.max_length is not None or generation.max_new_tokens is not None

    def _report_unknown_length(self) -> None:
        is_known = self.generation_max_length is not None or self._has_length(self.model.generation_config)
        if self.args.predict_with_generate and not is_known:
            logger.warning(
                "`generate()` stops after 20 tokens: `data_collator` does not say how long targets get. Give "
                "`max_target_length` to the objective, or `generation_max_length` to the training arguments."
            )

    def _completed(self, gen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `generate()`, with those of the trainer where they are not given."""
        settings = {"num_beams": self.args.generation_num_beams}
        if gen_kwargs.get("max_new_tokens") is None:  # `generate()` warns of both
            settings["max_length"] = self.generation_max_length
        settings |= {name: value for name, value in gen_kwargs.items() if value is not None}
        return {name: value for name, value in settings.items() if value is not None}

    def call_model_init(self, trial: Any = None) -> PreTrainedModel:
        """As `Trainer` does; each model has the generation configuration of the arguments, not only the first one."""
        model = super().call_model_init(trial)
        if self.args.generation_config is not None:
            model.generation_config = self.load_generation_config(self.args.generation_config)
            self._complete_generation_config(model)
        return model

    def _complete_generation_config(self, model: PreTrainedModel) -> None:
        """Give a configuration of the user's the ids of the model, and check what `generate()` would find too late."""
        generation = model.generation_config
        check_ranges(generation, GENERATION_RANGES, "generation_config.")
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
            if getattr(generation, name) is None:
                setattr(generation, name, getattr(model.config, name))

    def _generated_ids(self, model, inputs, ignore_keys=None, **gen_kwargs) -> torch.Tensor:
        """
        Generated ids (B, G). The labels are left out: otherwise [`Seq2SeqTrainer.prediction_step`] would run a second
        forward pass for their loss.
        """
        gather_in_generation(self.model)
        prompt = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        settings = gen_kwargs or self._gen_kwargs
        number = settings.get("num_return_sequences") or self.model.generation_config.num_return_sequences
        if number not in (None, 1):  # the second one would be taken for that of the next example
            raise ValueError(f"`num_return_sequences={number}` is not supported: an example has one prediction.")
        if self.args.generation_cache_implementation is not None:
            settings = {"cache_implementation": self.args.generation_cache_implementation} | settings
        generation = self.model.generation_config
        if (settings.get("cache_implementation") or generation.cache_implementation) == "static":
            prompt = self._padded(prompt)
        before = dict(vars(generation))
        try:
            with self.compute_loss_context_manager():
                return super().prediction_step(model, prompt, False, ignore_keys, **settings)[1]
        finally:
            # `Seq2SeqTrainer` of transformers 5.23 leaves the defaults of `generate()` in it, which is saved.
            vars(generation).clear()
            vars(generation).update(before)

    def _padded(self, prompt: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """An input (B, S) with padding behind, which changes nothing but its width."""
        width = -prompt["input_ids"].shape[1] % STATIC_MULTIPLE
        fillings = {"input_ids": self.model.config.pad_token_id, "attention_mask": 0}
        return {name: nn.functional.pad(prompt[name], (0, width), value=fillings[name]) for name in prompt}

    def _constrained_ids(self, model, inputs, ignore_keys=None, **gen_kwargs) -> torch.Tensor:
        """Generated ids (B, G), in which each sentence token of the input comes exactly once."""
        settings = {name: value for name, value in (gen_kwargs or self._gen_kwargs).items() if value is not None}
        generation = self.model.generation_config
        max_length = settings.pop("max_length", None) or generation.max_length or 20  # as `generate()` has it
        max_new_tokens = settings.pop("max_new_tokens", None) or generation.max_new_tokens
        limit = max_length - 1 if max_new_tokens is None else max_new_tokens
        collator = objective_collator(self.data_collator)
        tokenizer = collator.tokenizer if self.processing_class is None else self.processing_class
        constraint = SentenceOrderLogitsProcessor(self.model.config, tokenizer, inputs["input_ids"], limit)
        # The one that counts: `generate()` warns of both.
        name, start = ("max_length", 1) if max_new_tokens is None else ("max_new_tokens", 0)
        settings[name] = start + constraint.max_new_tokens
        settings["logits_processor"] = [*settings.get("logits_processor", []), constraint]
        return self._generated_ids(model, inputs, ignore_keys, **settings)

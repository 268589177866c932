"""
The flags of training that transformers does not have. [`DepthTrainingArguments`] and [`TaskTrainingArguments`] add
those of transformers, which take seconds to import: `--help` does not wait for them.
"""

from dataclasses import dataclass
from typing import Literal

from transformers.hf_argparser import HfArg

from ..tasks.spec import EVALUATION_MODES

BASELINES = ("bag_of_words", "from_scratch")


@dataclass
class TrainingFlags:
    """The flags of pre-training, see [`DepthTrainingArguments`]."""

    _argument_group_name = "training"
    full_class = "hf_depth:DepthTrainingArguments"

    sentence_loss_coefficient: float = HfArg(
        default=1.0, help="Weight of the cross-entropy of sentence tokens; 1.0 is plain cross-entropy."
    )
    skip_bad_batches: int = HfArg(
        default=0, help="Skip at most so many batches whose loss or gradient is not finite; then stop."
    )
    constrain_sentence_order: bool = HfArg(
        default=False, help="Also score the order that a DEPTH model generates if it must name each sentence once."
    )
    generation_cache_implementation: Literal["dynamic", "static"] | None = HfArg(
        default=None,
        help="Cache of generation in evaluations (default: dynamic); static compiles the decoding on a GPU.",
    )
    allow_changed_arguments: bool = HfArg(
        default=False, help="Continue a checkpoint although its run had other data or settings."
    )
    hub_license: str | None = HfArg(
        default=None, help="License of the model for its card, as the Hub writes it: apache-2.0, mit, …"
    )


@dataclass
class TaskTrainingFlags(TrainingFlags):
    """The flags of fine-tuning, see [`TaskTrainingArguments`]."""

    full_class = "hf_depth:TaskTrainingArguments"

    prediction_mode: Literal[EVALUATION_MODES] = HfArg(
        default="generate",
        help="generate: free text; score_labels: the most probable of the task's labels; probe: a small "
        "classifier of frozen sentence embeddings, the model is not trained.",
    )
    length_normalize_scores: bool = HfArg(
        default=False, help="score_labels: divide by the number of a label's tokens."
    )
    probe_layer: int | None = HfArg(
        default=None, help="probe: hidden states of this encoder layer (0: embeddings; default: last)."
    )
    probe_pooling: Literal["sentence_token", "mean"] | None = HfArg(
        default=None, help="probe: state of the sentence token (default of DEPTH) or mean of the tokens (of T5)."
    )
    probe_normalization: Literal["standardize", "whiten", "none"] = HfArg(
        default="standardize", help="probe: scale the embeddings by those of the training examples."
    )
    probe_read_together: bool = HfArg(
        default=False, help="probe: read the sentences of an example as one document, not one by one."
    )
    early_stopping_patience: int | None = HfArg(
        default=None, help="Stop after this many evaluations without a better score."
    )
    early_stopping_threshold: float = HfArg(default=0.0, help="By how much a score must be better to count.")
    baselines: list[str] | None = HfArg(
        default=None,
        help="Beside the scores, those of a bag of words, and of the same training from scratch.",
        metadata={"choices": list(BASELINES)},
    )

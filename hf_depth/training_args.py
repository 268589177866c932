"""Arguments of [`DepthTrainer`]."""

from dataclasses import dataclass, field

from transformers import Seq2SeqTrainingArguments


@dataclass
class DepthTrainingArguments(Seq2SeqTrainingArguments):
    """
    [`Seq2SeqTrainingArguments`] with the weight of the sentence loss, and three defaults that suit this package.

    Args:
        sentence_loss_coefficient (`float`, *optional*, defaults to 1.0):
            Weight `c` of the labels that are sentence tokens: the loss is
            `(sum of the other labels' cross-entropy + c * sum of the sentence tokens') / number of labels`.
            1.0 is plain cross-entropy.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            The collators read columns (`sentence_lengths`) that are no argument of the model.
        logging_nan_inf_filter (`bool`, *optional*, defaults to `False`):
            The filter hides a NaN loss, and makes the device wait for the host at every step. Without it, training
            stops with an error at the next log.
        accelerator_config (*optional*, defaults to `{"dispatch_batches": False}`):
            The default of accelerate lets rank 0 read a stream for all and needs batches of equal length.

    Raises:
        `ValueError`: for a negative coefficient, or for a `label_smoothing_factor`: the weighted loss has none.
    """

    sentence_loss_coefficient: float = field(
        default=1.0, metadata={"help": "Weight of the cross-entropy of sentence tokens; 1.0 is plain cross-entropy."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Remove columns that are no argument of the model; the collators need some."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Hide NaN and infinite losses in the log. Off: training stops on them."}
    )

    def __post_init__(self):
        if self.accelerator_config is None:
            self.accelerator_config = {"dispatch_batches": False}
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # T5 and DEPTH use all of them in every step
        super().__post_init__()
        if self.sentence_loss_coefficient < 0:
            raise ValueError(
                f"`sentence_loss_coefficient` must not be negative, got {self.sentence_loss_coefficient}. "
                "0.0 ignores the sentence tokens, 1.0 is plain cross-entropy."
            )
        if self.label_smoothing_factor:
            raise ValueError(
                f"`label_smoothing_factor`={self.label_smoothing_factor} is not supported: DepthTrainer weights one "
                "cross-entropy per label. Leave it at 0.0."
            )

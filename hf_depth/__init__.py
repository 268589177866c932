"""DEPTH and T5 pre-training and fine-tuning with the Hugging Face Trainer."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from .configuration_depth import DepthConfig
from .data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from .modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from .task_preprocessing import DataCollatorForTasks, TaskPreprocessor
from .task_trainer import TaskDataset, TaskTrainer
from .tasks import DATASET_VALS, TaskSpec, get_task, register_task
from .tokenization import add_sentence_tokens
from .trainer import DepthTrainer
from .training_args import DepthTrainingArguments, TaskTrainingArguments

__version__ = "0.1.0"

# `AutoModelForSeq2SeqLM.from_pretrained(folder)` finds the classes once this package is imported; where it is not
# installed, `save_pretrained` has put the two files into the folder, for `trust_remote_code=True`.
AutoConfig.register("depth", DepthConfig)
AutoModelForSeq2SeqLM.register(DepthConfig, DepthForConditionalGeneration)
DepthConfig.register_for_auto_class()
DepthForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "DATASET_VALS",
    "DataCollatorForDepth",
    "DataCollatorForT5SpanCorruption",
    "DataCollatorForTasks",
    "DepthConfig",
    "DepthForConditionalGeneration",
    "DepthTrainer",
    "DepthTrainingArguments",
    "T5ForConditionalGeneration",
    "TaskDataset",
    "TaskPreprocessor",
    "TaskSpec",
    "TaskTrainer",
    "TaskTrainingArguments",
    "add_sentence_tokens",
    "get_task",
    "register_task",
]

"""DEPTH and T5 pre-training and fine-tuning with the Hugging Face Trainer."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from .data.corpus import load_corpus
from .data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from .data.objectives import DepthObjective, Objective, PrefixLMObjective, SpanCorruptionObjective
from .data.tokenization import add_sentence_tokens
from .models.configuration_depth import DepthConfig
from .models.loading import load_model
from .models.modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from .tasks.dataset import DataCollatorForTasks, TaskDataset
from .tasks.preprocessing import TaskPreprocessor
from .tasks.registry import DATASET_VALS, get_task, register_task
from .tasks.spec import TaskSpec
from .training.runs import Run
from .training.task_trainer import TaskTrainer
from .training.trainer import DepthTrainer
from .training.training_args import DepthTrainingArguments, TaskTrainingArguments

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
    "DepthObjective",
    "DepthTrainer",
    "DepthTrainingArguments",
    "Objective",
    "PrefixLMObjective",
    "Run",
    "SpanCorruptionObjective",
    "T5ForConditionalGeneration",
    "TaskDataset",
    "TaskPreprocessor",
    "TaskSpec",
    "TaskTrainer",
    "TaskTrainingArguments",
    "add_sentence_tokens",
    "get_task",
    "load_corpus",
    "load_model",
    "register_task",
]

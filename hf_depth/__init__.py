"""DEPTH and T5 pre-training and fine-tuning with the Hugging Face Trainer."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from .data.corpus import load_corpus
from .data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from .data.denoisers import Denoiser
from .data.objectives import (
    DepthObjective,
    DepthPrefixLMObjective,
    MixtureOfDenoisersObjective,
    Objective,
    PrefixLMObjective,
    SpanCorruptionObjective,
)
from .data.shard_preparation import prepare_shards
from .data.shards import ShardFolder
from .data.tokenization import add_mode_tokens, add_sentence_tokens, load_tokenizer
from .data.vocabulary import train_tokenizer
from .evaluation.embeddings import sentence_embeddings
from .evaluation.ordering import SentenceOrderLogitsProcessor, order_sentences, score_sentence_orders
from .evaluation.prediction import TaskPredictor
from .models.configuration_depth import DepthConfig
from .models.loading import load_model
from .models.modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from .tasks.config import TaskConfig
from .tasks.dataset import DataCollatorForTasks, TaskDataset
from .tasks.loading import load_task
from .tasks.preprocessing import TaskPreprocessor
from .tasks.registry import DATASET_VALS, get_task, register_task
from .tasks.sources import TaskFiles
from .tasks.spec import TaskSpec
from .tasks.splits import TaskSplits
from .training.optimizers import AdamWScale
from .training.runs import FineTuningRun, PretrainingRun, Run
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
    "AdamWScale",
    "DATASET_VALS",
    "DataCollatorForDepth",
    "DataCollatorForT5SpanCorruption",
    "DataCollatorForTasks",
    "Denoiser",
    "DepthConfig",
    "DepthForConditionalGeneration",
    "DepthObjective",
    "DepthPrefixLMObjective",
    "DepthTrainer",
    "DepthTrainingArguments",
    "FineTuningRun",
    "MixtureOfDenoisersObjective",
    "Objective",
    "PrefixLMObjective",
    "PretrainingRun",
    "Run",
    "SentenceOrderLogitsProcessor",
    "ShardFolder",
    "SpanCorruptionObjective",
    "T5ForConditionalGeneration",
    "TaskConfig",
    "TaskDataset",
    "TaskFiles",
    "TaskPredictor",
    "TaskPreprocessor",
    "TaskSpec",
    "TaskSplits",
    "TaskTrainer",
    "TaskTrainingArguments",
    "add_mode_tokens",
    "add_sentence_tokens",
    "get_task",
    "load_corpus",
    "load_model",
    "load_tokenizer",
    "load_task",
    "order_sentences",
    "prepare_shards",
    "register_task",
    "score_sentence_orders",
    "sentence_embeddings",
    "train_tokenizer",
]

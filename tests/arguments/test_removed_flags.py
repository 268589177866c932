"""The advice for arguments of earlier versions and systems leads to arguments that exist."""

import re

from absl.testing import parameterized
from transformers import Seq2SeqTrainingArguments

from helpers import script_arguments
from hf_depth.arguments.removed_flags import REMOVED_FLAGS

# Parameters of zbambergerNLP/depth and zbambergerNLP/principled-pre-training.
EARLIER_PARAMETERS = """
    mode device num_gpus num_cpus precision eval_only predict_only seed
    model.model_implementation model.name model.tokenizer model.overwrite.dropout_rate model.add_config.is_bf16
    model.random_init model.compile
    dataset.path dataset.name dataset.streaming dataset.merge_examples dataset.columns_to_remove dataset.text_column
    dataset.buffer_size dataset.num_shards dataset.training_set.num_examples dataset.validation_set.num_examples
    data.input_length data.target_length data.mlm_probability data.mean_noise_span_length data.num_workers
    data.data_collator data.sentence_shuffling_probability data.sentence_loss_coefficient
    optim.name optim.base_lr optim.batch_size optim.total_steps optim.epochs optim.warmup_steps optim.lr_scheduler
    optim.weight_decay optim.grad_clip optim.grad_acc optim.final_cosine
    generation.max_length generation.num_beams generation.penalty_alpha evaluate.every_steps evaluate.steps
    checkpoint.checkpoint_path checkpoint.resume checkpoint.every_steps checkpoint.output_dir
    checkpoint.save_total_limit downstream.benchmark_constants downstream.benchmark_dataset downstream.mnli_sub_dir
    downstream.test_results_save_dir logging.every_steps logging.grad_l2 logging.weights_l2 logging.wandb
    logging.wandb_creds.project logging.neptune deepspeed.use_deepspeed deepspeed.deepspeed_config_path
    run_name local_checkpoint_path last_run_id output_dir logging_dir per_device_train_batch_size optimizer
    lr_scheduler_type num_train_epochs learning_rate weight_decay warmup_ratio logging_steps
    eval_accumulation_steps training_accumulation_steps training_padding_token_id eval_steps save_steps
    eval_with_teacher_forcing eval_with_beam_search num_beams deepspeed_config local_rank save_total_limit
    model_name_or_path tokenizer_name dtype initialize_from_scratch dataset_name num_train_examples
    num_validation_examples text_column_name dataset_config_name overwrite_cache validation_split_percentage
    max_seq_length input_seq_length target_seq_length tokenized_dataset_dir percent_of_dataset
    pre_training_dataset_paths pre_training_dataset_names mlm_probability mean_noise_span_length
"""


def argument_names(script):
    return {name for cls in script_arguments(script) for name in cls.__dataclass_fields__}


class RemovedFlagsTest(parameterized.TestCase):
    def test_advice_names_only_arguments_that_exist(self):
        known = argument_names("examples/pretrain_t5.py") | {"num_processes"}  # of `accelerate launch`
        fine_tuning = argument_names("examples/fine_tune_t5.py")
        for name, advice in REMOVED_FLAGS.items():
            with self.subTest(name):
                flags = set(re.findall(r"--(\w+)", advice)) - ({"max_steps"} if "CONFIG.yaml" in advice else set())
                self.assertContainsSubset(flags, fine_tuning if "fine_tune_t5.py" in advice else known)

    def test_every_pretraining_parameter_of_the_earlier_systems_leads_somewhere(self):
        known = argument_names("examples/pretrain_t5.py")
        for name in EARLIER_PARAMETERS.split():
            with self.subTest(name):
                parts = name.split(".")
                suffixes = {".".join(parts[start:]) for start in range(len(parts))}
                self.assertTrue(suffixes & (known | set(REMOVED_FLAGS)))

    def test_no_advice_is_about_a_training_argument(self):
        fields = set(Seq2SeqTrainingArguments.__dataclass_fields__)
        self.assertEmpty(fields & {name for name in REMOVED_FLAGS if "." not in name})

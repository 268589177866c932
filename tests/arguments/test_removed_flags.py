"""The advice for arguments of other systems, and docs/how_to/coming_from.md, lead to arguments that exist."""

import re

from absl.testing import parameterized
from transformers import Seq2SeqTrainingArguments

from helpers import ROOT
from hf_depth.arguments.data_args import CorpusArguments, ObjectiveArguments
from hf_depth.arguments.model_args import FineTuningModelArguments, ModelArguments
from hf_depth.arguments.removed_flags import REMOVED_FLAGS
from hf_depth.arguments.task_args import TaskArguments
from hf_depth.training.training_args import DepthTrainingArguments, TaskTrainingArguments

PRETRAINING_ARGUMENTS = (ModelArguments, CorpusArguments, ObjectiveArguments, DepthTrainingArguments)
FINE_TUNING_ARGUMENTS = (FineTuningModelArguments, TaskArguments, TaskTrainingArguments)

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
    pre_training_dataset_paths pre_training_dataset_names mlm_probability mean_noise_span_length pmi pmi_vocab_path
"""

# The settings of the configuration files of nanoT5 (1375b38), and of the Flax script in transformers 4.
NANOT5 = """
    mode device precision eval_only predict_only seed model.klass model.name model.overwrite.dropout_rate
    model.add_config.is_bf16 model.checkpoint_path model.random_init model.compile data.input_length
    data.mlm_probability data.mean_noise_span_length data.num_workers optim.name optim.base_lr optim.batch_size
    optim.total_steps optim.epochs optim.warmup_steps optim.lr_scheduler optim.weight_decay optim.grad_clip
    optim.grad_acc optim.final_cosine eval.every_steps eval.steps checkpoint.every_steps logging.neptune
    logging.every_steps logging.grad_l2 logging.weights_l2 data.max_seq_len data.max_target_len
    data.max_num_instances_per_task data.add_task_name data.add_task_definition data.num_pos_examples
    data.num_neg_examples data.add_explanation data.tk_instruct data.exec_file_path data.data_dir data.task_dir
"""
FLAX = """
    output_dir overwrite_output_dir do_train do_eval per_device_train_batch_size per_device_eval_batch_size
    learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon adafactor num_train_epochs warmup_steps logging_steps
    save_steps eval_steps seed push_to_hub hub_model_id hub_token model_name_or_path model_type config_name
    tokenizer_name cache_dir use_fast_tokenizer dtype token use_auth_token dataset_name dataset_config_name train_file
    validation_file train_ref_file validation_ref_file overwrite_cache validation_split_percentage max_seq_length
    preprocessing_num_workers mlm_probability mean_noise_span_length
"""
# Parameters of run_t5_pretraining.py in t5-experiments, and of BigScience's metadata.
T5_EXPERIMENTS = """
    task data_path valid_data_path working_dir base_model model_cfg input_seq_len target_seq_len optimizer
    scale_parameter relative_step warmup_init iters num_training_steps num_warmup_steps clip_grad_norm log_interval
    valid_interval save_interval use_generate_on_valid init_checkpoint
"""
METADATA = """
    metadata_list metadata_column_list metadata_probability max_seq_len metadata_sep metadata_key_value_sep
    metadata_prefix_sep random_sample_metadata max_train_steps
"""
DEPTH = EARLIER_PARAMETERS.split("\n    run_name")[0] + " debug"  # what follows is of another repository
# Of run_glue.py, run_summarization.py, run_translation.py and run_seq2seq_qa.py of transformers 5, beside those of the
# training arguments.
EXAMPLES = """
    model_name_or_path config_name tokenizer_name cache_dir model_revision token trust_remote_code use_fast_tokenizer
    ignore_mismatched_sizes resize_position_embeddings
    task_name dataset_name dataset_config_name train_file validation_file test_file overwrite_cache
    preprocessing_num_workers max_train_samples max_eval_samples max_predict_samples
    text_column summary_column question_column context_column answer_column source_prefix source_lang target_lang lang
    forced_bos_token max_seq_length max_source_length max_target_length val_max_target_length max_answer_length
    num_beams pad_to_max_length ignore_pad_token_for_loss
"""
SETTINGS = {
    "examples": EXAMPLES.split(),
    "nanoT5": NANOT5.split(),
    "Flax": FLAX.split(),
    "DEPTH": DEPTH.split(),
    "t5-experiments": T5_EXPERIMENTS.split(),
    "metadata": METADATA.split(),
}


def names(dataclass_types):
    return {name for cls in dataclass_types for name in cls.__dataclass_fields__}


def rows(system: str) -> list[tuple[list[str], set[str]]]:
    """Of each row of a table: the settings of the other system, and our flags for them."""
    text = (ROOT / "docs/how_to/coming_from.md").read_text(encoding="utf-8")
    table = re.search(rf"^<!-- flags: {system} -->\n\|.*?\n\|-.*?\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)[1]
    cells = [line.strip("|").split("|") for line in table.splitlines()]
    return [(re.findall(r"`([\w.]+)`", row[0]), set(re.findall(r"`--(\w+)`", row[1]))) for row in cells]


def resolutions(name: str) -> list[str]:
    """A setting with and without its sections, as the scripts look it up."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


class RemovedFlagsTest(parameterized.TestCase):
    def test_advice_names_only_arguments_that_exist(self):
        known = names(PRETRAINING_ARGUMENTS) | {"num_processes"}  # of `accelerate launch`
        fine_tuning = names(FINE_TUNING_ARGUMENTS)
        for name, advice in REMOVED_FLAGS.items():
            with self.subTest(name):
                flags = set(re.findall(r"--(\w+)", advice)) - ({"max_steps"} if "CONFIG.yaml" in advice else set())
                self.assertContainsSubset(flags, fine_tuning if "fine_tune_t5.py" in advice else known)

    def test_every_pretraining_parameter_of_the_earlier_systems_leads_somewhere(self):
        known = names(PRETRAINING_ARGUMENTS)
        for name in EARLIER_PARAMETERS.split():
            with self.subTest(name):
                parts = name.split(".")
                suffixes = {".".join(parts[start:]) for start in range(len(parts))}
                self.assertTrue(suffixes & (known | set(REMOVED_FLAGS)))

    def test_no_advice_is_about_a_training_argument(self):
        fields = set(Seq2SeqTrainingArguments.__dataclass_fields__)
        self.assertEmpty(fields & {name for name in REMOVED_FLAGS if "." not in name})


@parameterized.parameters(*SETTINGS)
class TablesTest(parameterized.TestCase):
    def test_every_setting_stands_in_the_table_once(self, system):
        self.assertCountEqual([name for settings, _ in rows(system) for name in settings], SETTINGS[system])

    def test_every_flag_of_ours_exists(self, system):
        known = names(PRETRAINING_ARGUMENTS) | names(FINE_TUNING_ARGUMENTS)
        flags = set().union(*(flags for _, flags in rows(system)))
        self.assertNotEmpty(flags)
        self.assertContainsSubset(flags, known)

    def test_a_script_says_the_same_as_the_table(self, system):
        known = names(PRETRAINING_ARGUMENTS) | names(FINE_TUNING_ARGUMENTS)
        for settings, flags in rows(system):
            for name in settings:
                with self.subTest(name):
                    found = [each for each in resolutions(name) if each in known or each in REMOVED_FLAGS]
                    self.assertNotEmpty(found, "neither a flag nor in REMOVED_FLAGS")
                    # One script may have a flag that the other one gives advice on.
                    advised = re.findall(r"--(\w+)", REMOVED_FLAGS.get(found[0], ""))
                    advised += [found[0]] * (found[0] in known)
                    if flags and advised:
                        self.assertTrue(flags & set(advised), f"{flags} here, but {advised} by the script")

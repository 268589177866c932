"""docs/how_to/coming_from.md: the tables hold all settings of the other systems, and ours exist."""

import re

from absl.testing import parameterized

from arguments.test_removed_flags import EARLIER_PARAMETERS, FINE_TUNING_ARGUMENTS, PRETRAINING_ARGUMENTS, names
from helpers import ROOT
from hf_depth.arguments.removed_flags import REMOVED_FLAGS

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
DEPTH = EARLIER_PARAMETERS.split("\n    run_name")[0] + " debug"  # what follows is of another repository
SETTINGS = {"nanoT5": NANOT5.split(), "Flax": FLAX.split(), "DEPTH": DEPTH.split()}


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
                    advised = re.findall(r"--(\w+)", REMOVED_FLAGS.get(found[0], f"--{found[0]}"))
                    if flags and advised:
                        self.assertTrue(flags & set(advised), f"{flags} here, but {advised} by the script")

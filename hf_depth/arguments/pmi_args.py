"""What a vocabulary of collocations is made of."""

import os
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..ranges import AT_LEAST_ONE, check_ranges

RANGES = dict.fromkeys(("pmi_vocab_size", "min_count", "max_counted"), AT_LEAST_ONE)


@dataclass
class PMIArguments:
    """Where the vocabulary is written, and which n-grams it has."""

    _argument_group_name = "vocabulary of collocations"

    output_file: str = HfArg(help="The vocabulary: one n-gram on each line.")
    pmi_vocab_size: int = HfArg(default=800000, help="Most n-grams of the vocabulary.")
    min_count: int = HfArg(default=10, help="Leave out n-grams that come less often.")
    max_counted: int = HfArg(default=10000000, help="Most n-grams of each length in memory.")

    def __post_init__(self):
        check_ranges(self, RANGES, "--")
        if os.path.isdir(self.output_file):
            raise ValueError(f"`--output_file {self.output_file}` is a folder: name a file.")

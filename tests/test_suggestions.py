"""The nearest known names that error messages offer for a mistyped one."""

from absl.testing import parameterized

from hf_depth.suggestions import near_matches, suggestion

TASKS = ("cola", "rte", "mnli", "qnli", "wnli")


class NearMatchesTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("a_letter_missing", "cla", ["cola"]),
        ("two_letters_swapped", "ret", ["rte"]),
        ("another_case", "COLA", ["cola"]),
        ("the_nearest_first", "wnlii", ["wnli", "qnli", "mnli"]),
        ("nothing_near", "squad", []),
        ("empty", "", []),
        ("not_a_string", 3, []),
    )
    def test_the_names_that_resemble_a_mistyped_one(self, name, expected):
        self.assertEqual(near_matches(name, iter(TASKS)), expected)


class SuggestionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("cla", "tasks", " Did you mean 'cola'?"),
        ("wnlii", "tasks", " Did you mean 'wnli' or 'qnli' or 'mnli'?"),
        ("squad", "tasks", " The tasks are: 'cola', 'rte', 'mnli', 'qnli', 'wnli'."),
        ("squad", None, ""),
        ("cla", None, " Did you mean 'cola'?"),
    )
    def test_near_names_come_before_a_list_of_all(self, name, kind, expected):
        self.assertEqual(suggestion(name, iter(TASKS), kind), expected)

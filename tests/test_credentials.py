from absl.testing import parameterized

from hf_depth.credentials import told_command


class CommandTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--api_key", "my secret"], "--api_key ***"),
        (["--api_key=my secret"], "--api_key=***"),
        (["--api_key=my secret", "x=1"], "--api_key=*** x=1"),
        (["--api-key", "a 'b' \"c\"\nd"], "--api-key ***"),
        (["--WANDB_PASSWORD", "/a/b c"], "--WANDB_PASSWORD ***"),
        (["--run_name", "hf_" + "a" * 30], "--run_name ***"),
        (["--max_tokens", "two words"], "--max_tokens 'two words'"),
        (["--train_file", "/data/my novels.txt"], "--train_file 'my novels.txt'"),  # no folder either
        (["https://me:secret@example.org/private/texts.jsonl?token=1"], "texts.jsonl"),
    )
    def test_a_secret_is_masked_as_a_whole_however_it_is_quoted(self, arguments, expected):
        told = told_command(["train.py", *arguments, "--seed", "1"])
        self.assertEqual(told, f"python train.py {expected} --seed 1")

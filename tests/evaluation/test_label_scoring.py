"""Scores of labels equal those of one forward pass per label, whatever the model, the attention and the batch."""

from unittest import mock

import torch
from absl.testing import parameterized
from peft import PrefixTuningConfig, get_peft_model
from transformers import T5ForConditionalGeneration as StockT5

from hf_depth.evaluation import label_scoring
from hf_depth.evaluation.label_scoring import score_labels
from tiny_models import MODELS as OURS
from tiny_models import V1_0, random_batch, tiny_model, tiny_t5_config

# Labels of different lengths, some with a common beginning, one the beginning of another, some with sentence tokens.
LABELS = torch.nn.utils.rnn.pad_sequence(
    [torch.tensor(ids) for ids in ([5, 6, 7, 1], [5, 6, 1], [5, 6, 7, 8, 1], [41, 9, 42, 1], [40, 41, 1], [9, 1])],
    batch_first=True,
    padding_value=-100,
)
MODELS = OURS | {"stock_t5": (StockT5, lambda **changes: tiny_t5_config(**V1_0, **changes))}


def model_of(kind, attn_implementation="sdpa", **changes):
    model_class, config = MODELS[kind]
    return tiny_model(config(**changes), attn_implementation, model_class=model_class)


@torch.no_grad()
def slow_scores(model, batch, label_ids):
    """One forward pass per example and label, without any padding."""
    scores = torch.zeros(len(batch["input_ids"]), len(label_ids))
    for row, (ids, mask) in enumerate(zip(batch["input_ids"], batch["attention_mask"], strict=True)):
        for column, label in enumerate(label_ids):
            label = label[label != -100][None]
            logits = model(input_ids=ids[mask][None], labels=label).logits
            log_probabilities = logits.float().log_softmax(dim=-1)
            scores[row, column] = log_probabilities.gather(-1, label[..., None]).sum()
    return scores


class ScoresTest(parameterized.TestCase):
    @parameterized.product(kind=list(MODELS), attn_implementation=["eager", "sdpa", "depth_sdpa"])
    def test_scores_equal_one_forward_pass_per_label(self, kind, attn_implementation):
        model = model_of(kind, attn_implementation)
        batch = random_batch(seed=1, batch_size=4)
        scores = score_labels(model, batch["input_ids"], batch["attention_mask"], LABELS)
        self.assertEqual((scores.shape, scores.dtype), ((4, len(LABELS)), torch.float32))
        torch.testing.assert_close(scores, slow_scores(model, batch, LABELS), atol=1e-5, rtol=1e-6)

    @parameterized.product(kind=["depth", "stock_t5"], limits=[(1, 1), (2000, 8)])
    def test_scores_in_parts_equal_those_at_once(self, kind, limits):
        max_logits, max_row_length = limits
        model, batch = model_of(kind), random_batch(seed=3, batch_size=5)
        at_once = score_labels(model, batch["input_ids"], batch["attention_mask"], LABELS)
        with patched("MAX_ROW_LENGTH", max_row_length), patched("MAX_CPU_LOGITS", max_logits):
            parts = score_labels(model, batch["input_ids"], batch["attention_mask"], LABELS)
        torch.testing.assert_close(parts, at_once, atol=1e-5, rtol=1e-6)

    @parameterized.parameters("depth", "stock_t5")
    def test_encoder_runs_once_per_example(self, kind):
        model, batch = model_of(kind), random_batch(seed=3, batch_size=5)
        seen, keys = [], []
        model.encoder.register_forward_hook(lambda module, args, output: seen.append(len(output[0])))
        cross_attention = model.decoder.block[0].layer[1].EncDecAttention
        cross_attention.k.register_forward_hook(lambda module, args, output: keys.append(len(output)))
        score_labels(model, batch["input_ids"], batch["attention_mask"], LABELS)
        self.assertEqual((sum(seen), sum(keys)), (5, 5), "not once per example")
        seen.clear()
        with patched("MAX_ROW_LENGTH", 8), patched("MAX_CPU_LOGITS", 1):
            score_labels(model, batch["input_ids"], batch["attention_mask"], LABELS)
        self.assertEqual(sum(seen), 5)

    @parameterized.parameters("depth", "stock_t5")
    def test_other_labels_and_padding_change_nothing(self, kind):
        model, batch = model_of(kind), random_batch(seed=4, batch_size=3)
        scores = score_labels(model, batch["input_ids"], batch["attention_mask"], LABELS)
        order = torch.tensor([3, 0, 5])
        padded = torch.nn.functional.pad(LABELS[order], (0, 3), value=-100)
        inputs = torch.nn.functional.pad(batch["input_ids"], (0, 4))
        mask = torch.nn.functional.pad(batch["attention_mask"], (0, 4))
        torch.testing.assert_close(score_labels(model, inputs, mask, padded), scores[:, order], atol=1e-5, rtol=1e-6)

    def test_prefix_tuning_is_refused(self):
        prefix = PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2)
        model = get_peft_model(tiny_model(tiny_t5_config()), prefix)
        with self.assertRaisesRegex(ValueError, "prefix tuning. Use LoRA"):
            score_labels(model, torch.tensor([[5, 1]]), None, torch.tensor([[6, 1], [7, 1]]))

    def test_normalized_scores_are_means_per_token(self):
        model, batch = model_of("t5"), random_batch(seed=6)
        arguments = (model, batch["input_ids"], batch["attention_mask"], LABELS)
        means = score_labels(*arguments, length_normalized=True)
        lengths = torch.tensor([4, 3, 5, 4, 3, 2])
        torch.testing.assert_close(means * lengths, score_labels(*arguments))


def patched(name, value):
    return mock.patch.object(label_scoring, name, value)

"""The masks that are read off a model, and their picture."""

import tempfile
from pathlib import Path

import torch
from absl.testing import parameterized
from matplotlib.backends.backend_agg import FigureCanvasAgg

from helpers import tiny_tokenizer
from hf_depth import load_model
from hf_depth.evaluation.attention_masks import attention_masks, describe_masks, masks_figure, plot_attention_masks
from tiny_models import SENTENCE_TOKENS, model_of, random_batch, tiny_model


def allowed(kind, queries, keys, query, key):
    """Whether a query may attend to a key; `queries` and `keys` say which tokens are sentence tokens."""
    if kind == "decoder" and key > query:
        return False
    if not queries[query]:
        return True
    if kind != "encoder":
        return keys[key]
    before_first = key == keys.index(True) - 1  # where the `<eosen>` of the first sentence stands
    return sum(keys[: key + 1]) + before_first == sum(queries[: query + 1])  # of the same sentence


def oracle(kind, queries, keys):
    """A mask entry by entry, of lists of ids."""
    queries, keys = ([id in SENTENCE_TOKENS for id in ids] for ids in (queries, keys))
    return [[allowed(kind, queries, keys, query, key) for key in range(len(keys))] for query in range(len(queries))]


class AttentionMasksTest(parameterized.TestCase):
    @parameterized.parameters("eager", "sdpa", "depth_flex")
    def test_the_masks_are_those_of_the_rules(self, implementation):
        batch = random_batch(0, batch_size=1)
        model = tiny_model(attn_implementation=implementation)
        target = model.shift_labels(batch["labels"])
        masks = attention_masks(model, batch["input_ids"], target)
        source, target = batch["input_ids"][0].tolist(), target[0].tolist()
        places = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
        for kind, (queries, keys) in places.items():
            self.assertEqual(masks[kind][0].tolist(), oracle(kind, queries, keys), kind)

    @parameterized.parameters("eager", "sdpa")
    def test_no_token_attends_to_padding(self, implementation):
        batch = random_batch(1)
        self.assertFalse(batch["attention_mask"].all())
        model = tiny_model(attn_implementation=implementation)
        target = model.shift_labels(batch["labels"])
        masks = attention_masks(model, batch["input_ids"], target, batch["attention_mask"])
        for kind in ("encoder", "cross"):
            padding = ~batch["attention_mask"][:, None].expand_as(masks[kind])
            self.assertFalse(masks[kind][padding].any(), kind)

    def test_a_t5_attends_to_all_and_in_the_decoder_to_all_before(self):
        batch = random_batch(0, batch_size=1)
        model = model_of("t5")
        masks = attention_masks(model, batch["input_ids"], model.shift_labels(batch["labels"]))
        self.assertTrue(masks["encoder"].all() and masks["cross"].all())
        self.assertTrue(masks["decoder"].equal(torch.ones(1, 9, 9, dtype=torch.bool).tril()))

    def test_the_model_is_left_as_it_was(self):
        batch, model = random_batch(0), tiny_model()
        before = [len(module._forward_pre_hooks) for module in model.modules()]
        attention_masks(model, batch["input_ids"], model.shift_labels(batch["labels"]))
        self.assertEqual([len(module._forward_pre_hooks) for module in model.modules()], before)


class PictureTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = tiny_tokenizer(sentence_tokens=True)
        self.model = load_model(None, self.tokenizer, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        text = "<eosen><sent_3> Mr. Bennet<extra_id_4><eosen><sent_0> Call me<eosen></s>"
        self.source = torch.tensor(self.tokenizer(text, add_special_tokens=False).input_ids)
        text = "<pad><sent_0><eosen><sent_3><extra_id_4> made<eosen>"
        self.target = torch.tensor(self.tokenizer(text, add_special_tokens=False).input_ids)
        self.masks = attention_masks(self.model, self.source[None], self.target[None])
        self.masks = {kind: mask[0] for kind, mask in self.masks.items()}

    def test_the_cells_are_the_masks_and_rows_of_sentence_tokens_stand_out(self):
        source, target = map(self.tokenizer.convert_ids_to_tokens, (self.source.tolist(), self.target.tolist()))
        figure = masks_figure(self.masks, source, target)
        queries = {"encoder": source, "decoder": target, "cross": target}
        for axes, (kind, mask) in zip(figure.axes, self.masks.items(), strict=True):
            cells = torch.tensor(axes.images[0].get_array().filled(-1))
            self.assertEqual((cells > 0).tolist(), mask.tolist(), kind)
            stands_out = (cells == 2).any(dim=1).tolist()
            self.assertEqual(stands_out, [token.startswith("<sent_") for token in queries[kind]], kind)
            self.assertEqual([text.get_text() for text in axes.get_yticklabels()], queries[kind])

    def test_no_label_is_cut_off_or_written_over_another(self):
        source, target = map(self.tokenizer.convert_ids_to_tokens, (self.source.tolist(), self.target.tolist()))
        figure = masks_figure(self.masks, source, target)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        for axes in figure.axes:
            for texts in (axes.get_xticklabels(), axes.get_yticklabels()):
                boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
                for box, following in zip(boxes, boxes[1:], strict=False):
                    self.assertFalse(box.overlaps(following))
                for box in boxes:
                    self.assertTrue(figure.bbox.x0 <= box.x0 and figure.bbox.y0 <= box.y0)

    def test_the_file_says_what_it_shows_and_is_the_same_each_time(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("a.png", "a.svg", "b.svg"):
            plot_attention_masks(folder / name, self.model, self.tokenizer, self.source, self.target)
        for name in ("a.png", "a.svg"):
            self.assertIn(describe_masks(self.masks).encode(), (folder / name).read_bytes())
        self.assertEqual((folder / "a.svg").read_bytes(), (folder / "b.svg").read_bytes())

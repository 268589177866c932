"""Tables as text and in Markdown."""

import re

from absl.testing import parameterized

from hf_depth.tables import aligned, markdown_table


class TablesTest(parameterized.TestCase):
    @parameterized.parameters(0, 1, 2, 3)
    def test_columns_of_text_end_where_those_of_numbers_begin(self, num_text_columns):
        rows = [["task", "split", "score"], ["rte", "validation", "0.5"]]
        for before, cells in zip(rows, aligned(rows, num_text_columns).splitlines(), strict=True):
            place = 0
            for column, (width, text) in enumerate(zip((4, 10, 5), before, strict=True)):
                cell = cells[place : place + width].ljust(width)
                self.assertEqual(cell, text.ljust(width) if column < num_text_columns else text.rjust(width))
                place += width + 2

    @parameterized.parameters("a|b", "||", "a\nb", "a\r\n\n|b", "")
    def test_no_text_of_a_cell_changes_the_shape_of_a_table(self, text):
        lines = markdown_table([["name", text], [text, 1.5], [None, text]]).split("\n")
        self.assertLen(lines, 4)
        self.assertEqual({len(re.findall(r"(?<!\\)\|", line)) for line in lines}, {3})

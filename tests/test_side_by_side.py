from rich.cells import cell_len

from taojin.side_by_side import fold_cells, marked_differences, visible


def test_differences_are_marked_and_chance_agreements_are_not() -> None:
    left, right = marked_differences("今天天气很好，我们去公园", "今天天气不错，我们去公园")
    assert left == [("今天天气", False), ("很好", True), ("，我们去公园", False)]
    assert right == [("今天天气", False), ("不错", True), ("，我们去公园", False)]


def test_lines_are_cut_by_terminal_cells() -> None:
    lines = fold_cells([("中文abc中文", False), ("差", True)], 6)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert "".join(texts) == "中文abc中文⟦差⟧"
    assert all(cell_len(text) <= 6 for text in texts)


def test_control_characters_never_reach_the_terminal() -> None:
    assert visible("a\x1b[31m\nb\u202e") == "a·[31m↵b·"

from collections import Counter
from pathlib import Path, PurePosixPath

from taojin.demo_sources import _docstrings_of_file, articles, drop_tags, fair_shares


def test_tags_are_dropped_and_nothing_else() -> None:
    assert drop_tags("迈向/v  充满/v  希望/n  的/u  新/a  世纪/n  ——/w\n") == "迈向充满希望的新世纪——"
    assert drop_tags("１/b ２/m 月/e") == "１２月"
    assert drop_tags("a/b/n 没有标记") == "a/b没有标记"
    assert drop_tags("\n") == ""


def test_an_article_starts_at_the_first_heading_after_a_paragraph() -> None:
    lines = [
        "北京举行新年音乐会",
        "江泽民等与群众一起辞旧迎新（附图片１张）",
        "党和国家领导人欣赏了音乐会。",
        "（新华社记者樊如钧摄）",
        "",
        "李鹏在北京考察企业",
        "（一九九七年十二月三十一日）",
        "今天是最后一天。",
    ]
    assert list(articles(lines)) == [(1, lines[:4]), (6, lines[5:])]


def test_shares_are_fair_and_spend_no_more_than_the_budget() -> None:
    assert fair_shares({"small": 3, "large": 100, "larger": 500}, 43) == {"small": 3, "large": 20, "larger": 20}
    assert fair_shares({"small": 3, "large": 100}, 1000) == {"small": 3, "large": 100}
    assert fair_shares({}, 10) == {}


def test_docstrings_are_read_without_importing(tmp_path: Path) -> None:
    words = "Says at length what it is for. " * 5
    module = tmp_path / "module.py"
    module.write_text(
        f'"""{words}"""\nraise SystemExit\nclass A:\n    """{words}"""\n    def b(self):\n        """Short."""\n'
        f'if True:\n    def c():\n        """{words}"""\nelse:\n    def c():\n        """{words}"""\n'
    )
    left_out: Counter[str] = Counter()
    found = list(_docstrings_of_file(PurePosixPath("p/module.py"), module, None, left_out))
    assert [document.id for document in found] == [
        "p/module.py::module",
        "p/module.py::A",
        "p/module.py::c",
        "p/module.py::c~2",
    ]
    assert left_out == {"docstrings under 120 characters": 1}

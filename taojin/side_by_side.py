"""Two texts beside each other on a terminal: what differs is marked, long agreements and differences are cut short.

In: excerpts of `taojin.evidence`. Out: spans (text, whether it differs) and lines of them. Cost: difflib's, so excerpts
of some hundred characters.
"""

import difflib

from rich.cells import cell_len
from rich.text import Text

EXCERPT_SHOWN, LONG_DIFFERENCE = 140, 60  # characters printed of an excerpt, and of one difference

Spans = list[tuple[str, bool]]


def marked_differences(a: str, b: str) -> tuple[Spans, Spans]:
    """Both texts as (text, differs) spans. Agreements of a few characters between differences count as chance."""
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    left: Spans = []
    right: Spans = []
    i = j = 0
    for index, block in enumerate(blocks):
        following = blocks[index + 1] if index + 1 < len(blocks) else block
        around = max(block.a - i, block.b - j) + max(following.a - block.a, following.b - block.b) - block.size
        chance = 12 if around > 40 else 3
        if block.size and 0 < block.size < chance and block.a > 0 and following is not block and following.size:
            continue
        _add_span(left, a[i : block.a], differs=True)
        _add_span(right, b[j : block.b], differs=True)
        i, j = block.a + block.size, block.b + block.size
        _add_span(left, a[block.a : i], differs=False)
        _add_span(right, b[block.b : j], differs=False)
    return left, right


def _add_span(spans: Spans, text: str, *, differs: bool) -> None:
    if text and spans and spans[-1][1] == differs:
        spans[-1] = (spans[-1][0] + text, differs)
    elif text:
        spans.append((text, differs))


def cut_short(spans: Spans) -> Spans:
    """What is printed of an excerpt: long differences by their ends, about EXCERPT_SHOWN characters in all."""
    shown: Spans = []
    room = EXCERPT_SHOWN
    for text, differs in spans:
        if room <= 0:
            break
        if differs and len(text) > LONG_DIFFERENCE:
            half = LONG_DIFFERENCE // 3
            text = f"{text[:half]} …{len(text) - 2 * half:,} characters… {text[-half:]}"
        elif len(text) > room:
            text = f"{text[:room]}…"
        shown.append((text, differs))
        room -= len(text)
    return shown


def fold_cells(spans: Spans, width: int) -> list[Spans]:
    """Cut spans into lines of at most `width` terminal cells (full-width: two); ⟦⟧ encloses differences."""
    lines: list[Spans] = [[]]
    used = 0
    for text, differs in spans:
        for character in f"⟦{text}⟧" if differs else text:
            cells = cell_len(character)
            if used + cells > width:
                lines.append([])
                used = 0
            used += cells
            line = lines[-1]
            if line and line[-1][1] == differs:
                line[-1] = (line[-1][0] + character, differs)
            else:
                line.append((character, differs))
    return lines


def styled(spans: Spans) -> Text:
    line = Text()
    for text, differs in spans:
        line.append(text, style="bold red" if differs else "")
    return line


def visible(text: str) -> str:
    """One line: line ends as ↵, tabs as spaces, other controls (terminal escapes among them) as ·."""
    text = text.replace("\r\n", "↵").replace("\n", "↵").replace("\t", " ")
    return "".join("·" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    code = ord(character)
    # C0, C1, zero-width and direction marks: they would break the columns or the terminal.
    return code < 32 or 127 <= code < 160 or 0x200B <= code <= 0x200F or 0x202A <= code <= 0x202E or code == 0xFEFF

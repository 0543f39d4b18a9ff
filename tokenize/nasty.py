"""Texts on which tokenizers disagree: two that give the same ids on all of them and on a sample have earned trust.

Each group says what it is for. Short on purpose: the reference encodes them at every start. Characters that cannot be
seen are written as escapes.
"""

_WHITE_SPACE = (
    # Where a run of blanks ends, and to whom its last one belongs: the look-ahead of every published pattern.
    " ", "  ", "   a", "a  b", "a   b   ", "   ", "\t", "\t\ta", " \t a", "a \t", "\u3000\u3000中文", "中\u3000 文",
    "\u00a0a", "\u2003\u2003x", "\u200a", "\u205f", "\u1680a", "\u2028a\u2029b", "\x0b\x0c\x1c\x1d\x1e\x1fa",
    "\u0085a", "a\u00a0\u00a0\u00a0b",
    # Line ends among blanks; "\n", blanks, "\n" is split wrongly by one published tokenizer.
    "\n", "\n\n", "a\nb", "a\n\nb", "a\n \nb", "\n   \n", "x\n   \n   \ny", " \n", "\n ", "  \n  \n  ", "a  \n",
    "\n  a", "中文\n    \n中文", "。\n\n　　第", "a\n\t\n\tb", "}\n\n    }\n\n", "a;\n\n\n  b", "...\n",
    "!!\n\n  !!\n", "/\n/\n\n/",
    # Carriage returns alone, in pairs, and the wrong way round.
    "\r", "\r\n", "a\rb", "a\r\nb", "a\r\r\n\nb", "\n\r\n\r", "a \r b", " \r\n ", "中\r文",
)  # fmt: skip

_DIGITS = (
    # Groups of three from the left, single digits, or a whole run; digits of other scripts; what only looks like one.
    "1", "12", "123", "1234", "12345678901234567890", "3.14159", "1,234,567", "2024年12月31日", "v1.2.3-rc4", "0x1F",
    "1e-10", " 12", "  12", "１２３４", "١٢٣٤٥", "१२३४", "๑๒๓๔", "一二三四", "〇", "Ⅻ", "½¾", "①②③④", "x²y³", "𝟙𝟚𝟛𝟜",
    "12345中67890", "a1b22c333d4444",
)  # fmt: skip

_LETTERS = (
    # Contractions with every case and quote; capitals inside words, where one pattern splits and others do not.
    "don't", "DON'T", "I'll we've they'd it's I'm you're", "'S 'T", "'sa", "a'", "''s", "don’t", "l'été", "'ſ", "'ſt",
    "'K", "camelCaseHTTPServer", "ÀÉÎÕÜ", "straße STRASSE ẞ", "ǅ ǆ Ǆ", "ﬁ ﬂ ﬀ", "ŉ", "İstanbul ıI", "ΑΒΓ αβγς",
    "Привет мир", "ªº", "ʰʲ", "𝒜𝓑𝕮", "a_b_c", "__init__", "snake_CASE_x1",
)  # fmt: skip

_MARKS = (
    # Combining marks: letters to some patterns and not to others; changed by normal forms; alone at the start.
    "e\u0301", "\u0301", "a\u0301\u0323", "a\u0323\u0301", "o\u0302\u0303 ô\u0303 ỗ", "q\u0307\u0323", "क्षि नमस्ते",
    "สวัสดีครับ น้ำ", "မြန်မာ", "བོད་ཡིག", "ខ្មែរ", "தமிழ்", "עִבְרִית", "العَرَبِيَّة", "ـــ",
    "Z̸̧̢͔͙̘̤͋̋a̵͖̎l̴̡̛̞̗͌̅g̷͇̈́o̶̮͛", "a\u20dd", "\u3099か", "か\u3099", "が", "ｶﾞ", "A\u030a Å \u212b",
    "\u2126 \u212a", "1\u0301", "-\u0301", " \u0301",
)  # fmt: skip

_EAST_ASIAN = (
    # Han of every plane, compatibility forms that NFC changes, radicals, kana, jamo and their syllables.
    "中", "中文", "天地玄黄，宇宙洪荒。", "㐀䶵", "𠀀𠮷𡃁𪚥", "\U0002a700\U0002b820\U0002ceb0",
    "\U00030000\U000323af", "\uf900\uf95c", "\U0002f800\U0002fa1d", "⺀⼀", "龥龦鿿", "々〆ヶ",
    "ひらがなカタカナｶﾀｶﾅ", "一ー", "ヽヾゝゞ", "한국어", "\u1112\u1161\u11ab", "\u1112\u1161", "\u11ab", "ㅎㅏㄴ",
    "ㄅㄆㄇ", "葛\U000e0100飾", "辻\ufe00", "中a文b", "中1文", "中 文", "「『“‘’”』」", "——……", "，。！？；：、",
    "！？", "《》〈〉【】〔〕", "ＡＢＣ　ａｂｃ", "￥％＠", "～〜", "㈠㊀㌔㍿", "·・‧", "﹏﹗", "⿰亻尔",
)  # fmt: skip

_PICTURES = (
    # Emoji: joined by U+200D, with skin tones, variation selectors, keycaps, flags, tags; private use; not assigned.
    "😀", "👨‍👩‍👧‍👦", "👍🏽", "❤️", "❤", "🏳️‍🌈", "1️⃣", "#️⃣", "🇨🇳🇺🇸",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "😀😀😀", "a😀b", "中😀文", " 😀", "😀\n",
    "\ue000", "\U000f0000", "\U0010ffff", "\ufffe\uffff", "\u0378", "\U0003fffd", "→⇒∀∑√∞", "│┌─┐█▓", "©®™", "♠♥",
    "𝄞", "🀄",
)  # fmt: skip

_UNSEEN = (
    # Controls, marks of direction, byte order marks, replacement characters, soft hyphens, joiners.
    "\x00", "a\x00b", "\x00\x00\x00", "\x01\x02\x7f\x80\x9f", "\ufeff", "\ufeffabc", "a\ufeffb", "\ufffd",
    "a\ufffd\ufffdb", "\u200b", "a\u200bb", "\u200c\u200d", "\u200e\u202eabc\u202c", "co\u00adop", "\u2060\u2061",
    "\u180e", "\u061c", "\x1b[31mred\x1b[0m", "\ufff9\ufffa\ufffb", "\u034f", "\u115f\u3164\uffa0",
)  # fmt: skip

_CODE = (
    # Runs of symbols with line ends and blanks behind; markup; paths; what a slash or a bracket may take along.
    "def f(x):\n    return x\n", "if (a) {\n\tb();\n}\n", "<div class=\"a\">\n  <p>中文</p>\n</div>",
    "https://例子.com/a?b=c&d=%E4%B8%AD#e", "a@b.com", "C:\\a\\b", "/usr/bin/", "$$\\frac{a}{b}$$",
    "| a | b |\n|---|---|\n", "```python\nx\n```", "# 标题\n\n## 二\n", "- [ ] a\n- [x] b", "a+=b++<<=c", "::->=>",
    "!!!???...", "----------", "==========\n", "\"\"\"''' ```", "(((a)))", "[[[[]]]]", "&nbsp;&#20013;",
    "\\n\\t\\u4e2d", ".a", "..a", " .a", "\n.a", "-a -1 --a", "$a $1", "#a ##a", "_ _a", "a/b//c", "!\n", "!\r\n",
    "！\n\n", "。\n  。",
)  # fmt: skip

_LOOK_ALIKES = (
    # Special tokens of many tokenizers, whole, broken, in other case, in full width. Only the file's own may be tokens.
    "<|endoftext|>", "<|endoftext|", "<|ENDOFTEXT|>", "<| endoftext |>", "a<|endoftext|>b",
    "<|im_start|>user\n中文<|im_end|>\n", "<|im_start|", "<s>", "</s>", "<s>a</s>", "<unk>", "<pad>",
    "[CLS][SEP][MASK][PAD][UNK]", "<bos><eos>", "<|begin_of_text|><|end_of_text|><|eot_id|>",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end of sentence｜>", "＜｜end▁of▁sentence｜＞",
    "<think>\n</think>", "<0x0A>", "<0xE4>", "▁", "▁▁a", "a▁b", "Ġ", "Ċ", "ĠĠa", "##a", "@@ a", "</w>",
    "<|fim_prefix|>", "<|extra_0|>", "<|reserved_special_token_0|>",
)  # fmt: skip

_LONG = (
    # One piece to a pre-tokenizer, thousands of characters: merges far from their ends, and caches of short pieces.
    "a" * 3000, "中" * 3000, "哈哈" * 1500, " " * 3000, " " * 3000 + "a", "\n" * 3000, "\r\n" * 1500,
    "\t" * 999 + "a", "1" * 3001, "=" * 3000, "ab" * 1500, "。" * 3000, "😀" * 750, "e\u0301" * 1000, "\n " * 1500,
    " \n" * 1500, "\x00" * 1000, "天地玄黄宇宙洪荒日月盈昃辰宿列张" * 200, "𠀀" * 1000, "한" * 1000, "\u3000" * 1000,
    "a" * 255, "a" * 256, "a" * 257, "中a" * 1000, "Aa" * 1500, "antidisestablishmentarianism" * 100,
)  # fmt: skip

NASTY: tuple[str, ...] = (
    "",
    *_WHITE_SPACE,
    *_DIGITS,
    *_LETTERS,
    *_MARKS,
    *_EAST_ASIAN,
    *_PICTURES,
    *_UNSEEN,
    *_CODE,
    *_LOOK_ALIKES,
    *_LONG,
)

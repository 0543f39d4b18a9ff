"""Signals: what is measured of every document, once. Rules (`taojin.quality.rules`) only compare these numbers.

Shares lie in 0…1 and are of the document's code points unless said otherwise. A signal that has no meaning for a
document (a mean of nothing) is 0.

Words: by default each character of a script written without spaces is a word of its own and everything else is split as
a tokenizer for languages with spaces would (`taojin.quality.words`); with `--words jieba` Chinese documents are
segmented. *Words and marks* counts punctuation too, as the published rules do where they divide by the number of words;
a *word* has at least one character that is not punctuation.
"""

from typing import NamedTuple


class Signal(NamedTuple):
    name: str
    meaning: str


CHARACTER_SIGNALS = (
    Signal("chars", "code points"),
    Signal("han_share", "Chinese characters of any plane, 々 and 〇 included"),
    Signal("kana_share", "hiragana and katakana, half-width forms included"),
    Signal("hangul_share", "Korean syllables and jamo"),
    Signal("latin_share", "Latin letters"),
    Signal("digit_share", "decimal digits of any script (Unicode Nd)"),
    Signal("punctuation_share", "punctuation (Unicode P)"),
    Signal("symbol_share", "symbols (Unicode S)"),
    Signal("whitespace_share", "white space, line ends included"),
    Signal("uppercase_share", "upper-case letters"),
    Signal("alnum_share", "letters and numbers (Unicode L and N)"),
    Signal("special_share", "punctuation, symbols, decimal digits and white space"),
    Signal("digit_share_of_words", "decimal digits, of the characters that are neither punctuation nor white space"),
    Signal("url_share", "characters of http://, https:// and www. addresses, up to the first outside RFC 3986"),
    Signal("bracket_share", "round, square and curly brackets, full-width forms included"),
    Signal("lenticular_share", "【 and 】"),
    Signal("curly_brackets", "number of { and }"),
    Signal("hash_signs", "number of #"),
    Signal("ellipses", "number of ... and …"),
    Signal("unique_char_share", "distinct code points, of all that are not white space"),
    Signal("traditional_share", "characters that only Traditional Chinese uses, of all Chinese characters"),
    Signal(
        "simplified_share", "characters that only Simplified Chinese uses (and Japanese, some), of all Chinese ones"
    ),
    Signal("replacement_share", "U+FFFD"),
    Signal("mojibake_share", "characters of sequences that only a wrong decoding makes (Ã©, â€™, 锟斤拷, 烫烫烫, ï»¿)"),
    Signal("zero_width_share", "zero-width and other format characters (Unicode Cf), joiners inside emoji left out"),
    Signal("control_share", "control characters but tab, line feed and carriage return"),
    Signal("private_use_share", "private-use code points"),
)
LINE_SIGNALS = (
    Signal("lines", "lines with anything but white space, cut at line feeds"),
    Signal("newlines", "line feeds"),
    Signal("mean_line_length", "characters of a non-blank line, its line feed not counted"),
    Signal("longest_line", "characters of the longest line"),
    Signal("paragraphs", "paragraphs: what two or more line feeds separate, in the stripped text"),
    Signal("long_paragraphs", "lines of 200 characters or more, which mC4 calls paragraphs"),
    Signal("sentences", "sentences, Chinese ends included; a line break ends one too"),
    Signal("mean_sentence_length", "characters of a sentence, white space around it not counted"),
    Signal(
        "terminal_line_share",
        "non-blank lines whose last character ends sentences in some script; no quotes, no … (FineWeb)",
    ),
    Signal("ellipsis_line_share", "lines that end in ... or …, of all lines (str.splitlines)"),
    Signal("bullet_line_share", "lines that begin with a bullet (•, -, ●, ·, ※ …), of all lines (str.splitlines)"),
    Signal("readmore_line_share", "non-blank lines that end in read more, 展开, 更多, 。。。 and the like"),
    Signal("short_line_share", "non-blank lines of at most 30 characters"),
    Signal("dup_line_share", "lines that repeat an earlier one, of all lines (Gopher)"),
    Signal("dup_line_char_share", "characters in lines that repeat an earlier one (Gopher)"),
    Signal("dup_text_line_char_share", "the same of non-blank lines, of the characters but line feeds (FineWeb)"),
    Signal("dup_paragraph_share", "paragraphs that repeat an earlier one, of all paragraphs (Gopher)"),
    Signal("dup_paragraph_char_share", "characters in paragraphs that repeat an earlier one (Gopher)"),
    Signal("dup_sentence_share", "sentences that repeat an earlier one, of all sentences"),
    Signal("dup_sentence_char_share", "characters in sentences that repeat an earlier one"),
    Signal("lorem_ipsum", "times that 'lorem ipsum' occurs, in any case"),
    Signal("javascript_lines", "lines that contain 'javascript', in any case (str.splitlines)"),
    Signal("policy_lines", "lines with a phrase of terms of use or cookie notices (str.splitlines)"),
    Signal("c4_sentences", "sentences of the lines that C4's rules keep; 0 if such a line has { or lorem ipsum"),
    Signal("c4_sentences_any_end", "the same without its rule on final punctuation"),
)
WORD_SIGNALS = (
    Signal("symbols", "characters of scripts without spaces, and runs of other letters and numbers"),
    Signal("words", "words: all but what is punctuation alone, as datatrove lists punctuation"),
    Signal("words_and_marks", "words and punctuation marks; a row of dots is one mark"),
    Signal("mean_word_length", "characters of a word"),
    Signal("longest_word", "characters of the longest word"),
    Signal("alpha_word_share", "words with at least one letter, of words and marks"),
    Signal("hash_per_word", "# by words and marks"),
    Signal("ellipsis_per_word", "ellipses by words and marks"),
    Signal("newlines_per_word", "line feeds by words and marks"),
)
NGRAMS_TOP = (2, 3, 4)
NGRAMS_DUPLICATE = (5, 6, 7, 8, 9, 10)
STOP_WORD_LISTS = ("en", "zh", "yue", "ja", "ko")
REPETITION_SIGNALS = (
    *(
        Signal(f"top_{n}gram_share", f"characters in the most frequent sequence of {n} words and marks (Gopher)")
        for n in NGRAMS_TOP
    ),
    *(
        Signal(f"dup_{n}gram_share", f"characters in sequences of {n} words and marks that occurred before (Gopher)")
        for n in NGRAMS_DUPLICATE
    ),
    Signal(
        "char_10gram_repetition",
        "frequency of the most repeated 10-character sequences, of all (data-juicer); above 2,048 of a sample of them",
    ),
    Signal(
        "char_13gram_repetition",
        "13-character sequences that occur more than once, of all (EvalWeb); above 2,048 of a sample of them",
    ),
    Signal("word_10gram_repetition", "sequences of 10 words and marks that occur more than once, of all (data-juicer)"),
    Signal("unique_word_share", "distinct words, of all words"),
    Signal("unigram_entropy", "entropy of the word frequencies, in nats"),
    *(
        Signal(f"stop_words_{name}", f"distinct stop words of the list {name}, marks in it included")
        for name in STOP_WORD_LISTS
    ),
    *(
        Signal(f"stop_word_share_{name}", f"words of the list {name}, of all words, marks left out")
        for name in STOP_WORD_LISTS
    ),
)
HEURISTIC_SIGNALS = (*CHARACTER_SIGNALS, *LINE_SIGNALS, *WORD_SIGNALS, *REPETITION_SIGNALS)
# Row of each signal in the matrix that kernels fill.
INDEX = {signal.name: number for number, signal in enumerate(HEURISTIC_SIGNALS)}

"""What can be said of a document before its content is judged; values from EMPTY on are removed, with that reason."""

# SKETCHED, FOLDED and BLANK are set by the sketch kernel: enough symbols for a sketch; too few, compared as a whole
# after folding; nothing left after folding, compared by its bytes only.
OK = SKETCHED = 0
FOLDED = 1
BLANK = 2
EMPTY = 3
NULL = 4
INVALID_UTF8 = 5
INVALID_RECORD = 6
TOO_LARGE = 7
UNREADABLE = 8

STATUS_REASONS = {
    EMPTY: "empty_text",
    NULL: "null_text",
    INVALID_UTF8: "invalid_utf8",
    INVALID_RECORD: "invalid_record",
    TOO_LARGE: "too_large",
    UNREADABLE: "unreadable",
}

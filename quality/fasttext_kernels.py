"""The kernels of `taojin.quality.fasttext_model`: text in an Arrow buffer → rows of a fastText model → probabilities.

The arithmetic is fastText's, in the order of the text. As in its own `predict`, a word `</s>` ends the text, a word
that begins with `__label__` is no text, and the end counts as one more word. Its probabilities carry 1e-5 that it adds
before each logarithm; these are without.

Cost: 15–25 ns per character with n-grams of 2 to 4 characters: three look-ups each in a bitmap that fits the
second-level cache. Linear in the text whatever it is.

Suffixes: _D documents, _V vocabulary entries (words, then labels), _L labels, _H the hidden vector.
"""

import numpy as np
from numpy.typing import NDArray

from taojin.core.jit import inlined, kernel

END_OF_SENTENCE = b"</s>"
LABEL_PREFIX = b"__label__"
HIERARCHICAL, NEGATIVE_SAMPLING, SOFTMAX, ONE_VERSUS_ALL = 1, 2, 3, 4
# Row numbers collected before they are summed; more only leaves the first-level cache.
ROWS_AT_ONCE = 2048

# Where the int64 array `settings` holds what. END_ROW: the row of </s>, -1 where the vocabulary lacks it.
MIN_N, MAX_N, WORD_NGRAMS, BUCKETS, NUM_WORDS, END_ROW, LOSS = range(7)

_U64 = np.uint64
_0 = np.uint64(0)
_1 = np.uint64(1)
_FNV_SEED = np.uint64(2166136261)  # FNV-1a, 32 bits: of 64-bit products only the low half is ever used
_FNV_PRIME = np.uint64(16777619)
_LOW32 = np.uint64(0xFFFFFFFF)
_WORD_PRIME = np.uint64(116049371)
_BEGIN_OF_WORD = np.uint8(ord("<"))
_END_OF_WORD = np.uint8(ord(">"))
_END = np.frombuffer(END_OF_SENTENCE, np.uint8)
_PREFIX = np.frombuffer(LABEL_PREFIX, np.uint8)


@inlined
def _hash_byte(h: np.uint64, byte: np.uint8) -> np.uint64:
    """One step of FNV-1a as fastText takes it: bytes are signed."""
    value = _U64(byte)
    return (h ^ (value | ((_0 - (value >> _U64(7))) << _U64(8)))) * _FNV_PRIME


@inlined
def _is_space(byte: np.uint8) -> bool:
    """What fastText cuts at: space, \\t \\n \\v \\f \\r and NUL."""
    return bool(byte == 32 or (9 <= byte <= 13) or byte == 0)


@kernel
def index_words(
    file: NDArray[np.uint8],
    begin: int,
    num_words: int,
    starts_V: NDArray[np.int64],
    lengths_V: NDArray[np.int64],
    counts_V: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> int:
    """Read the vocabulary at file[begin:] (bytes, NUL, int64 count, int8 kind each) and hash it into `slots`, all -1.

    Returns the offset behind it, or -1 where the file ends too early or words and labels do not come in that order.
    """
    i = _U64(begin)
    stop = _U64(file.size)
    mask = _U64(slots.size - 1)
    for v in range(starts_V.size):
        start = i
        h = _FNV_SEED
        while i < stop and file[i] != 0:
            h = _hash_byte(h, file[i])
            i += _1
        if i + _U64(10) > stop:
            return -1
        starts_V[v] = np.int64(start)
        lengths_V[v] = np.int64(i - start)
        count = _0
        for k in range(8):
            count |= _U64(file[i + _1 + _U64(k)]) << _U64(8 * k)
        counts_V[v] = np.int64(count)
        if file[i + _U64(9)] != (0 if v < num_words else 1):
            return -1
        i += _U64(10)
        slot = (h & _LOW32) & mask
        while slots[slot] >= 0:
            slot = (slot + _1) & mask
        slots[slot] = v
    return int(np.int64(i))


@kernel
def _find_word(
    data: NDArray[np.uint8],
    start: np.uint64,
    length: np.uint64,
    h: np.uint64,
    file: NDArray[np.uint8],
    starts_V: NDArray[np.int64],
    lengths_V: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> int:
    """The vocabulary entry with these bytes, or -1."""
    mask = _U64(slots.size - 1)
    slot = h & mask
    while slots[slot] >= 0:
        v = slots[slot]
        if _U64(lengths_V[v]) == length:
            begin = _U64(starts_V[v])
            k = _0
            while k < length and file[begin + k] == data[start + k]:
                k += _1
            if k == length:
                return int(v)
        slot = (slot + _1) & mask
    return -1


@kernel
def _begins_with(data: NDArray[np.uint8], start: np.uint64, length: np.uint64, prefix: NDArray[np.uint8]) -> bool:
    size = _U64(prefix.size)
    if length < size:
        return False
    k = _0
    while k < size and data[start + k] == prefix[k]:
        k += _1
    return bool(k == size)


@inlined
def _kept(kept: NDArray[np.uint64], bucket: np.uint64) -> np.uint64:
    """1 if the model has a row for this bucket, else 0."""
    if kept.size == 0:
        return _1
    return (kept[bucket >> _U64(6)] >> (bucket & _U64(63))) & _1


@inlined
def _popcount(x: np.uint64) -> np.uint64:
    x -= (x >> _1) & _U64(0x5555555555555555)
    x = (x & _U64(0x3333333333333333)) + ((x >> _U64(2)) & _U64(0x3333333333333333))
    x = (x + (x >> _U64(4))) & _U64(0x0F0F0F0F0F0F0F0F)
    return (x * _U64(0x0101010101010101)) >> _U64(56)


@kernel
def _add_rows(
    input: NDArray[np.float32],
    rows: NDArray[np.int64],
    count: np.uint64,
    num_words: int,
    kept: NDArray[np.uint64],
    ranks: NDArray[np.uint32],
    hidden_H: NDArray[np.float32],
) -> None:
    """hidden_H += the rows of words (below num_words) and of buckets (from there on)."""
    r = _0
    width = _U64(hidden_H.size)
    while r < count:
        row = _U64(rows[r])
        if kept.size > 0 and rows[r] >= num_words:
            bucket = row - _U64(num_words)
            at = bucket >> _U64(6)
            below = kept[at] & ((_1 << (bucket & _U64(63))) - _1)
            row = _U64(num_words) + _U64(ranks[at]) + _popcount(below)
        k = _0
        while k < width:
            hidden_H[k] += input[row, k]
            k += _1
        r += _1


@kernel
def mean_of_rows(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    settings: NDArray[np.int64],
    file: NDArray[np.uint8],
    starts_V: NDArray[np.int64],
    lengths_V: NDArray[np.int64],
    slots: NDArray[np.int32],
    kept: NDArray[np.uint64],
    ranks: NDArray[np.uint32],
    input: NDArray[np.float32],
    rows: NDArray[np.int64],
    word_hashes: NDArray[np.uint64],
    grams: NDArray[np.uint64],
    hidden_H: NDArray[np.float32],
) -> int:
    """hidden_H = the mean of the rows of the text data[start:end]; returns how many rows there were (0: all zero).

    rows: scratch, more than maxn + word_ngrams long; word_hashes, grams: scratch of word_ngrams and
    maxn entries or more.
    """
    min_n = _U64(settings[MIN_N])
    max_n = _U64(settings[MAX_N])
    word_ngrams = _U64(settings[WORD_NGRAMS])
    buckets = _U64(settings[BUCKETS])
    # h % buckets without a division: the quotient h * inverse >> shift is exact, or 1 too small in one case of buckets.
    shift = _U64(32)
    while (buckets >> (shift - _U64(31))) > _0:
        shift += _1
    inverse = (_1 << shift) // max(buckets, _1)
    num_words = settings[NUM_WORDS]
    room = _U64(rows.size) - max_n - word_ngrams - _U64(2)
    for k in range(hidden_H.size):
        hidden_H[k] = np.float32(0)
    i = _U64(start)
    stop = _U64(end)
    count = _0
    total = _0
    num_before = _0  # words seen that can begin a sequence, at most word_ngrams - 1
    at_end = False
    while not at_end:
        while i < stop and _is_space(data[i]):
            i += _1
        if count >= room:
            _add_rows(input, rows, count, num_words, kept, ranks, hidden_H)
            total += count
            count = _0
        begin = i
        h = _FNV_SEED
        while i < stop and not _is_space(data[i]):
            h = _hash_byte(h, data[i])
            i += _1
        length = i - begin
        h &= _LOW32
        if length == _0 or (length == _U64(_END.size) and _begins_with(data, begin, length, _END)):
            at_end = True
            word = int(settings[END_ROW])
            h = _FNV_SEED
            for byte in _END:
                h = _hash_byte(h, byte)
            h &= _LOW32
        else:
            word = _find_word(data, begin, length, h, file, starts_V, lengths_V, slots)
            if word >= num_words or (word < 0 and _begins_with(data, begin, length, _PREFIX)):
                continue
        if word >= 0:
            rows[count] = word
            count += _1
        if word_ngrams > _1:
            signed = h | ((_0 - (h >> _U64(31))) << _U64(32))
            n = num_before
            while n > _0:
                # word_hashes[n - 1] is of the n words before this one.
                longer = word_hashes[n - _1] * _WORD_PRIME + signed
                if n + _1 < word_ngrams:
                    word_hashes[n] = longer
                slot = longer % buckets
                rows[count] = num_words + np.int64(slot)
                count += _kept(kept, slot)
                n -= _1
            word_hashes[0] = signed
            num_before = min(num_before + _1, word_ngrams - _1)
        if at_end or max_n == _0:
            continue
        # The word is taken as <word>. grams[g] is the hash of the last g + 1 characters; grams[0] of the new one alone.
        grams[0] = _hash_byte(_FNV_SEED, _BEGIN_OF_WORD)
        num_grams = _1
        j = begin
        while j <= i:
            if count >= room:
                _add_rows(input, rows, count, num_words, kept, ranks, hidden_H)
                total += count
                count = _0
            at = j
            j += _1
            byte = data[at] if at < i else _END_OF_WORD
            while j < i and (data[j] & np.uint8(0xC0)) == np.uint8(0x80):
                j += _1
            num_grams = min(num_grams + _1, max_n)
            g = num_grams
            while g > _0:
                g -= _1
                h = _hash_byte(grams[g - _1] if g > _0 else _FNV_SEED, byte)
                more = at + _1
                while more < j:
                    h = _hash_byte(h, data[more])
                    more += _1
                grams[g] = h
                # Neither < nor > is an n-gram by itself.
                if g + _1 >= min_n and (g > _0 or at < i):
                    low = h & _LOW32
                    slot = low - ((low * inverse) >> shift) * buckets
                    if slot >= buckets:
                        slot -= buckets
                    rows[count] = num_words + np.int64(slot)
                    count += _kept(kept, slot)
    _add_rows(input, rows, count, num_words, kept, ranks, hidden_H)
    total += count
    if total > _0:
        scale = np.float32(1) / np.float32(total)
        for k in range(hidden_H.size):
            hidden_H[k] *= scale
    return int(np.int64(total))


@inlined
def _dot(output: NDArray[np.float32], row: int, hidden_H: NDArray[np.float32]) -> float:
    total = np.float32(0)
    for k in range(hidden_H.size):
        total += output[row, k] * hidden_H[k]
    return float(total)


@inlined
def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + np.exp(-x))


@kernel
def tree_probabilities(
    hidden_H: NDArray[np.float32],
    output: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    wanted: int,
    nodes: NDArray[np.int64],
    chances: NDArray[np.float64],
) -> tuple[int, float]:
    """(label, probability) of the likeliest leaf of the Huffman tree, or of the leaf `wanted` if that is not negative.

    nodes, chances: scratch of left.size entries. The likelier child is visited first and a node less likely than the
    best leaf so far is not entered: about the depth of the tree is, where the text is clear.
    """
    num_labels = output.shape[0]
    best = -1
    best_chance = -1.0
    nodes[0] = left.size - 1
    chances[0] = 1.0
    depth = 1
    while depth > 0:
        depth -= 1
        node = nodes[depth]
        chance = chances[depth]
        if wanted < 0 and chance <= best_chance:
            continue
        if left[node] < 0:
            if wanted < 0 or node == wanted:
                best = node
                best_chance = chance
            continue
        to_right = _sigmoid(_dot(output, node - num_labels, hidden_H))
        likelier_right = to_right > 0.5
        nodes[depth] = left[node] if likelier_right else right[node]
        chances[depth] = chance * ((1.0 - to_right) if likelier_right else to_right)
        nodes[depth + 1] = right[node] if likelier_right else left[node]
        chances[depth + 1] = chance * (to_right if likelier_right else (1.0 - to_right))
        depth += 2
    return int(best), float(best_chance)


@kernel
def flat_probabilities(
    hidden_H: NDArray[np.float32],
    output: NDArray[np.float32],
    softmax: bool,
    wanted: int,
    scores_L: NDArray[np.float64],
) -> tuple[int, float]:
    """The same of a softmax or of independent sigmoids. scores_L: scratch of one entry per label."""
    best = 0
    for label in range(output.shape[0]):
        scores_L[label] = _dot(output, label, hidden_H)
        if scores_L[label] > scores_L[best]:
            best = label
    label = best if wanted < 0 else wanted
    if not softmax:
        return int(label), float(_sigmoid(scores_L[label]))
    total = 0.0
    for k in range(output.shape[0]):
        total += np.exp(scores_L[k] - scores_L[best])
    return int(label), float(np.exp(scores_L[label] - scores_L[best]) / total)


@kernel
def classify(
    data: NDArray[np.uint8],
    starts_D: NDArray[np.int64],
    ends_D: NDArray[np.int64],
    wanted: int,
    settings: NDArray[np.int64],
    file: NDArray[np.uint8],
    starts_V: NDArray[np.int64],
    lengths_V: NDArray[np.int64],
    slots: NDArray[np.int32],
    kept: NDArray[np.uint64],
    ranks: NDArray[np.uint32],
    input: NDArray[np.float32],
    output: NDArray[np.float32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    labels_D: NDArray[np.int32],
    probabilities_D: NDArray[np.float32],
) -> None:
    """labels_D, probabilities_D: the likeliest label of each text data[starts_D:ends_D], or label `wanted` if that is
    not negative. A text with nothing that the model knows has label -1 and NaN; so has one whose end lies before its
    start."""
    rows = np.empty(ROWS_AT_ONCE + settings[MAX_N] + settings[WORD_NGRAMS], np.int64)
    word_hashes = np.empty(settings[WORD_NGRAMS] + 1, np.uint64)
    grams = np.empty(settings[MAX_N] + 1, np.uint64)
    hidden_H = np.empty(input.shape[1], np.float32)
    nodes = np.empty(left.size + 2, np.int64)
    scores = np.empty(max(left.size + 2, output.shape[0]), np.float64)
    for d in range(labels_D.size):
        labels_D[d] = -1
        probabilities_D[d] = np.nan
        if ends_D[d] < starts_D[d]:
            continue
        found = mean_of_rows(
            data, starts_D[d], ends_D[d], settings, file, starts_V, lengths_V, slots, kept, ranks,
            input, rows, word_hashes, grams, hidden_H,
        )  # fmt: skip
        if found == 0:
            continue
        if settings[LOSS] == HIERARCHICAL:
            label, chance = tree_probabilities(hidden_H, output, left, right, wanted, nodes, scores)
        else:
            label, chance = flat_probabilities(hidden_H, output, settings[LOSS] == SOFTMAX, wanted, scores)
        labels_D[d] = label
        probabilities_D[d] = chance

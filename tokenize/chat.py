"""Fine-tuning records through a chat template: token ids, and which of them the model is to learn.

A record is `{"messages": [{"role", "content", …}, …], "tools": […]}` or `{"prompt", "response", "system"}`; tools and
system may be missing, and a null is a missing value. The template is Jinja with what transformers' apply_chat_template
offers it (5.24), except what changes from run to run: `strftime_now` exists only where a date is given (Llama 3.2's
template then writes the date it was made with), `random` and `lipsum` never. Nothing is added to what the template
writes: no BOS, no EOD.

Learnt, by `train_on`: "all": everything · "assistant": every answer · "last": the last answer. Where the template
marks answers with {% generation %}, they are exactly those spans. Else an answer is what its turn adds behind the
prompt that asks for it, the end of the turn included, and that is proven: prompt and turn must stand, unchanged, at
the head of the whole conversation. A template that rewrites history (drops earlier reasoning) fails the proof, and the
record is a problem, not a guess. A token that reaches into an answer belongs to it, as in transformers.

`plain`: a control token that a record spells out is ordinary text, so that no content opens or closes a turn. Control
tokens are the special tokens, and those other added tokens that the template writes around a turn: DeepSeek's
<｜User｜> is not special. What it writes around answers only, an answer may spell out. Such a record is rendered with
stand-ins and encoded by a second tokenizer in which the control tokens have names that no record can hold. That no
other control token came about is counted in the tokens of every record. What a template assembles from pieces of a
record (<| + role + |>) is the template's own.

Cost: one encoding by `tokenizers`, one thread, at 0.8 of its bare speed, and two renderings per answer, each as long as
the conversation so far: four seconds for 400 answers, where a template that marks them needs a fifth of one. The second
tokenizer is loaded, in the first one's time, with the first record that needs it.
"""

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from ahocorasick_rs import AhoCorasick, MatchKind
from numpy.typing import NDArray
from tokenizers import Tokenizer

from taojin.core.errors import ConfigError, InputError
from taojin.tokenize.tokenizer_file import TokenizerFile

Messages: TypeAlias = list[dict[str, Any]]
Spans: TypeAlias = list[tuple[int, int]]  # of characters: first, behind the last

TRAIN_ON = ("assistant", "last", "all")
# Noncharacters: Unicode keeps them for a program's own use, so a record that holds one is spoilt.
_OPEN, _CLOSE, _ANSWER, _ANSWER_END = _GUARDS = ("\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3")
_MARKS = re.compile(f"{_OPEN}([0-9]+){_CLOSE}|({_ANSWER})|{_ANSWER_END}")
# Names under which data sets keep a message's reasoning. Templates read the first, gpt-oss' the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_ANSWER_KEYS = ("content", *_REASONING, "tool_calls", "function_call")
# What expressions of a template raise on data that do not fit them, besides Jinja's own errors.
_EXPRESSION_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_LONGEST_PROBLEM = 300
# Two renderings per answer grow with the square of the answers: half a minute for these.
_MOST_ANSWERS = 1000


class Masked(NamedTuple):
    """Records as tokens; one that is a problem has none.

    ids: uint32[tokens] · offsets: int64[records + 1], from 0 · mask: uint8[tokens], 1 = learn ·
    spelled: int32[records], control tokens that the record itself spells out
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    mask: NDArray[np.uint8]
    spelled: NDArray[np.int32]


class _Rendered(NamedTuple):
    text: str
    answers: Spans  # what {% generation %} marks


class _ProblemError(Exception):
    """Nothing can be learnt from this record; the message is its line in the report."""


class ChatEncoder:
    """Encodes chat records. Tokenizers are kept per process; compiling the template takes milliseconds.

    template: Jinja source, else the one that came with the tokenizer. date: YYYY-MM-DD, what strftime_now tells.
    Raises ConfigError for an unknown train_on or a bad date, InputError for a tokenizer that is no tokenizer.json, for
    a template that is missing, malformed, or asks for today's date where none is given.
    """

    def __init__(
        self,
        file: TokenizerFile,
        template: str = "",
        train_on: str = "assistant",
        *,
        plain: bool = True,
        date: str = "",
    ) -> None:
        if train_on not in TRAIN_ON:
            raise ConfigError(f"--train-on: expected one of {', '.join(TRAIN_ON)}, found {train_on!r}")
        if file.kind != "json":
            raise InputError(
                f"{file.path}: chat records need a tokenizer.json, whose tokens know their place in the text, found "
                f"a {file.kind} file; name the model's tokenizer.json"
            )
        if not (template or file.chat_template):
            raise InputError(
                f"{file.path}: no chat template beside it (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); name a file that holds one"
            )
        self._file = file
        self._train_on = train_on
        self._plain = plain
        self._template = _Template(template or file.chat_template, _special_variables(file), date)
        self._tokenizer = _load(file.data, file.path)
        added = self._tokenizer.get_added_tokens_decoder()
        user, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
        opening, turns = self._template.probe([user]), self._template.probe([user, answer, user])
        special = [token.content for token in added.values() if token.special]
        others = [token.content for token in added.values() if not (token.special or token.content.isspace())]
        around_users = [word for word in others if word in opening]
        around_answers = [word for word in others if word in turns and word not in opening]
        # The same words first in both, so that a number names the same token.
        self._controls = (*special, *around_users, *around_answers)
        self._words = {True: _Words((*special, *around_users)), False: _Words(self._controls)}
        # No vocabulary has this character: what stands for unknown ones may stand anywhere.
        unknown = self._tokenizer.encode("\U0010fffd", add_special_tokens=False).ids
        numbers = {token.content: number for number, token in added.items()}
        controls = [numbers[word] for word in self._controls if numbers[word] not in unknown]
        # One more, for all the numbers behind.
        self._is_control = np.zeros(max(controls, default=0) + 2, np.bool_)
        self._is_control[controls] = True

    def encode(self, records: Sequence[Mapping[str, Any]]) -> tuple[Masked, list[str | None]]:
        """Tokens and mask of each record; and per record None or, in one line, why it has no tokens."""
        ids, masks = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint8)]
        offsets, spelled = np.zeros(len(records) + 1, np.int64), np.zeros(len(records), np.int32)
        problems: list[str | None] = [None] * len(records)
        for i, record in enumerate(records):
            offsets[i + 1] = offsets[i]
            try:
                record_ids, mask, spelled[i] = self._encode(record)
            except _ProblemError as problem:
                problems[i] = _one_line(str(problem))
                continue
            except RecursionError:
                problems[i] = "it is nested too deeply"
                continue
            ids.append(record_ids)
            masks.append(mask)
            offsets[i + 1] += len(record_ids)
        return Masked(np.concatenate(ids), offsets, np.concatenate(masks), spelled), problems

    def _encode(self, record: Mapping[str, Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint8], int]:
        messages, tools = _conversation(record)
        messages, tools, spelled = self._guard(messages, tools)
        renamed = self._plain and spelled > 0
        tokenizer = _load_renamed(self._file.data, self._file.path, self._controls) if renamed else self._tokenizer
        if tokenizer is None:
            raise _ProblemError("it spells out a control token, which this tokenizer cannot read as ordinary text")
        text, answers = self._find_answers(messages, tools, renamed)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids = np.array(encoding.ids, np.uint32)
        if self._plain and self._count_controls(ids) > self._count_own(text, renamed):
            raise _ProblemError("it spells out a control token in a form that only this tokenizer's normalizer knows")
        mask = _mask_of(np.array(encoding.offsets, np.int64).reshape(-1, 2), answers, len(text))
        if not mask.any():
            raise _ProblemError("there is no token to learn: the template writes nothing of the answer")
        return ids, mask, spelled

    def _count_controls(self, ids: NDArray[np.uint32]) -> int:
        return int(np.count_nonzero(self._is_control[np.minimum(ids, len(self._is_control) - 1)]))

    def _count_own(self, text: str, renamed: bool) -> int:
        """The template's own control tokens in a text as `_resolve` writes it."""
        return len(_MARKS.findall(text)) if renamed else len(self._words[False].find(text))

    def _guard(self, messages: Messages, tools: Any) -> tuple[Messages, Any, int]:
        """The record with a stand-in for each control token that it spells out (`plain`), and how many those are."""
        spelled = 0

        def guard(value: Any, role: str) -> Any:
            words = self._words[role == "assistant"]

            def change(text: str) -> str:
                nonlocal spelled
                found = words.find(text)
                spelled += len(found)
                return _replaced(text, found) if self._plain else text

            if self._plain and isinstance(value, dict) and isinstance(value.get("content"), list):
                parts = [part.get("text") for part in value["content"] if isinstance(part, dict)]
                texts = [text for text in parts if isinstance(text, str)]
                if len(words.find("".join(texts))) > sum(len(words.find(text)) for text in texts):
                    raise _ProblemError("the parts of its content, joined, spell out a control token")
            value = _walk(value, change)
            if isinstance(value, dict) and isinstance(value.get("content"), list):
                value["content"] = _Parts(value["content"])
            return value

        return [guard(message, message["role"]) for message in messages], guard(tools, "tools"), spelled

    def _find_answers(self, messages: Messages, tools: Any, renamed: bool) -> _Rendered:
        """The whole conversation, and what is to be learnt of it."""

        def render(messages: Messages, *, prompt: bool = False) -> _Rendered:
            return self._resolve(self._template.render(messages, tools, prompt), renamed)

        def proven(head: str, text: str, which: str) -> int:
            if not text.startswith(head):
                raise _ProblemError(
                    f"{which}: the template writes it differently at the end of a conversation and inside it; train "
                    "on the last answer, or with a template that marks answers with {% generation %}"
                )
            return len(head)

        whole = render(messages)
        if self._train_on == "all":
            return _Rendered(whole.text, [(0, len(whole.text))])
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            raise _ProblemError("there is no answer: expected a message whose role is assistant")
        if self._train_on == "last":
            turns = turns[-1:]
        if self._template.marks_answers:
            first = 0
            if self._train_on == "last" and turns[0] > 0:
                first = proven(render(messages[: turns[0]]).text, whole.text, f"before messages[{turns[0]}]")
            return _Rendered(whole.text, [span for span in whole.answers if span[0] >= first])
        if len(turns) > _MOST_ANSWERS:
            raise _ProblemError(
                f"it has {len(turns)} answers; cut it, or train with a template that marks answers with "
                f"{{% generation %}}: without, they are told apart up to {_MOST_ANSWERS}"
            )
        answers = []
        for i in turns:
            head = whole if i == len(messages) - 1 else render(messages[: i + 1])
            start = proven(render(messages[:i], prompt=True).text, head.text, f"the prompt of messages[{i}]")
            answers.append((start, proven(head.text, whole.text, f"messages[{i}]")))
        return _Rendered(whole.text, answers)

    def _resolve(self, rendered: str, renamed: bool) -> _Rendered:
        """Stand-ins become what the record says, other control tokens their new names, and the marks spans."""
        answers: Spans = []
        pieces: list[str] = []
        length = position = 0
        opened: list[int] = []

        def add(piece: str) -> None:
            nonlocal length
            pieces.append(piece)
            length += len(piece)

        def add_own(piece: str) -> None:
            add(_replaced(piece, self._words[False].find(piece)) if renamed else piece)

        for mark in _MARKS.finditer(rendered):
            add_own(rendered[position : mark.start()])
            position = mark.end()
            if mark[1]:
                add(self._controls[int(mark[1])])
            elif mark[2]:
                opened.append(length)
            elif opened:
                answers.append((opened.pop(), length))
        add_own(rendered[position:])
        return _Rendered("".join(pieces), answers)


class _Parts(list[Any]):
    """A message's content as a list of parts. A template that knows text only would write it as Python does."""

    def __str__(self) -> str:
        raise TypeError("the content of a message is a list of parts, where this template expects text")


class _Words:
    """Finds words in texts, the longest of those that begin at the leftmost place, as tokenizers finds added tokens."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._num_words = len(words)
        self._automaton = AhoCorasick([*words, *_GUARDS], matchkind=MatchKind.LeftmostLongest)

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """(number of the word, first character, behind the last), in order. Raises _ProblemError for a spoilt text."""
        try:
            found: list[tuple[int, int, int]] = self._automaton.find_matches_as_indexes(text)
        except UnicodeEncodeError:
            raise _ProblemError("its text is not valid Unicode: it holds half of a surrogate pair") from None
        for word, start, _ in found:
            if word >= self._num_words:
                raise _ProblemError(f"its text holds the noncharacter U+{ord(text[start]):04X}, which is no text")
        return found


class _Template:
    """A compiled chat template. marks_answers: whether it has {% generation %} blocks."""

    def __init__(self, source: str, variables: dict[str, str], date: str) -> None:
        try:
            import jinja2.ext
            import jinja2.nodes
            import jinja2.sandbox
        except ImportError:
            raise InputError("chat templates need Jinja: pip install jinja2") from None

        class Generation(jinja2.ext.Extension):
            """{% generation %}…{% endgeneration %}: what an assistant says, between two marks."""

            tags = {"generation"}  # noqa: RUF012 – Jinja's own declaration
            num_blocks = 0

            def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
                self.num_blocks += 1
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                marks = [jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)]) for mark in (_ANSWER, _ANSWER_END)]
                # Variables set inside are unknown behind it, as in transformers.
                return [node.set_lineno(line) for node in (marks[0], jinja2.nodes.Scope(body), marks[1])]

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = self._refuse
        del environment.filters["random"], environment.globals["lipsum"]
        if date:
            environment.globals["strftime_now"] = _parse_date(date).strftime
        self._template_error = jinja2.TemplateError
        self._variables = variables
        if found := next((mark for mark in _GUARDS if mark in source), None):
            raise InputError(f"chat template: it holds the noncharacter U+{ord(found):04X}; remove it")
        try:
            self._compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"chat template, line {error.lineno}: {_one_line(str(error.message))}") from None
        except (SyntaxError, RecursionError) as error:  # Python's, of what Jinja made of it: a break outside of loops
            raise InputError(f"chat template: {_one_line(str(error))}") from None
        extension = environment.extensions[Generation.identifier]
        self.marks_answers = isinstance(extension, Generation) and extension.num_blocks > 0

    def _refuse(self, message: object) -> None:
        raise self._template_error(str(message))

    def render(self, messages: Messages, tools: Any, prompt: bool) -> str:
        """What the template writes; prompt: with the opening of an answer behind it. Raises _ProblemError."""
        try:
            return self._compiled.render(
                self._variables, messages=messages, tools=tools, documents=None, add_generation_prompt=prompt
            )
        except (self._template_error, *_EXPRESSION_ERRORS) as error:
            if "'strftime_now' is undefined" in str(error):
                raise InputError(
                    "chat template: it asks for today's date (strftime_now), and the same records must give the same "
                    "tokens tomorrow; name a date (--chat-date YYYY-MM-DD)"
                ) from None
            raise _ProblemError(f"the template refuses it: {error}") from None

    def probe(self, messages: Messages) -> str:
        """What the template writes for a made-up conversation, "" where it refuses that."""
        try:
            return self.render(messages, None, False)
        except _ProblemError:
            return ""


def _conversation(record: Mapping[str, Any]) -> tuple[Messages, Any]:
    """A record's messages and tools, checked. Raises _ProblemError."""
    if not isinstance(record, Mapping):
        raise _ProblemError(f"expected an object, found a {type(record).__name__}")
    messages, tools = record.get("messages"), record.get("tools")
    if messages is None:
        prompt, response, system = (record.get(key) for key in ("prompt", "response", "system"))
        if not (isinstance(prompt, str) and isinstance(response, str)):
            keys = ", ".join(sorted(str(key) for key, value in record.items() if value is not None))
            raise _ProblemError(f"expected messages, or prompt and response as text, found {keys or 'nothing'}")
        if not isinstance(system, str | None):
            raise _ProblemError(f"system: expected text, found {type(system).__name__}")
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
    if not isinstance(messages, list) or not messages:
        raise _ProblemError(f"messages: expected a list of at least one, found {messages!r}")
    # Templates loop over tools: text in place of a list would be written one character a line.
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise _ProblemError(f"tools: expected a list of objects, found {type(tools).__name__}")
    return [_message(message, i) for i, message in enumerate(messages)], tools


def _message(message: Any, i: int) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _ProblemError(f"messages[{i}]: expected an object with a role")
    # A table has a null for every key that another record has; templates ask whether a key is there.
    known: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
    reasoning = next((known[key] for key in _REASONING if key in known), None)
    if reasoning is not None:
        known = {"thinking": reasoning, **known, "reasoning_content": reasoning}
    if known["role"] == "assistant" and not any(_says(known.get(key)) for key in _ANSWER_KEYS):
        raise _ProblemError(f"messages[{i}]: the answer is empty")
    return known


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of JSON data with every text, keys included, changed. Raises _ProblemError for what is no JSON."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(str(key)): _walk(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(inner, change) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise _ProblemError(f"expected text, numbers, lists and objects, found a {type(value).__name__}")


def _says(value: Any) -> bool:
    """Whether any text in it, but for the type of a part, is more than white space."""
    if isinstance(value, str):
        return not (value == "" or value.isspace())
    if isinstance(value, dict):
        return any(_says(inner) for key, inner in value.items() if key != "type")
    return isinstance(value, list | tuple) and any(map(_says, value))


def _mask_of(offsets: NDArray[np.int64], answers: Spans, num_characters: int) -> NDArray[np.uint8]:
    """uint8[T]: 1 where a token has a character in an answer. offsets: int64[T, 2], characters of each token."""
    borders = np.zeros(num_characters + 2, np.int64)
    for start, end in answers:
        borders[start] += 1
        borders[end] -= 1
    learnt_before = np.zeros(num_characters + 2, np.int64)
    np.cumsum(np.cumsum(borders[:-1]) > 0, out=learnt_before[1:])
    # A token without characters is judged by the one it stands before.
    starts, ends = offsets[:, 0], np.maximum(offsets[:, 1], offsets[:, 0] + 1)
    return (learnt_before[ends] > learnt_before[starts]).astype(np.uint8)


def _special_variables(file: TokenizerFile) -> dict[str, str]:
    """bos_token, eos_token and their like, as templates know them: text, or an object that holds it as content."""
    try:
        config = json.loads(file.config) if file.config else {}
    except ValueError as error:
        raise InputError(f"{file.path}: tokenizer_config.json beside it is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{file.path}: tokenizer_config.json beside it is not a JSON object")
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


@lru_cache(maxsize=2)
def _load(data: bytes, path: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise InputError(f"{path}: expected a tokenizer.json: {_one_line(str(error))}; name another file") from None
    # A post-processor would only take white space out of the offsets; the other two cut or fill records.
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@lru_cache(maxsize=2)
def _load_renamed(data: bytes, path: str, controls: tuple[str, ...]) -> Tokenizer | None:
    """The tokenizer with control token number i named _stand_in(i): its own text is ordinary text.

    None where that cannot be had: a merge builds the token, or it would get another id.
    """
    names = {word: _stand_in(i) for i, word in enumerate(controls)}
    spec = json.loads(data)
    for token in spec["added_tokens"]:
        if token["content"] in names:
            # Found before the text is normalised, which may remove noncharacters.
            token.update(content=names[token["content"]], normalized=False)
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(word, word): number for word, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(word, word), score] for word, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    spec.update(post_processor=None, truncation=None, padding=None)
    try:
        renamed = Tokenizer.from_buffer(json.dumps(spec).encode())
    except ValueError:
        return None
    original = _load(data, path)
    same = all(renamed.token_to_id(name) == original.token_to_id(word) for word, name in names.items())
    return renamed if same else None


def _stand_in(number: int) -> str:
    return f"{_OPEN}{number}{_CLOSE}"


def _replaced(text: str, found: list[tuple[int, int, int]]) -> str:
    pieces, position = [], 0
    for word, start, end in found:
        pieces += [text[position:start], _stand_in(word)]
        position = end
    return "".join([*pieces, text[position:]])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # A stand-in must stay one; a record holds no such characters of its own.
    return text.replace("\\ufdd0", _OPEN).replace("\\ufdd1", _CLOSE) if ensure_ascii else text


def _parse_date(date: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(date)
    except ValueError:
        raise ConfigError(f"--chat-date: expected YYYY-MM-DD, found {date!r}") from None


def _one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_PROBLEM else line[: _LONGEST_PROBLEM - 1] + "…"

"""An answer in a player's own words, read back as one of the legal actions."""

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from rlnb.source_code.extraction import split_thoughts

# Only the end of a long text is read for an answer without a box, and only the last boxes: the last answer
# counts, and the time to find it must not grow with what a hostile text repeats.
READ_CHARACTERS = 4000
READ_BOXES = 20
BOX_CHARACTERS = 400
MOST_NAMED = 12  # legal actions in a reason

_BOX = re.compile(r"boxed\s{0,4}(?:([{\[(])|(?=[0-9]))")
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_TAGS = r"(?:final_?)?(?:answer|action|move|choice)>"
_TAG = re.compile(rf"<{_TAGS}([^<]*)|\A([^<]*)</{_TAGS}", re.IGNORECASE)  # what opened it may be cut off
_BRACKET = re.compile(r"\[([^\[\]\n]{1,80})\]")
_COMMAND = re.compile(r"\\(?!boxed)[A-Za-z]+\s{0,4}|\\[^A-Za-z]|</\w{1,20}>")
_WRAPPED = re.compile(r"\\[A-Za-z]+\{(.*)\}", re.DOTALL)  # \text{...}
_BRACKETS = str.maketrans("【】〔〕「」", "[][][]")
_END = re.compile(r"<[|｜][^<>|｜]{1,32}[|｜]>|</s>|<eos>|<end_of_turn>")
_BULLET = re.compile(r"^[-*•]\s+")
_TOKEN = re.compile(r"\n|->|[0-9]+(?:\.[0-9]+)+|[^\W_]+|[^\w\s]")  # 4.5 is one token and no id
_WHOLE_DECIMAL = re.compile(r"(?<![\w.])([0-9]+)\.0+(?!\w|\.[0-9])")
_GLUED = re.compile(r"\b(answer|action|id|option|choice|move|number)(?=[0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[0-9]+")
_PLAIN_NUMBER = re.compile(r"(?:[+-] )?[0-9]+(?= |$)")
# A word for choosing, then words that only join: "my answer is", "I choose action", "I'll go with the id".
_JOINING = r"(?: (?:is|:|=|would be|will be|be|to|the|a|my|action|id|number|option|→))*"
_CHOICE = re.compile(rf"\b(?:answer|choice|choose|chose|chosen|pick|select|go with|decide on){_JOINING} ")
_MENTION = re.compile(rf"\b(?:play|action|move|id|option){_JOINING} ")
_LABEL = re.compile(r"^(?:(?:my|the|final|answer|action|id|option|choice|move|number|is|:|=) )+")
_LEADING = re.compile(
    r"[*`$\"'\[(<]*([+-]?[0-9]+)[*`$\"'\])>]*\s*(?:->|→|=|:|,|-|–|—|\(|because\b|since\b|as\b)"
)
_PLACEHOLDERS = ("", "id", "the id", "action id", "action", "number", "…")
_DROPPED = frozenset("\\.,;!?*$'\"`{}[]()<>#_“”‘’\n")
# Where a clause ends; words in it before an action, or behind it (faults), that make it no choice.
_BREAKS = frozenset([*".,;:!?—–\n", "so", "but", "hence", "therefore", "thus"])
_CONDITIONS = frozenset(("if", "when", "whether", "unless"))
_NEGATIONS = frozenset(("not", "t", "dont", "never", "cannot", "avoid", "refuse"))  # t: of don't
_ASIDES = frozenset(
    ("no", "than", "instead", "without", "against", "neither", "nor", "because", "since", "as", "while",
     "he", "she", "they", "opponent", "then", "after")
)  # fmt: skip
_LINKING = ("is", "would", "will", "be", "too", "very", "a", "just", "looks", "seems", "only")
_FAULTS = frozenset(("loses", "lose", "losing", "bad", "worse", "worst", "weak", "risky", "wrong", "illegal"))
_CUES = frozenset(
    ("answer", "choice", "choose", "chose", "chosen", "pick", "select", "go", "decide", "play", "action",
     "move", "id", "option")
)  # fmt: skip
_ALTERNATIVES = ("or", "/", "|")


@dataclass(frozen=True)
class ParsedAnswer:
    """action: a legal id, or None with the problem and a reason that a player understands ("" when fine)."""

    action: int | None
    problem: Literal["no_action", "illegal"] | None
    reason: str


def shortened(actions: Collection[int]) -> str:
    """Return '0, 1, 2', or the first ones and how many more there are."""
    named = ", ".join(map(str, list(actions)[:MOST_NAMED]))
    return named if len(actions) <= MOST_NAMED else f"{named} and {len(actions) - MOST_NAMED} more"


def parse_answer(text: str, words: Mapping[int, str]) -> ParsedAnswer:
    r"""Return the action that a text names. words: {legal id: words}, no two with the same words.

    0. Thoughts are not read, and an open thought is no answer. Nor is a list: most of the legal actions in
       the same form, none of them marked.
    1. A box or a tag beats all other text, and the last one that holds an answer counts: `\boxed{4}`,
       `\boxed[bet]`, `<answer>4</answer>`, `\boxed{\text{Action 4.}}`. One that is empty or repeats the
       prompt's "id" is passed over. One that holds anything else is a failed answer, whatever surrounds it.
    2. Else an action that is denied, compared, doubted, given as a reason or left to the opponent does not
       count ("check; do not bet"), nor do several in one clause.
    3. Then the whole text or its last line as an id or words: "4", "**4.**", "[4]", "4 -> bet", "d3". A part
       that only one action's words have means that action, in a box too.
    4. Else the last id or words behind a word for choosing: "Answer: 4", "I choose action 4, as 5 loses".
       Else the last in square brackets.
    5. Else the last words of an action, in the last line ("I will bet now"); then those of more than one word
       in all the text; then the last id that is called one ("so action 4 it is", "I play 4").
    Any other number in running text ("there are 3 rows") does not count. The problem of an id that is not
    legal is "illegal", that of a text without an answer "no_action". Case, spaces, LaTeX, brackets, full
    stops, and full width do not matter, unless two actions differ by them alone. Without a box, the last
    READ_CHARACTERS are read.
    """
    parts, is_thinking = split_thoughts(text.replace("<answer>", "<action>"))
    if is_thinking:
        parts, is_thinking = split_thoughts(text)  # an answer's tag ends a thought
    reader = _Reader(words)
    if is_thinking:
        text = ""
    elif parts[-1].strip():
        text = parts[-1]
    text = text[:-READ_CHARACTERS] + reader.without_lists(_normalise(text[-READ_CHARACTERS:]))
    for content in _marked(text):
        answer_id = reader.read(content)
        if answer_id is not None:
            return reader.judge(answer_id)
        if plain(content) not in _PLACEHOLDERS:
            held = " ".join(content.split())
            held = held if len(held) <= 60 else held[:60] + "..."
            reason = f"The box holds {held!r}, which names no legal action; {reader.legal()}"
            return ParsedAnswer(None, "no_action", reason)
    answer_id = reader.search(text[-READ_CHARACTERS:])
    if answer_id is None:
        return ParsedAnswer(None, "no_action", f"The answer names no action; {reader.legal()}")
    return reader.judge(answer_id)


def plain(text: str) -> str:
    """Return words and signs in lower case, one space apart, without LaTeX, mark-up and full stops."""
    return " ".join(token.word for token in _tokens(_normalise(text)))


def _normalise(text: str) -> str:
    """Return a text without tokens that end it, and with "４", "4.0" and "Action4" as "4" and "Action 4"."""
    text = unicodedata.normalize("NFKC", _END.sub(" ", text)).translate(_BRACKETS)
    return _GLUED.sub(r"\1 ", _WHOLE_DECIMAL.sub(r"\1", text))


def _marked(text: str) -> list[str]:
    """Return the contents of the last boxes and tags, the last first; an unclosed box ends with its line."""
    marks = sorted([*_BOX.finditer(text), *_TAG.finditer(text)], key=lambda match: match.start())
    return [_inside(text, match)[:BOX_CHARACTERS] for match in reversed(marks[-READ_BOXES:])]


def _inside(text: str, mark: re.Match[str]) -> str:
    if mark.re is _TAG:
        return mark[1] or mark[2] or ""
    text, opening = text[mark.end() : mark.end() + BOX_CHARACTERS], mark[1]
    if not opening:
        return text.split()[0]
    depth = 1
    for bracket in re.finditer(re.escape(opening) + "|" + re.escape(_CLOSING[opening]), text):
        depth += 1 if bracket[0] == opening else -1
        if depth == 0:
            return text[: bracket.start()]
    return text.partition("\n")[0]


class _Token(NamedTuple):
    """A word or sign in lower case, its place in the text, and the numbers of its clause and line."""

    word: str
    start: int
    end: int
    clause: int
    line: int


def _tokens(text: str) -> list[_Token]:
    tokens, clause, line = [], 0, 0
    for match in _TOKEN.finditer(_COMMAND.sub(lambda command: " " * len(command[0]), text)):
        word = match[0].casefold().replace("->", "→")
        clause += word in _BREAKS
        line += word == "\n"
        if word not in _DROPPED:
            tokens.append(_Token(word, match.start(), match.end(), clause, line))
    return tokens


class _Named(NamedTuple):
    """An action that a text names at tokens[first:last]. kind: "id", "words", or "both" (4 -> bet)."""

    action: int
    kind: str
    first: int
    last: int


def _cut(text: str, tokens: list[_Token], named: Iterable[_Named]) -> str:
    """Return the text without these actions."""
    for each in sorted(named, key=lambda each: each.first, reverse=True):
        text = text[: tokens[each.first].start] + text[tokens[each.last - 1].end :]
    return text


def _clause_before(tokens: list[_Token], named: _Named) -> list[str]:
    """Return the words of an action's clause before it."""
    clause = tokens[named.first].clause
    before = itertools.takewhile(lambda token: token.clause == clause, reversed(tokens[: named.first]))
    return [token.word for token in before][::-1]


def _is_aside(tokens: list[_Token], named: _Named) -> bool:
    """Return whether an action is denied, compared, doubted, a reason, or the opponent's."""
    before = _clause_before(tokens, named)
    behind = (token.word for token in tokens[named.last :] if token.word not in _LINKING)
    return bool(
        _CONDITIONS.intersection(before)
        or _since(before, "i") & _NEGATIONS
        or _since(before, _CUES | {"i"}) & _ASIDES
        or next(behind, "") in _FAULTS
    )


def _since(words: list[str], marks: Collection[str]) -> set[str]:
    """Return the words behind the last of these marks, or all."""
    last = max((index for index, word in enumerate(words) if word in marks), default=-1)
    return set(words[last + 1 :])


class _Reader:
    """A reader that looks for the legal actions of a state, and returns an id, legal or not, or None."""

    def __init__(self, words: Mapping[int, str]) -> None:
        self.words = words

    @cached_property
    def plain(self) -> dict[str, int]:
        """Return {plain words: action}, without words that two actions share."""
        keys = {action: plain(name) for action, name in self.words.items()}
        counts = Counter(keys.values())
        return {key: action for action, key in keys.items() if key and counts[key] == 1}

    @cached_property
    def by_first_word(self) -> dict[str, list[tuple[list[str], int]]]:
        """Return {first word: the words that begin with it and their actions, the longest first}."""
        names: defaultdict[str, list[tuple[list[str], int]]] = defaultdict(list)
        for name, action in sorted(self.plain.items(), key=lambda item: -len(item[0].split())):
            names[name.split()[0]].append((name.split(), action))
        return names

    def legal(self) -> str:
        return f"legal: {shortened(self.words)}."

    def judge(self, answer_id: int | str) -> ParsedAnswer:
        if isinstance(answer_id, int) and answer_id in self.words:
            return ParsedAnswer(answer_id, None, "")
        return ParsedAnswer(None, "illegal", f"Action {answer_id} is not legal here; {self.legal()}")

    def named(self, tokens: list[_Token]) -> list[_Named]:
        """Return the legal actions that a text names, in its order."""
        mentions: list[_Named] = []
        words, index = [token.word for token in tokens], 0
        while index < len(words):
            named = self._named_at(tokens, index)
            index = named.last if named else index + 1
            before = mentions[-1] if mentions else None
            if named and before and (before.kind, named.kind, before.action) == ("id", "words", named.action):
                joining = words[before.last : named.first]
                if all(word in ("→", ":", "-", "=") for word in joining):
                    named = named._replace(kind="both", first=mentions.pop().first)
            mentions += [named] if named else []
        return mentions

    def _named_at(self, tokens: list[_Token], index: int) -> _Named | None:
        word, line = tokens[index].word, tokens[index].line
        for name, action in self.by_first_word.get(word, ()):
            if [token.word for token in tokens[index : index + len(name)] if token.line == line] == name:
                return _Named(action, "words", index, index + len(name))
        if word.isdecimal() and len(word) <= 9 and int(word) in self.words:
            return _Named(int(word), "id", index, index + 1)
        return None

    def without_lists(self, text: str) -> str:
        """Return a text without its lists of most of the legal actions.

        In a list one action follows the other with the same words in between, or each begins a line that
        goes on in the same way.
        """
        tokens = _tokens(text)
        lists: list[_Named] = []
        run: list[_Named] = []
        form: list[str] = []
        for each in [*(each for each in self.named(tokens) if not _is_aside(tokens, each)), None]:
            between = [token.word for token in tokens[run[-1].last : each.first]] if run and each else []
            joining = [word for word in between if word not in ("and", *_ALTERNATIVES)]
            form = joining if len(run) == 1 else form
            if run and each and each.kind == run[0].kind and joining == form:
                run.append(each)
            else:
                lists += self._list_in(run, form, tokens, text) if run else []
                run = [each] if each else []
        lines = _cut(text, tokens, lists).split("\n")
        places: defaultdict[tuple[str, ...], dict[int, int]] = defaultdict(dict)
        for row, line in enumerate(lines):
            tokens = _tokens(line)
            words = ["#" if token.word.isdecimal() else token.word for token in tokens]
            named = self.named(tokens)
            for each in [each for each in named if each.kind != "id"][:1] or named[:1]:
                place = (*words[: each.first], each.kind, *words[each.last : each.last + 1])
                places[place][row] = each.action
        listed = {row for rows in places.values() if self._are_most(rows.values()) for row in rows}
        return "\n".join(line for row, line in enumerate(lines) if row not in listed)

    def _list_in(self, run: list[_Named], form: list[str], tokens: list[_Token], text: str) -> list[_Named]:
        """Return the actions of a run, which have the words `form` between them, if it is a list."""
        words, first, last = [token.word for token in tokens], run[0], run[-1]
        between = text[tokens[first.last - 1].end : tokens[last.first].start]
        if len(run) < 2 or (len(run) == 2 and not form and re.search(r"[.!?]\s", between)):
            return []
        offers = not form and any(word in _ALTERNATIVES for word in words[first.last : last.first])
        follower = tokens[last.last] if last.last < len(tokens) else None
        if not form and not offers and follower and follower.clause == tokens[last.last - 1].clause:
            run = run[:-1]  # "I bet, pass loses": the last begins another clause
        is_same = len(run) > 2 or words[max(0, first.first - len(form)) : first.first] == form
        is_all = (
            not form and len({each.action for each in run}) > 1 and last.last - first.first == len(tokens)
        )
        return run if offers or is_all or (is_same and self._are_most(each.action for each in run)) else []

    def _are_most(self, actions: Iterable[int]) -> bool:
        num_named = len(set(actions))
        return num_named > 1 and 2 * num_named > len(self.words)

    def without_asides(self, text: str) -> str:
        """Return a text without the actions that it names only to deny, to compare or to explain."""
        tokens = _tokens(text)
        clauses: defaultdict[int, list[_Named]] = defaultdict(list)
        asides: list[_Named] = []
        for each in self.named(tokens):
            before = _clause_before(tokens, each)
            if _is_aside(tokens, each):
                asides.append(each)
            elif each.kind == "words" and not _CUES.intersection(before):
                clauses[tokens[each.first].clause].append(each)
        for rivals in clauses.values():
            asides += rivals if len({each.action for each in rivals}) > 1 else []
        return _cut(text, tokens, asides)

    def read(self, content: str) -> int | str | None:
        """Read a box: only the answer, or a sentence with it."""
        content = self.without_asides(self.without_lists(_normalise(content)))
        answer = self.alone(content)
        return self.in_sentence(plain(content), short=True) if answer is None else answer

    def search(self, text: str) -> int | str | None:
        """Read free text without a box."""
        text = self.without_asides(text)
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return None
        last = plain(lines[-1])
        for answer in (self.alone(text), self.alone(lines[-1]), self.chosen(plain(text), _CHOICE)):
            if answer is not None:
                return answer
        bracketed = [self.alone(content) for content in _BRACKET.findall(text)[-READ_BOXES:]]
        for answer in reversed(bracketed):
            if answer is not None:
                return answer
        answer = self.in_sentence(last, short=True)
        return self.in_sentence(plain(text), short=False) if answer is None else answer

    def alone(self, text: str) -> int | str | None:
        """Read a text that is an id, the words of an action, or a part that only one action's words have."""
        text = _BULLET.sub("", text.strip())
        if len(text) > BOX_CHARACTERS:
            return None
        if _NUMBER.fullmatch(text):
            return _as_id(text)
        wrapped = _WRAPPED.fullmatch(text)
        exact = {name: action for action, name in self.words.items()}
        for name in (text, wrapped[1] if wrapped else ""):
            if name in exact:
                return exact[name]
        sentence = plain(text)
        if sentence in self.plain:
            return self.plain[sentence]
        sentence = _LABEL.sub("", sentence)
        if _PLAIN_NUMBER.fullmatch(sentence):
            return _as_id(sentence)
        leading = _LEADING.match(text)
        items = {each.action for each in self.named(_tokens(text)) if each.kind == "both"}
        if leading and len(items) < 2:
            return _as_id(leading[1])
        holders = [action for name, action in self.plain.items() if f" {sentence} " in f" {name} "]
        return holders[0] if sentence and len(holders) == 1 else None

    def in_sentence(self, sentence: str, *, short: bool) -> int | str | None:
        answer = self.chosen(sentence, _CHOICE)
        if answer is None:
            answer = self.last_words(sentence, short=short)
        return self.chosen(sentence, _MENTION) if answer is None else answer

    def chosen(self, sentence: str, cue: re.Pattern[str]) -> int | str | None:
        """Return the id or the words right after the last cue that is followed by one."""
        for match in reversed(list(cue.finditer(sentence))):
            rest = f"{sentence[match.end() : match.end() + BOX_CHARACTERS]} "
            names = [name for name in self.plain if rest.startswith(f"{name} ") and not name.isdecimal()]
            if names:
                return self.plain[max(names, key=len)]
            numeral = _PLAIN_NUMBER.match(sentence, match.end())
            if numeral:
                return _as_id(numeral[0])
        return None

    def last_words(self, sentence: str, *, short: bool) -> int | None:
        """Return the action whose words end last, the longer words where two end together."""
        padded, best = f" {sentence} ", (-1, 0)
        answer = None
        for name, action in self.plain.items():
            at = padded.rfind(f" {name} ") if short or " " in name else -1
            if at >= 0 and (at + len(name), len(name)) > best:
                best, answer = (at + len(name), len(name)), action
        return answer


def _as_id(numeral: str) -> int | str:
    """Return the number, or its first digits where it is too long to be an id."""
    digits = numeral.replace(" ", "")
    return int(digits) if len(digits) <= 9 else digits[:9] + "..."

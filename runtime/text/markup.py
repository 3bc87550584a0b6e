"""Leaves out markup of text that may still arrive: elements, code blocks, marks at the start of lines.

Finds the pauses that markup asks for.
"""

import logging
import re
from collections.abc import Iterable, Iterator

import regex

PARAGRAPH = "\n\n"
PAUSE = "\0"  # begins a paragraph that is a pause of so many milliseconds; no text has this character
MAX_PAUSE_MS = 3_600_000
MAX_MARK_CHARACTERS = 1000  # longer ones stay in the text
ROLE_CHARACTERS = 16  # behind the mark of a chat, in which the name of a role may be
STRENGTHS_MS = {"none": 0, "x-weak": 250, "weak": 500, "medium": 750, "strong": 1000, "x-strong": 1250}
COMMENT, CHANNEL = "<!-- -->", "<|channel|>"
THOUGHTS = "think|thinking|thoughts?|reasoning|reflection|scratchpad"
# elements whose content is not for listeners
HIDDEN = f"{THOUGHTS}|tool_call|tool_response|script|style|svg|metadata|desc|rp|rt"
BLOCKS = "article|blockquote|br|div|h[1-6]|hr|li|[ou]l|p|pre|section|table|tr"  # are paragraphs
# other elements in HTML, SSML and chats; any other name, as in `List<int>` and `<branch>`, is a word
KNOWN = (
    r"abbr|[abiqsu]|big|body|center|cite|code|del|details|em|font|footer|head|header|html|img|ins|kbd|main"
    r"|mark|nav|ruby|small|span|strong|su[bp]|summary|t[dh]|tbody|thead|wbr|speak|emphasis|prosody|phoneme"
    r"|say-as|voice|answer|[be]os|pad|unk|[\w-]+:[\w-]+"
)
VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'<>=]+)"""
ATTRIBUTE = rf"\s+[\w:.-]+\s*=\s*{VALUE}|\s+(?:async|controls|defer|disabled|hidden|open)\b"
SOUND = "laugh|chuckl|giggl|sigh|gasp|cough|sneez|sniff|sob|groan|moan|yawn|snort|whisper|inhal|exhal"
NUMBER = "(?P<time>[0-9]{1,20}(?:[.,][0-9]{0,20})?|[.,][0-9]{1,20})"
TIME = rf"{NUMBER}[\s-]?(?P<unit>ms(?:ecs?)?|milliseconds?|m(?:in(?:ute)?s?)?|)"
SECONDS, SILENCE = rf"{TIME}(?:s|secs?|seconds?)?", "(?:pause|silence|break)"
ROLE = r"\s{0,2}(?:assistant|user|system|tool|model|developer|analysis|commentary|final)\b"
START, START_HIDDEN = regex.compile(rf"[<\[&-]|`{{1,{MAX_MARK_CHARACTERS}}}"), regex.compile(r"[<\[&-]")
CODE = r"(?P<code>(?P<ticks>`{1,2})(?!`)[^`\n]+(?P=ticks))"
DECLARATION = "(?P<comment><!--|-->)|<[!?][a-z][^<>]*>"
TAG = (
    rf"<(?P<end>/)?(?:(?P<hidden>{HIDDEN})|(?P<pause>{SILENCE})|(?P<block>{BLOCKS})|{KNOWN})"
    rf"(?:{ATTRIBUTE})*\s*(?P<empty>/)?>"
)
OTHER_TAG = rf"</[a-z][\w-]*\s*>|<[a-z][\w-]*(?:\s*/|(?:{ATTRIBUTE})+\s*/?)>"
OTHER_THOUGHTS = rf"&lt;(?P<end>/)?(?P<hidden>{THOUGHTS})&gt;|\[(?P<end>/)?(?P<hidden>(?-i:THINK))\]"
THOUGHT_CHANNEL = r"(?P<chat><\|channel\|>)\s{0,2}(?P<hidden>analysis|commentary)\b"
CHAT = (
    r"(?P<chat><[|\uff5c][^<>|\uff5c\n]{1,60}[|\uff5c]>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>)"
    rf"(?:(?<!message\|>){ROLE})?"
)
PAUSES = rf"(?:(?:short|long) )?{SILENCE}[ :=]{{0,3}}(?:{SECONDS})?|{SECONDS} ?{SILENCE}"
SOUNDS = rf"(?:\w{{1,20}}ly )?(?:(?:{SOUND})(?:e?s|e|b?ing|ter)?|clears throat|applause)(?: \w{{1,20}}ly)?"
BRACKET = rf"(?P<bracket>\[(?:(?P<pause>{PAUSES})|{SOUNDS})\])(?!\()"
MARK = regex.compile(
    "|".join((CODE, DECLARATION, TAG, OTHER_TAG, OTHER_THOUGHTS, THOUGHT_CHANNEL, CHAT, BRACKET)),
    regex.IGNORECASE,
)
# the start of a whole text up to the end of thoughts that have no start
LONE_END = rf"\A(?:[^`<\[]|`[^`]*`|[<\[](?!/?(?:{THOUGHTS})\b))*+[<\[]/(?:{THOUGHTS})\s*[>\]]"
LONE_THOUGHTS = regex.compile(LONE_END, regex.IGNORECASE)
DURATION = regex.compile(rf"(?:\b(?:time|duration)\s*=[\s\"']*|^\[[^0-9.,]*){TIME}", regex.IGNORECASE)
STRENGTH = regex.compile(r"\bstrength\s*=\s*[\"']?([\w-]+)", regex.IGNORECASE)
# behind these no blank stands for markup
WIDE = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303f\uff00-\uff60]"
HANGUL = regex.compile(r"\p{Hangul}")
IS_WIDE = regex.compile(f"{WIDE}[\u2019\u201d]?$")
SENTENCE_END = regex.compile(r"[.!?\u2026।\u3002\uff01\uff1f][\"'\u201d\u2019)\]]*\s*$")
HEAD_CHARACTERS = 24  # the start of a line, in which marks are searched
ITEM = re.compile(r"[ \t]*([0-9]{1,3})[.)][ \t]")
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
MARKS = re.compile(r"[ \t]*(?:(?:(?:#{1,6}|[-*+•])(?:[ \t]+|$)|>[ \t]?|\|))+")
LINE_PARTS = re.compile(r"[^\n]*\n|[^\n]+")
log = logging.getLogger(__name__)


class Markup:
    """Takes the pieces of a text and returns them without markup.

    The division into pieces does not change the result. Inline code stays as it is. Text behind the start of
    what may be markup is held back, up to `MAX_MARK_CHARACTERS` characters.
    """

    def __init__(self) -> None:
        self._held, self._before = "", ""  # before: the end of the text that was returned
        self._hidden, self._depth = "", 0  # the element that is left out, and how many of its name are open

    @property
    def is_open(self) -> bool:
        """Whether the text is inside of an element that is left out, or of what may be markup."""
        return bool(self._hidden or self._held)

    def take(self, piece: str, is_last: bool = False) -> str:
        """The text that is known to be spoken. Warns of an element without end."""
        text, position, kept = self._held + piece, 0, list[str]()
        self._held = ""
        while start := (START_HIDDEN if self._hidden else START).search(text, position):
            kept.append(self._kept(text[position : start.start()]))
            mark, needed = self._mark(text, start)
            if needed > len(text) and not is_last:
                self._held, position = text[start.start() :], len(text)
                break
            kept.append(self._replaced(mark) if mark else self._kept(start[0]))
            position = mark.end() if mark else start.end()
        kept.append(self._kept(text[position:]))
        if is_last and self._hidden:
            log.warning("%s without end: the text behind it was not spoken; end the element", self._hidden)
        return "".join(kept)

    def _mark(self, text: str, start: regex.Match[str]) -> tuple[regex.Match[str] | None, int]:
        """The markup at `start`, and how many characters of `text` decide that."""
        first = start.start()
        last = first + MAX_MARK_CHARACTERS
        mark = MARK.match(text, first, last, partial=True)
        if mark and not mark.partial:
            return mark, mark.end() + (ROLE_CHARACTERS if mark["chat"] else 1)
        return None, min(last, 1 + (len(text) if mark else start.end()))

    def _kept(self, text: str) -> str:
        if self._hidden:
            return ""
        self._before = (self._before + text[-8:])[-8:]
        return text

    def _replaced(self, mark: regex.Match[str]) -> str:
        name = _hidden_name(mark)
        is_end = bool(mark["end"] or (mark["chat"] and not mark["hidden"])) or mark[0] == "-->"
        if self._hidden:
            if name == self._hidden and not mark["empty"] and (is_end or name not in (COMMENT, CHANNEL)):
                self._depth += -1 if is_end else 1
                self._hidden = name if self._depth else ""
            return ""
        blank = "" if IS_WIDE.search(self._before) else " "
        is_index = mark["bracket"] and not mark["time"] and blank and self._before[-1:].isalnum()
        if mark["code"] or mark[0] == "-->" or is_index:
            return self._kept(mark[0])
        if name and not is_end and not mark["empty"]:
            is_between = name != COMMENT and SENTENCE_END.search(self._before)
            kept = self._kept(PARAGRAPH if is_between else blank)
            self._hidden, self._depth = name, 1
            return kept
        if mark["pause"] and not is_end and (milliseconds := _milliseconds(mark[0])):
            return self._kept(f"{PARAGRAPH}{PAUSE}{milliseconds}{PARAGRAPH}")
        return self._kept(PARAGRAPH if mark["chat"] or mark["block"] else blank)


def _hidden_name(mark: regex.Match[str]) -> str:
    """The element that begins or ends at `mark` and is left out, or nothing."""
    if mark["chat"]:
        return "" if mark[0] in ("<|message|>", "<|constrain|>") else CHANNEL
    return COMMENT if mark["comment"] else f"<{mark['hidden'].lower()}>" if mark["hidden"] else ""


def _milliseconds(mark: str) -> int:
    """The pause that `<break time="1.5s"/>`, `<break strength="weak"/>` or `[pause 2]` asks for."""
    if found := DURATION.search(mark):
        unit = found["unit"].lower()
        factor = 1 if unit.startswith(("ms", "mil")) else 60_000 if unit else 1000
        return int(min(float(found["time"].replace(",", ".")) * factor, MAX_PAUSE_MS))
    strength = STRENGTH.search(mark)
    return STRENGTHS_MS.get(strength[1].lower() if strength else "", STRENGTHS_MS["medium"])


def plain_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Text without markup, code blocks and marks at the start of lines.

    `pieces` are the text in any division, which does not change the result. A heading, an item of a list, a
    quote and a row of a table become paragraphs of their own. A line starts to arrive when its first
    `HEAD_CHARACTERS` characters are known.
    """
    markup = Markup()
    lines = _Lines(markup)
    for piece in pieces:
        for part in LINE_PARTS.findall(piece.replace("\r", " ")):
            yield markup.take(lines.take(part))
    yield markup.take(lines.close(), is_last=True)


class _Lines:
    def __init__(self, markup: Markup) -> None:
        self._markup = markup  # has taken the lines so far
        self._head: str | None = ""  # None: the head of this line was handled, the rest follows
        self._item = 0  # number of the last item of a list
        self._fence, self._after = "", ""  # after: text behind the end of this line

    def take(self, part: str) -> str:
        """Takes a part of a line, with the line's end if it is the last part."""
        is_last = part.endswith("\n")
        if self._head is not None:
            self._head += part
            if len(self._head) < HEAD_CHARACTERS and not is_last:
                return ""
            head, self._head = self._head, None
            text = self._start(head)
        else:
            text = "" if self._fence else part
        if is_last:
            text, self._head, self._after = text + self._after, "", ""
        return text

    def close(self) -> str:
        """The text that has not been returned yet. Warns of a code block without end."""
        text = self._start(self._head) if self._head else ""
        if self._fence:
            log.warning("a code block without end was not spoken; end it with %s", self._fence[:3])
        return text + self._after

    def _start(self, head: str) -> str:
        if self._markup.is_open:
            return head
        found = FENCE.match(head)
        if self._fence:
            if found and found[1].startswith(self._fence) and head.strip() == found[1]:
                self._fence, self._after = "", PARAGRAPH
            return ""
        if found:
            self._fence = found[1]
            log.debug("clean-up: a code block is left out")
            return PARAGRAPH
        marks = MARKS.match(head[:HEAD_CHARACTERS])
        if item := ITEM.match(head):  # only behind the item before it: "42." may also end a sentence
            is_next, self._item = int(item[1]) == self._item + 1, int(item[1])
            if is_next:
                self._after = PARAGRAPH
                return PARAGRAPH + head
        if not marks:
            return head
        log.debug("clean-up: left out at the start of a line: %r", marks[0])
        self._after = PARAGRAPH
        return PARAGRAPH + head[marks.end() :]

"""Removes markup and the lines of Markdown from text that may still arrive: fences, headings, lists."""

import logging
import re
from collections.abc import Iterable, Iterator

from voxport.runtime.text.markup import PARAGRAPH, Markup

HEAD_CHARACTERS = 24  # the start of a line, in which marks are searched
ITEM = re.compile(r"[ \t]*([0-9]{1,3})[.)][ \t]")
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
MARKS = re.compile(r"[ \t]*(?:(?:(?:#{1,6}|[-*+•])(?:[ \t]+|$)|>[ \t]?|\|))+")
LINE_PARTS = re.compile(r"[^\n]*\n|[^\n]+")
log = logging.getLogger(__name__)


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

"""The clean-up of sentences, rule by rule and in nine languages, and the check of text."""

import logging
import re
import time
from contextlib import suppress

import ftfy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxport.bundle.errors import UsageError
from voxport.runtime.text import cleanup
from voxport.runtime.text.cleanup import (
    FINAL_MARKS,
    OTHER_MARKS,
    check_text,
    clean_sentence,
    is_blank,
    is_speakable,
)
from voxport.runtime.text.markup import plain_lines
from voxport.runtime.text.preparation import check_speakable, prepare, sentences


@given(text=st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1))
@example("hello [AUDIO] </s>")
@example("- **not** `cleaned` &amp; $5")
def test_a_valid_text_is_returned_unchanged(text: str) -> None:
    assert check_text(text) == text


@given(text=st.text(st.characters(min_codepoint=10, max_codepoint=127)))
@example("a <b> &lt; `c` *d* [e](f) ~~g~~ \\h ![i](j)\x1b[0m")
@example("2 <b>bold</b> words")
@example("a [link](target)")
def test_plain_text_is_the_same_without_the_packages(text: str) -> None:
    found = clean_sentence(text, "en")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "MARKUP", re.compile(""))
        patch.setattr(cleanup, "_repaired", lambda text, _: ftfy.fix_text(text))
        assert clean_sentence(text, "en") == found


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000", "\x07\x1b", "\u200b\ufeff \u200d", "\x85"])
def test_space_and_control_characters_are_blank(text: str) -> None:
    assert is_blank(text) and not is_speakable(text)


def test_nul_is_refused_with_its_position() -> None:
    with pytest.raises(UsageError, match="NUL character at index 2"):
        check_text("ab\0c")


@pytest.mark.parametrize("surrogate", ["\ud800", "\udcff"])
def test_a_lone_surrogate_is_refused_with_its_position(surrogate: str) -> None:
    with pytest.raises(UsageError, match=f"U\\+{ord(surrogate):04X} at index 1") as caught:
        check_text(f"a{surrogate}")
    str(caught.value).encode()  # the message itself can be printed


ENGLISH = {
    "plain": ("Hello there.", "Hello there."),
    "wrong encoding": ("schÃ¶n and cafÃ©.", "schön and café."),
    "ligature": ("The ﬁrst.", "The first."),
    "full width": ("Ｎｏ １２.", "No 12."),
    "combining accent": ("e\u0301te\u0301.", "été."),
    "html entities": ("salt &amp; pepper&#33;", "salt & pepper!"),
    "escaped tags": ("a &lt;b&gt;c&lt;/b&gt;.", "a c."),
    "line break tag": ("one<br>two<BR />three.", "one two three."),
    "html tags": ('a <b class="x">bold</b> word<!-- no -->.', "a bold word."),
    "comparison of letters": ("if x <y and z> w.", "if x <y and z> w."),
    "unknown tags": ('<x-y>Go</x-y> <my-tag a="1">on<x/>.', "<x-y>Go on."),
    "comparison": ("x < 5 and y > 3.", "x < 5 and y > 3."),
    "image": ("See ![a cat](cat.png).", "See a cat."),
    "image without a text": ("See ![](cat.png).", "See."),
    "link": ("Read [the paper](https://x.org/a_(b)).", "Read the paper."),
    "image in a link": ("[![a cat](c.png)](https://x.org) sits.", "a cat sits."),
    "bold": ("**Never** do __that__.", "Never do that."),
    "italics": ("*Never* do _that_.", "Never do that."),
    "struck out": ("Not ~~this~~ that.", "Not this that."),
    "bold over two sentences": ("**One. Two.**", "One. Two."),
    "inline code": ("Call `run` or ``go``.", "Call run or go."),
    "escaped mark": (r"2 \* 3.", "2 * 3."),
    "product": ("2 * 3 and snake_case.", "2 * 3 and snake_case."),
    "hash in a word": ("C# is #1.", "C# is #1."),
    "plus signs": ("C++ it is.", "C++ it is."),
    "table row": (" a | b |", "a, b."),
    "table rule": ("---|---|", ""),
    "address": ("Go to https://x.org/a?b=c, or www.x.org.", "Go to x dot org slash a, or x dot org."),
    "autolink": ("Go to <https://x.org/a>.", "Go to x dot org slash a."),
    "long path": ("https://x.org/get-it/now.html/8f3a9c.", "x dot org slash get it slash now dot html."),
    "port and user": ("http://me:pw@x.org:80/a.", "x dot org:80 slash a."),
    "mail": ("Mail <me@x.org> or you@y.co.uk.", "Mail me at x dot org or you at y dot co dot uk."),
    "bare domain": ("See example.com now.", "See example.com now."),
    "emoji": ("Well done 👍🏽!", "Well done!"),
    "emoji family": ("We 👩‍👩‍👧 are.", "We are."),
    "emoji in a row": ("🎉🎉🎉 Hi.", "Hi."),
    "flag": ("To 🇫🇷 we go.", "To we go."),
    "heart": ("I ❤️ it.", "I it."),
    "keycap": ("1️⃣ First.", "1 First."),
    "star": ("★ New ★ offer.", "New offer."),
    "arrow": ("a → b ⇒ c.", "a b c."),
    "check mark": ("✓ done.", "done."),
    "box": ("■ one □ two.", "one two."),
    "trade mark": ("Acme™ and © me.", "Acme and me."),
    "degrees": ("20°C and № 5.", "20°C and № 5."),
    "private use": ("a\ue000b.", "a b."),
    "only emoji": ("😀😀", ""),
    "only symbols": ("*** --- ===", ""),
    "only marks": ("?!", ""),
    "rule": ("one ----- two.", "one — two."),
    "rule of equals": ("one ===== two.", "one two."),
    "ornament": ("~*~*~ one ~*~*~", "one."),
    "spaced ornament": ("one * * * two.", "one two."),
    "single quotes": ("'Nothing remains in the mind.'", "Nothing remains in the mind."),
    "double quotes": ('She said "go" and left.', "She said go and left."),
    "curly quotes": ("“Go,” she said, ‘now’.", "Go, she said, now."),
    "quote with an apostrophe": ("'I don't know,' he said.", "I don't know, he said."),
    "open quote": ('"Go away.', "Go away."),
    "close quote": ('And left."', "And left."),
    "apostrophes": ("Don’t, dogs' and rock 'n' roll.", "Don't, dogs' and rock n roll."),
    "decades": ("the '80s and '90s.", "the '80s and '90s."),
    "inches": ('A 6" pipe.', 'A 6" pipe.'),
    "mark behind a quote": ("'Is it the mind?'", "Is it the mind?"),
    "mark in parentheses": ("(It is so.)", "It is so."),
    "invisible characters": ("in\u00advi\u200bsi\u2060ble\ufeff \u202eword.", "invisible word."),
    "line breaks": ("a\r\nb\rc\u2028d\u2029e.", "a b c d e."),
    "no-break spaces": ("a\u00a0b\u202fc\u2007d.", "a b c d."),
    "blanks": ("  a \t b c.  ", "a b c."),
    "hyphens": ("well\u2010kept non\u2011stop.", "well-kept non-stop."),
    "dots": ("wait..... what.", "wait… what."),
    "two dots": ("wait.. what.", "wait. what."),
    "repeated marks": ("no!!! what???", "no! what?"),
    "mixed marks": ("what?!?!", "what?"),
    "repeated commas": ("one,,, two;; three.", "one, two; three."),
    "dashes": ("a -- b---c.", "a — b — c."),
    "lone dash": ("a - b \u2013 c.", "a — b — c."),
    "minus": ("5 - 3 or a - €.", "5 - 3 or a - €."),
    "aside": ("It (the cat) sat.", "It — the cat — sat."),
    "number in parentheses": ("It (42) sat (1,000).", "It (42) sat (1,000)."),
    "call": ("run() and f(x).", "run and f(x)."),
    "dollars": ("It is $5, or $1.", "It is five dollars, or one dollar."),
    "cents": ("It is $3.50 or $0.99.", "It is three dollars, fifty cents or ninety-nine cents."),
    "American dollars": ("US$3 now.", "three dollars now."),
    "euros": ("1€ or 20€ or 2.50 €.", "one euro or twenty euros or two euros, fifty cents."),
    "rate": (
        "$1.99/month or $2 million / year or $3/4.",
        "one dollar, ninety-nine cents per month or 2 million dollars per year or three dollars/4.",
    ),
    "pounds": ("£2.01.", "two pounds sterling, one penny."),
    "magnitude": (
        "$1.5 million or $2M or $3bn.",
        "1.5 million dollars or 2 million dollars or 3 billion dollars.",
    ),
    "grouped dollars": ("$12,345.", "twelve thousand, three hundred and forty-five dollars."),
    "three decimals": ("$0.125 each.", "0.125 dollars each."),
    "range of amounts": ("$5-$10 each.", "five dollars-ten dollars each."),
    "negative amount": ("-$5 each.", "-$5 each."),
    "face of punctuation": (":-) Hi there ;) and :D.", "Hi there and."),
    "colon before a bracket": ("one: (two)", "one: — two."),
    "malformed amounts": ("$12,34 and $1.2.3.", "$12,34 and $1.2.3."),
    "amount too large": ("$1,000,000,000,000,000,000.", "$1,000,000,000,000,000,000."),
    "very many digits": (f"${'9' * 5000}.", f"${'9' * 5000}."),
    "unknown currency": ("¥500 it is.", "¥500 it is."),
    "big number": ("1,000,001 people.", "one million and one people."),
    "small number": ("999,999 people.", "999,999 people."),
    "ungrouped number": ("1234567 people.", "1234567 people."),
    "number with decimals": ("1,000,000.5 it is.", "1,000,000.5 it is."),
    "colon at the end": ("Things to buy:", "Things to buy:"),
    "comma at the end": ("Well,", "Well,"),
    "added mark": ("hello", "hello."),
    "symbols outside": ("50% & more.", "50% & more."),
    "right to left": ("שלום עולם", "שלום עולם."),
    "chinese": ("你好。", "你好。"),
    "markers of the tokenizer": ("hello [AUDIO] there.", "hello [AUDIO] there."),
}
OTHERS = [
    ("de", "„Komm!“, sagte er.", "Komm!, sagte er."),
    ("de", "»Ja«, sagte sie ‚leise‘.", "Ja, sagte sie leise."),
    ("de", "Es kostet 3,50 €.", "Es kostet drei Euro und fünfzig Cent."),
    (
        "de",
        "1.234.567 Menschen",
        "eine Million zweihundertvierunddreißigtausendfünfhundertsiebenundsechzig Menschen.",
    ),
    ("de", "2 Millionen €.", "2 Millionen Euro."),
    ("de", "Nur 5,- € statt 3,50 €/Tag.", "Nur fünf Euro statt drei Euro und fünfzig Cent pro Tag."),
    ("de", "Am 1.5. um 3.000 Uhr", "Am 1.5. um 3.000 Uhr."),
    ("de", "Siehe https://www.beispiel.de/über-uns", "Siehe beispiel Punkt de Schrägstrich über uns."),
    ("fr", "« Oui », dit-il !!", "Oui, dit-il!"),
    ("fr", "C'est l'été, n'est-ce pas ?", "C'est l'été, n'est-ce pas?"),
    (
        "fr",
        "Pour 1 234 567,50 €.",
        "Pour un million deux cent trente-quatre mille cinq cent soixante-sept euros et cinquante centimes.",
    ),
    ("fr", "Voir http://exemple.fr/aide", "Voir exemple point fr slash aide."),
    ("fr", "Écrivez à moi@exemple.fr", "Écrivez à moi arobase exemple point fr."),
    ("es", "¿¿Qué??? ¡¡Hola!!!", "¿Qué? ¡Hola!"),
    ("es", "Cuesta 1 € o $2,50.", "Cuesta un euro o dos dólares con cincuenta centavos."),
    ("es", "Ve a www.ejemplo.es/guía", "Ve a ejemplo punto es barra guía."),
    ("es", "2 millones €", "2 millones euros."),
    ("it", "Costa 5 € 😀", "Costa cinque euro."),
    ("it", "Perché l'uomo «parla» così?", "Perché l'uomo parla così?"),
    ("it", "Scrivi a io@esempio.it", "Scrivi a io chiocciola esempio punto it."),
    ("nl", "Het kost € 2,20", "Het kost twee euro, twintig cent."),
    ("nl", "'s Avonds is 't koud", "'s Avonds is 't koud."),
    ("nl", "Ga naar www.voorbeeld.nl", "Ga naar voorbeeld punt nl."),
    ("pt", "Custa 3,50 €!", "Custa três euros e cinquenta cêntimos!"),
    ("pt", "“Olá”, disse ela", "Olá, disse ela."),
    ("pt", "Veja www.exemplo.pt/ajuda", "Veja exemplo ponto pt barra ajuda."),
    ("hi", "नमस्ते दुनिया 😀", "नमस्ते दुनिया।"),
    ("hi", "आप कैसे हैं???", "आप कैसे हैं?"),
    ("hi", "ठीक है।।", "ठीक है।"),
    ("hi", "₹500 और $5", "₹500 और $5।"),
    ("hi", "क्\u200dष देखें www.x.org", "क्\u200dष देखें x डॉट org।"),
    ("ar", "مرحبا، كيف حالك؟؟", "مرحبا، كيف حالك؟"),
    ("ar", "\u202bأهلا\u202c «صديقي»", "أهلا صديقي."),
    ("ar", "زوروا www.x.org", "زوروا x نقطة org."),
    ("ar", "عندي 5 € و٣ كتب", "عندي 5 € و٣ كتب."),
    ("ar", "می\u200cخواهم", "می\u200cخواهم."),
]


@pytest.mark.parametrize("case", ENGLISH)
def test_each_rule_in_english(case: str) -> None:
    text, expected = ENGLISH[case]
    assert clean_sentence(text, "en") == expected


@pytest.mark.parametrize(("language", "text", "expected"), OTHERS)
def test_rules_in_other_languages(language: str, text: str, expected: str) -> None:
    assert clean_sentence(text, language) == expected


@pytest.mark.parametrize("mark", FINAL_MARKS + OTHER_MARKS.replace("\u2014", ""))
def test_a_final_mark_is_not_doubled(mark: str) -> None:
    assert clean_sentence(f"hello{mark}", "en") == f"hello{mark}"
    assert clean_sentence(f"'hello{mark}'", "en") == f"hello{mark}"


def test_a_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "voxport.runtime.text.preparation"):
        list(prepare("Fine.", "en", bool))
        assert not caplog.text
        check_speakable(["Fine 😀."], "en", verbatim=False)  # before the work, and in another language
        list(prepare("Fine 😀.", "en", bool))
    assert caplog.text.count("'Fine 😀.' became 'Fine.'") == 1


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("a1,.$€-()[]!?<>`#&;'\"*| \n\u200b\u2028/5"), max_size=60)
    | st.text(max_size=40)
)
def test_the_result_is_one_line_with_a_final_mark_or_empty(text: str) -> None:
    cleaned = clean_sentence(text, "en")
    if cleaned:
        assert is_speakable(cleaned)
        assert cleaned == " ".join(cleaned.split())
        assert cleaned.rstrip(")]}")[-1] in FINAL_MARKS + OTHER_MARKS


@pytest.mark.parametrize(
    "typed, spoken",
    [
        ("'I went home. I do mind.'", ["I went home.", "I do mind."]),
        ("\u2018Come in. Never mind.\u2019", ["Come in.", "Never mind."]),
        ("I don't mind.'", ["I don't mind."]),
        ("**Bold start. Second sentence** here.", ["Bold start.", "Second sentence here."]),
        ("*Note: one. Two.*", ["Note: one.", "Two."]),
        ("The students' books. 5 * 3 is 15.", ["The students' books.", "5 * 3 is 15."]),
        ("2*3*4=24", ["2*3*4=24."]),
        ("Press 1\ufe0f\u20e3 now", ["Press 1 now."]),
        ("About $100s of $1.5k-2k.", ["About $100s of $1.5k-2k."]),
        ("Pay $5-10 now.", ["Pay $5-10 now."]),
    ],
)
def test_whole_texts_are_cleaned_across_their_sentences(typed: str, spoken: list[str]) -> None:
    assert " ".join(prepare(typed, "en", bool)) == " ".join(spoken)


@pytest.mark.parametrize(
    "language, typed",
    [
        ("de", "3. Oktober ist frei."),
        ("de", "1. FC Köln gewinnt."),
        ("fr", "Le tel est 06 123 456 789."),
        ("es", "Llame al 900 123 456."),
        ("pt", "Ligue 020 123 456."),
        ("en", "He was 42. She was forty."),
        ("en", "He was\n42. She was forty."),
    ],
)
def test_digits_are_kept(language: str, typed: str) -> None:
    assert " ".join(prepare(typed, language, bool)) == typed.replace("\n", " ")


def test_items_of_a_numbered_list_keep_their_numbers() -> None:
    typed = "Steps:\n1. Open it\n2. Close it\n"
    found = filter(None, sentences(plain_lines(typed), "en"))
    assert list(found) == ["Steps:", "1.", "Open it", "2.", "Close it"]


@pytest.mark.parametrize(
    "text",
    [
        *("\U0001f600", "a", "a.", "!", "1.", "a-", "![", "[", "(b", "\u2014", "`", "|", "'", "* ", "*a "),
        *("word ", "a b\n", "\n", "# a\n"),
    ],
)
def test_a_hundred_thousand_characters_take_seconds(text: str) -> None:
    """Quadratic time took minutes. The limit is far above the time of any machine here."""
    started = time.monotonic()
    with suppress(UsageError):  # nothing to speak
        list(prepare(text * (100_000 // len(text)), "en", lambda part: len(part) <= 300))
    assert time.monotonic() - started < 60

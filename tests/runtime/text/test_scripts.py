"""A text in a script that no language of the model uses is refused before anything is spoken."""

from collections.abc import Callable, Iterator

import pytest
import regex
from support.runtime.speech_tasks import ToyVoxtral

from voxport.bundle.errors import UsageError
from voxport.bundle.names import language_code
from voxport.runtime.text.languages import LANGUAGES_OF_SCRIPT, ScriptCheck
from voxport.runtime.text_to_speech import Speech

FOREIGN = {  # to English
    "你好，世界": "Han",
    "これはテストです。": "Hiragana",
    "カタカナ": "Katakana",
    "Привет, мир": "Cyrillic",
    "안녕하세요": "Hangul",
    "สวัสดีครับ": "Thai",
    "مرحبا بالعالم": "Arabic",
    "Γειά σου Κόσμε": "Greek",
    "שלום עולם": "Hebrew",
    "नमस्ते दुनिया": "Devanagari",
    "გამარჯობა": "Georgian",
    "ᚠᚢᚦᚨᚱᚲ": "a rare one",
    "1次": "Han",
    "Ok, это большая проблема": "Cyrillic",
    "<speak version='1.1' xml:lang='zh-CN'><p>你好</p></speak>": "Han",
    "https://example.com/a/long/path 你好": "Han",
    "&#1055;&#1088;&#1080;&#1074;&#1077;&#1090;": "Cyrillic",
}
READABLE = (
    "The composer Пётр Чайковский wrote ballets, and 老子 wrote a book.",
    "Privet, mir! Nǐ hǎo.",
    "Ｈｅｌｌｏ 𝐇𝐞𝐥𝐥𝐨 ﬁne ª",
    "12345 !!! 😀 ½ ①",
    "The angle α is 3 times β.",
    "Xin chào Việt Nam, Þórður og Łódź",
    "",
)


@pytest.mark.parametrize(("text", "script"), FOREIGN.items())
def test_a_text_of_another_script_is_refused_with_the_languages_of_the_model(text: str, script: str) -> None:
    with pytest.raises(UsageError, match=rf"^text: .*\({script}\); its languages are de, en$") as caught:
        ScriptCheck(["de", "en"]).checked(text)
    assert caught.value.field == "text"


@pytest.mark.parametrize("text", READABLE)
def test_foreign_names_symbols_and_other_spellings_of_latin_letters_are_no_foreign_text(text: str) -> None:
    assert ScriptCheck(["en"]).checked(text) == text


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("zh", "你好 iPhone"),
        ("ja", "これはテストです。カード"),
        ("ko", "안녕하세요 漢字"),
        ("uk", "Привіт"),
        ("fa", "سلام دنیا"),
        ("mr", "नमस्कार"),
        ("el", "Γειά σου"),
        ("zh", "Only English words"),
    ],
)
def test_scripts_of_the_language_and_latin_are_readable(language: str, text: str) -> None:
    ScriptCheck(["en", language]).checked(text)


def test_a_model_without_known_languages_takes_every_text() -> None:
    ScriptCheck(()).checked("你好")


def test_scripts_are_those_of_unicode_and_languages_have_codes() -> None:
    assert len(LANGUAGES_OF_SCRIPT) == 27
    for script, codes in LANGUAGES_OF_SCRIPT.items():
        assert regex.compile(rf"\p{{{script}}}") and codes
        assert all(language_code(code) == code for code in codes)


class English(ToyVoxtral):
    """Takes every text, and has no voices."""

    languages = ("en",)

    def language(self, voice: str | None) -> str:
        return "en"

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        return lambda text: True


LONG = "This is a sentence of English words that is long enough to be spoken alone. "


@pytest.mark.parametrize("verbatim", [False, True])
def test_a_whole_text_is_refused_by_most_of_its_letters_before_its_first_part(verbatim: bool) -> None:
    for text in ("你好，世界", LONG + 40 * "Это другой текст. ", ["При", "вет"]):
        with pytest.raises(UsageError, match="letters"):
            Speech(English(), text, verbatim=verbatim)
    speech = Speech(English(), "Здравствуйте, дорогие друзья. " + 4 * LONG, verbatim=verbatim)
    assert speech.next_part(), "most letters are English"


def test_what_the_clean_up_leaves_out_does_not_count() -> None:
    text = "Hello there.\n\n```\nпривет = мир(до_свидания)\n```\n"
    speech = Speech(English(), text)
    assert (part := speech.next_part()) and part.text == "Hello there."
    with pytest.raises(UsageError, match="Cyrillic"):
        Speech(English(), text, verbatim=True)


def test_a_text_that_arrives_is_refused_with_the_part_that_makes_most_letters_foreign() -> None:
    asked = []

    def pieces() -> Iterator[str]:
        for piece in (LONG, LONG, "Это предложение в тексте. ", LONG, *40 * ["Это другой текст. "], "End."):
            asked.append(piece)
            yield piece

    speech, spoken = Speech(English(), pieces()), []
    with pytest.raises(UsageError, match="Cyrillic"):
        while part := speech.next_part():
            spoken.append(part.text)
    assert len(spoken) > 3 and any("предложение" in part for part in spoken)
    assert len(asked) < 30
    with pytest.raises(UsageError, match="Cyrillic"):
        Speech(English(), iter(["При", "вет, м", "ир. Как дела?"])).next_part()

"""The clean-up does not change what is said: tables of cases for each language, and properties."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxport.runtime.text.cleanup import clean_sentence, is_speakable
from voxport.runtime.text.numbers import spell_numbers
from voxport.runtime.text.preparation import TextRules, prepare

# language: texts that stay as they are; most have digits, which a published model reads
SAME = {
    "de": [
        "Nimm ,5 mg, dann 1,5 kg und 1.000 Stück.",
        "Am 3. Mai 2024 um 10:00 Uhr, seit den 1990er Jahren.",
        "Von 5-7 bis -5°C, 3/4 oder v2.0.1.",
        "Ruf 030 123 4567 an.",
        "Die Adresse ist 192.168.100.200.",
    ],
    "en": [
        "Take .5 mg, .25 mg.",
        "We use C#, .NET and Java.",
        "Rates: 5, .5, 50.",
        ".NET is here, and so is .gitignore.",
        "Is std::vector in ../lib of a 1..10 range?",
        'A 6" pipe and an 8" pipe.',
        "At 10:00pm, 12:00:05, on 12/30 or 2024-05-06.",
        "The 1990s, 3/4 of 5~7 days, v2.0.1 and 3:001.",
        "It is -5°C, 1,5 kg or 1 000 m².",
        "Call (555) 123-4567 or +49 30 1234567.",
        "a*b*c and 2*x*3.",
        "If x >= 5 && y != 3.",
    ],
    "es": ["Son 1,5 kg a las 10:00, 1.000 personas y 3/4.", "El 5 de mayo de 2024, a -5°C."],
    "fr": ["Il pèse 1,5 kg, 3,5 % de 1 000.", "Le 5 mai 2024 à 10 h 30, 06 12 34 56 78."],
    "it": ["Pesa 1,5 kg, alle 10:00 del 5/5/2024.", "Circa 1.000 persone, 3/4 di 5-7."],
    "ja": [
        "「はい、そうです。」と言った。",
        "明日は\u3000晴れ、気温は-5℃！",
        "100％オフ！！〜今だけ（税込）〜",
        "2005年に、3 個のりんご。",
        "重さは5㎏・1〜2㎡。",
        "え……ほんと？",
    ],
    "ko": ["안녕하세요. 오늘은 3월 5일, 10:00입니다!", "정말요？ 네."],
    "nl": ["Het weegt 1,5 kg om 10:00 uur.", "Op 5 mei 2024, 1.000 mensen, 3/4."],
    "pt": ["Pesa 1,5 kg às 10:00, 1.000 pessoas.", "Em 5/5/2024, -5°C, 3/4."],
    "ru": ["Вес 1,5 кг в 10:00, 5-7 дней."],
    "zh": [
        "你好，世界！今天：晴；明天（周三）下雨。",
        "他说：“你好。”然后走了……真的吗？！",
        "2005年我们成立，2006~2007年开始快速发展。",
        "我有 3 个苹果，重 1.5 公斤——很重。",
        "《红楼梦》、‘引号’、【括号】…",
        "气温－５℃，１００％。",
    ],
}
CHANGED = [
    ("zh", "你好。世界!再见.好", "你好。世界! 再见. 好。"),
    ("en", "See www.EXAMPLE.COM now.", "See EXAMPLE dot COM now."),
    ("en", "a()b, 7(())6 and f().", "a b, 7 6 and f."),
    ("zh", "1次", "1次。"),
    ("ja", "はい", "はい。"),
    ("zh", "１２", "１２。"),
    ("ko", "네", "네."),
    ("zh", "Hello", "Hello."),
    ("en", "你好", "你好。"),
    ("zh", "你好😀世界", "你好世界。"),
    ("zh", "**很**好，<b>你</b>好", "很好，你好。"),
    ("zh", "第一行\n第二行", "第一行，第二行。"),
    ("zh", "苹果 \n香蕉\n「梨」，\n「好」\n好", "苹果，香蕉，「梨」，「好」，好。"),
    ("ja", "りんご\nバナナ", "りんご、バナナ。"),
    ("zh", "ok！", "ok！"),
    ("zh", "OK，fine", "OK，fine。"),
    ("zh", "Hello.", "Hello."),
    ("zh", "你好。\n\n世界。", "你好。世界。"),
    ("en", "Ｎｏ １２！", "No 12!"),
    ("de", "Er sagte »Ja« leise.", "Er sagte Ja leise."),
    ("de", "»Ja«, sagte er.", "Ja, sagte er."),
    ("fr", "Il dit «oui»; puis « non ».", "Il dit oui; puis non."),
    ("en", 'He said"go"now.', "He said go now."),
    ("en", "[one](a)[two](b) see[three](c)now.", "one two see three now."),
    ("en", "5**6**7 and 1<sub>2</sub>3.", "5 6 7 and 1 2 3."),
    ("en", "Use`run`now.", "Use run now."),
    ("en", "1\u202f500 people.", "1,500 people."),
    ("fr", "1\u202f500 personnes.", "1 500 personnes."),
    ("en", "a, , b and c ,. Then.", "a, b and c. Then."),
]
# what the embedded model, which has learned no digits, is given
IN_WORDS = {
    "12/30": "on December thirtieth",
    "on 3/4": "on March fourth",
    "2024-05-06": "May sixth twenty twenty four",
    "12/30/2024": "December thirtieth twenty twenty four",
    "30.12.2024": "December thirtieth twenty twenty four",
    "5/6/07": "May sixth seven",
    "5 May 2024": "May fifth twenty twenty four",
    "Mar. 12, 2024": "March twelfth twenty twenty four",
    "the 5th of May": "the fifth of May",
    "June 3rd": "June third",
    "in 1850": "in eighteen fifty",
    "2024": "twenty twenty four",
    "the 1990s and '80s": "the nineteen nineties and eighties",
    "1990-95": "nineteen ninety to ninety five",
    "1234 dollars": "one thousand two hundred and thirty four dollars",
    "2000 people": "two thousand people",
    "10:00": "ten o'clock",
    "10:00pm": "ten pm",
    "3:45 pm": "three forty five pm",
    "9:05": "nine oh five",
    "12:00:05": "twelve o'clock and five seconds",
    "12:30-1:30": "twelve thirty to one thirty",
    "3:001": "three to zero zero one",
    "16:9": "sixteen to nine",
    "3/4": "three quarters",
    "5 1/2": "five and one half",
    "5½": "five and one half",
    "24/7": "twenty four seven",
    "5-7": "five to seven",
    "5~7": "five to seven",
    "5 \u2013 7": "five to seven",
    "1,5 kg": "one point five kg",
    "0,125": "zero point one two five",
    "1 000": "one thousand",
    "1\u202f500": "one thousand five hundred",
    "1 000 000": "one million",
    "$2 000 000": "two million dollars",
    "5 a.m.-6 p.m. today": "five a.m. to six p.m. today",
    "10:00 - 11:30 a.m. today": "ten o'clock to eleven thirty a.m. today",
    "5 pm - 6 pm": "five pm to six pm",
    "2:30:45.5": "two thirty and forty five point five seconds",
    "3:45.50": "three forty five point five zero",
    "2023-11-28T10:00:00Z": "November twenty eighth twenty twenty three at ten o'clock and zero seconds Z",
    "2-3/4 inch": "two and three quarters inch",
    "5ºC and 70˚ F": "five degrees Celsius and seventy degrees Fahrenheit",
    "3.45pm and 3.45": "three forty five pm and three point four five",
    "1-800-FLOWERS": "one, eight zero zero-FLOWERS",
    "1.234,56 €": "one thousand, two hundred and thirty-four euros, fifty-six cents",
    "1 234,56 €": "one thousand, two hundred and thirty-four euros, fifty-six cents",
    "2 000 000 €": "two million euros",
    "1'000'000": "one million",
    "1 050 300 people": "one million fifty thousand three hundred people",
    "3 045 000 km": "three million forty five thousand km",
    "in 2020 1 000 000": "in twenty twenty one million",
    "120 500 000": "one hundred and twenty million five hundred thousand",
    "01234 567890": "zero one two three four, five six seven eight nine zero",
    "06 00 34 00 78": "zero six, zero zero, three four, zero zero, seven eight",
    "0171 123 4567": "zero one seven one, one two three, four five six seven",
    "1,234.50": "one thousand two hundred and thirty four point five zero",
    "1,2,3": "one, two, three",
    ".5 mg, .25 mg": "point five mg, point two five mg",
    "555-1234": "five five five, one two three four",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "+49 30 1234567": "plus four nine, three zero, one two three four five six seven",
    "020 7946 0958": "zero two zero, seven nine four six, zero nine five eight",
    "-5°C": "minus five degrees Celsius",
    "12 - 5": "twelve minus five",
    "v2.0.1": "v two point zero point one",
    "$5-10": "five dollars to ten",
    "007": "zero zero seven",
    "COVID-19": "COVID-nineteen",
    "#1": "number one",
    "1,000th": "one thousandth",
    "5'10\"": "five foot ten inches",
    "2024/25": "twenty twenty four twenty five",
    "H2O": "H two O",
    "１２ and ٣": "twelve and three",
    "2*3=6": "two times three equals six",
}


@pytest.mark.parametrize(("language", "text"), [(code, text) for code in SAME for text in SAME[code]])
def test_words_marks_and_digits_stay(language: str, text: str) -> None:
    assert " ".join(prepare(text, language, bool)) == text


@pytest.mark.parametrize(("language", "text", "expected"), CHANGED)
def test_what_is_said_stays(language: str, text: str, expected: str) -> None:
    assert " ".join(prepare(text, language, bool)) == expected


@pytest.mark.parametrize("text", IN_WORDS)
def test_numbers_of_english_become_words(text: str) -> None:
    sentence = f"We saw {'on ' * (text == '12/30')}{text}."
    rules = TextRules(least_characters=0, words_only=True)
    assert list(prepare(sentence, "en", bool, rules=rules)) == [f"We saw {IN_WORDS[text]}."]


WORDS = ["alpha", "beta", "gamma", "Net", "io", "zeta"]
NUMBERS = ["5", "10", "0", "2024", "007", "25", "1234", "500", "12"]
BETWEEN = [
    *("()", " () ", "( )", ".A", "?", "。"),
    *(" ", ", ", ". ", "; ", " - ", "-", "–", "—", "*", " * ", "_", "~", " ~~", "~~", "`", " `", '"', ' "'),
    *("'", " '", "' ", "«", "» ", "(", ")", "[", "] ", "<", ">", " < ", "|", "/", "\\", "&", "=", "==", "#"),
    *("@", "…", "..", "...", ".", ",", ":", "::", "!", "?", "!!", "😀", " 😀 ", "→", "\u00a0", "\u202f"),
    *(
        "\u3000",
        "，",
        "。",
        "（",
        "「",
        "＊",
        "+",
        "%",
        " % ",
        "°",
        "^",
        "{",
        "•",
        "\n",
        "\n\n",
        "½",
        "٣",
        "２",
    ),
    *(" **", "** ", "<b>", "</b>", "<br/>", "[", "](", "\u200d ", "![", "&amp;", "&lt;", ":)", "::", "--"),
]
TEXTS = st.lists(st.sampled_from(WORDS + NUMBERS + BETWEEN + [" "] * 20), max_size=16).map("".join)
HIDING = re.compile("`{3}|~{3}|<!")  # what is behind these may be left out
DOTTED = re.compile(r"(?<!\S)[A-Za-z]+(?:\.[A-Za-z]+)+(?!\S)")
TAG = re.compile(r"</?br?/?>|&(?:amp|lt);")


def words(text: str) -> list[str]:
    return re.findall("[A-Za-z]+", text)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
@example("a»b«c")
@example("5[5](x)[5](y)")
@example(".Net ,.Net, .5")
@example("alpha.Net 7()5 alpha( )beta")
def test_no_words_are_joined_and_no_digit_is_lost(text: str) -> None:
    """A link's address is left out; what is in it here is text without a colon."""
    text = text.replace("](", "] (")
    typed = TAG.sub(" ", text)
    digits = [int(digit) for digit in re.findall(r"\d", typed)]
    for language in ("ru", "de", "zh"):
        results = [clean_sentence(text, language)]
        if is_speakable(typed) and not HIDING.search(text):
            results.append(" ".join(prepare(text, language, bool)))
            assert all(word in results[1] for word in DOTTED.findall(typed)), results[1]
        for cleaned in results:
            found = iter(words(cleaned))
            assert all(word in found for word in words(typed)), cleaned
            assert [int(digit) for digit in re.findall(r"\d", cleaned)] == digits
            assert "½" not in text or "½" in cleaned


@pytest.mark.parametrize("verbatim", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        *("We use ASP.NET Core.", "VB.NET is old.", "System.Collections.Generic has it.", "Run node.JS now."),
        *("Read README.MD first.", "Visit EXAMPLE.COM.", "Go to Yahoo!Mail or x?Y.", "It is 5.A.b."),
    ],
)
def test_words_with_a_mark_inside_stay_whole(text: str, verbatim: bool) -> None:
    assert " ".join(prepare(text, "en", bool, verbatim)) == text


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
@example("12/30-5:00.5,5")
def test_each_digit_becomes_words_beside_the_others(text: str) -> None:
    cleaned = clean_sentence(text, "en")
    spelled = spell_numbers(cleaned)
    assert not re.search(r"[\d½]", spelled)
    found = iter(words(spelled))
    assert all(word in found for word in words(cleaned)), spelled
    groups = re.findall(r"\d+", cleaned)
    assert len(words(spelled)) >= len(words(cleaned)) + len(groups)

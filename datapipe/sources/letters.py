"""How likely decoded bytes are as writing: the letters that languages use, and what words never hold.

Owns one number, `log_likelihood`, by which `sources.encoding` tells encodings apart that can all decode the
same bytes. It is about legacy encodings only: Unicode text needs no guess.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping

_HIRAGANA = "のにをはたがでてとしれさいるなあもりまらかすっくこうきよそけわだえみめおせどつげろばごやちぶゆむ"
_KATAKANA = "ーントスルイリクッラシドアレフジプロタコムマバサデキテグカメネオウツハパィャュョェセチモワナビブ"


@dataclasses.dataclass(frozen=True)
class _Language:
    """How often letters beyond ASCII stand in a language: the common ones by rank, the others all alike."""

    common: Mapping[str, float]
    other: float


def _language(common: str, share: float = 0.99, num_others: int = 30) -> _Language:
    """Return a language from its common letters, the most frequent first.

    Args:
        share: of all letters beyond ASCII, how many are common ones.
        num_others: among how many letters the rest is spread.

    *Source*: counted in manuals of this language; the falling curve over the ranks is Zipf's.
    """
    letters = list(dict.fromkeys(common))
    flat = max(2, len(letters) // 10)  # the many letters of a large script differ less
    total = sum(1 / (rank + flat) for rank in range(len(letters)))
    weights = {letter: share / (rank + flat) / total for rank, letter in enumerate(letters)}
    return _Language(weights, (1 - share) / num_others)


_WESTERN = tuple(
    map(
        _language,
        (
            "éèàêçôîùâûœëïæ",  # French
            "üäößé",  # German
            "óíáéúñüªº",  # Spanish, Galician
            "ãçéáíõêóúâàôªº",  # Portuguese
            "èàòùéì",  # Italian
            "óéàòíèúçïü",  # Catalan
            "äöåéü",  # Swedish, Finnish, Estonian
            "åøæéä",  # Danish, Norwegian
            "íáðóéþöúýæ",  # Icelandic
            "ëéïóöèü",  # Dutch
        ),
    )
)
_CENTRAL = tuple(
    map(
        _language,
        (
            "ąłżćęóśńź",  # Polish
            "íářěžčéýšůúťňďó",  # Czech
            "áíýéžčúšľťôňäďĺŕ",  # Slovak
            "éáóíőöüűú",  # Hungarian
            "ăţşîâ",  # Romanian, as legacy encodings have it
            "čšžćđ",  # Slovene, Croatian, Bosnian, Serbian in Latin letters
        ),
    )
)
_TURKISH = (_language("ıişçüğöâîû\u0307"),)  # with the dot that lower() leaves of a capital İ
_BALTIC = (_language("ėšųžįčūąę"), _language("āēīšūņļžķģč"), _language("äõöüšž"))
_VIETNAMESE = (_language("đ\u0300\u0323\u0301ơưêâôă\u0309\u0303áàíéóúèùìò"),)
_CYRILLIC = (
    _language("оеатинсрвлкмпдуыьяйзбчгжюхшфщэцёъ"),
    _language("оанитіевркпмусдлязбьгйчюшжхєщцфїґ"),  # Ukrainian
    _language("аиоетрнсвлкдпмзъягбучжхцщшйфюь"),  # Bulgarian
    _language("аеиотрнкусдпвмлјзбгчшжњцћљђфхџ"),  # Serbian
)
_GREEK = (_language("ατεοινσρπμηςκίλυγήάδέόχφθωύώξβζψϋϊ"),)
_HEBREW = (_language("יוהלאתרמבשנעםדחקפכטגצסןזךףץ"),)
_ARABIC = (
    _language("ايلمنوترةبعدهسفكقحجأشصطزىضذخثغءئإؤظآ"),
    _language("ايرنهودکتمبشلسگفزپعخجصحقچضآظژطذغثئیے"),  # Persian, Urdu
)
_THAI = (_language("านรกเอ่งมยลวดท้สตัีิะปบคหแจพใไขชณผถ็ศธโษฟฉ์ญฐุูำืึ"),)
_SIMPLIFIED = _language(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行"
    "所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心本前开但因只从想实日者意无力它与"
    "长把机十第公此已工使情明性知全三关点正业外将两高间由问很最重并物手应文体设置安装系统件您键电接口窗选择络网"
    "数据参考资料版权信息联新闻北京市场发展社经济建省政府企教育技术服务产品价格月号电话",
    0.62,
    2500,
)
_TRADITIONAL = _language(
    "的一是不了人我在有他這為之大來以個中上們到說國和地也子時道出而要於就下得可你年生自會那後能對著事其里所去行"
    "過家十用發天如然作方成者多日都三小軍二無同麼經法當起與好看學進種將還分此心前面又定見只主沒公從本些現點開但"
    "因樣想實意力把機第已工使情明性知全關正業外兩高間由問很最重並物手應文體設置安裝系統檔案您選擇網路使資料版權"
    "訊息新聞台灣北市場發展社濟建政府企教育技術服務產品價格月號電話",
    0.62,
    2500,
)
_JAPANESE = _language(
    "".join(a + b for a, b in zip(_HIRAGANA, _KATAKANA))
    + "日本定用動要場合使設起一前自数的以下製方人年月大国中会事者社時分出行生見新今上間学名後話手気子",
    0.80,
    2000,
)
_KOREAN = _language(
    "이다는을의에가지고하로기사은를도대한어해인시스자리정일과서나그할수있제니습라합면터용파크드트선치전보장상키만"
    "와안부동구원성소주우여오아모마공국년월경방미연조단문개시민들무신진실분관계업비유금회생세위",
    0.75,
    1500,
)

LANGUAGES: dict[str, tuple[_Language, ...]] = {
    "cp1252": _WESTERN,
    "iso8859-2": _CENTRAL,
    "cp1250": _CENTRAL,
    "cp1251": _CYRILLIC,
    "koi8-r": _CYRILLIC,
    "koi8-u": _CYRILLIC,
    "iso8859-5": _CYRILLIC,
    "cp866": _CYRILLIC,
    "cp1254": _TURKISH,
    "cp1257": _BALTIC,
    "cp1258": _VIETNAMESE,
    "cp1253": _GREEK,
    "iso8859-7": _GREEK,
    "cp1255": _HEBREW,
    "cp1256": _ARABIC,
    "cp874": _THAI,
    "cp932": (_JAPANESE,),
    "euc_jis_2004": (_JAPANESE,),
    "cp949": (_KOREAN,),
    "gb18030": (_SIMPLIFIED,),
    "big5hkscs": (_TRADITIONAL,),
}
_RELATED = {  # encodings that are not guessed, and whose languages they were made for
    "iso8859-15": _WESTERN,
    "mac-roman": _WESTERN,
    "mac-cyrillic": _CYRILLIC,
    "iso8859-4": _BALTIC,
    "iso8859-13": _BALTIC,
    "iso8859-8": _HEBREW,
    "iso8859-6": _ARABIC,
}
_ANY = tuple(language for group in LANGUAGES.values() for language in group)

_PUNCTUATION = frozenset("«»“”‘’„‚–—…·°©®™§¿¡€£•\xa0\xad、。「」『』（）・：；！？，．～〜【】《》〈〉　％")
_LOG_PUNCTUATION, _LOG_SYMBOL, _LOG_FAULT = math.log(0.02), math.log(0.0005), math.log(0.01)

_NO_LETTER = "²³¹¼½¾"  # numbers to `str.isalnum`
_LETTER = rf"[^\W\d_{_NO_LETTER}]"
_WORD = re.compile(rf"{_LETTER}{{2,}}")
_MARK = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0e31-\u0e4e"
_SYMBOL_IN_WORD = re.compile(
    rf"(?<={_LETTER})(?:[^\w\s\x00-\x7f’‘·–—…‐\xa0\xad\u200b-\u200d{_MARK}]|[{_NO_LETTER}])(?={_LETTER})"
)
_SYMBOL_AFTER_WORD = re.compile(rf"(?<={_LETTER}{{3}})[±¶¿¡¢¤¥¦¬¯´¸¨{_NO_LETTER}](?!{_LETTER})")
_NO_CHARACTER = re.compile(r"[\x80-\x9f\ufffd\ue000-\uf8ff]")  # controls, undecodable, private
_RARE = re.compile(r"[\uff61-\uff9f\u2500-\u259f]")  # half-width katakana, box drawing
_ASCII_LETTER = re.compile(r"[A-Za-z]")
_OTHER_ALPHABET = re.compile(r"[\u0370-\u06ff\u0e00-\u0e7f\u3040-\u30ff]")


def log_likelihood(text: str, encoding: str) -> float:
    """Return the logarithm of how likely text decoded from `encoding` is, in the language it suits best.

    Only characters beyond ASCII count, so that values of the same bytes in different encodings compare.
    """
    counts = Counter(text.lower())
    beyond = {character: n for character, n in counts.items() if character > "\x7f"}
    languages = LANGUAGES.get(encoding) or _RELATED.get(encoding) or _ANY
    return max(_in_language(beyond, language) for language in languages) + _LOG_FAULT * _num_faults(text)


def _in_language(counts: Mapping[str, int], language: _Language) -> float:
    other = math.log(language.other)
    total = 0.0
    for character, number in counts.items():
        if (weight := language.common.get(character)) is not None:
            total += number * math.log(weight)
        elif character in _PUNCTUATION:
            total += number * _LOG_PUNCTUATION
        else:
            total += number * (other if character.isalpha() else _LOG_SYMBOL)
    return total


def _num_faults(text: str) -> int:
    """Return how many things stand in a text that no writing has."""
    patterns = (_NO_CHARACTER, _SYMBOL_IN_WORD, _SYMBOL_AFTER_WORD, _RARE)
    num_faults = sum(len(pattern.findall(text)) for pattern in patterns)
    for word in _WORD.findall(text):
        if word.isascii():
            continue
        if not (word.islower() or word.isupper() or word[1:].islower()) and word.lower() != word.upper():
            num_faults += 1  # capitals inside a word
        if _ASCII_LETTER.search(word) and _OTHER_ALPHABET.search(word):
            num_faults += 1  # two alphabets in a word
    return num_faults

"""Markdown, by markdown-it and the reader of HTML.

Owns which dialects are read beside CommonMark: tables, footnotes, definition lists, formulas between dollar
signs, front matter in YAML or TOML, pictures and links of note-taking programs (`![[a.png]]`, `[[Page]]`),
and the directives of MyST.
"""

import html
import re
from collections.abc import Iterator
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin

from datapipe.errors import MalformedMarkup
from datapipe.sources import rst
from datapipe.sources.encoding import decode
from datapipe.sources.html import read_page
from datapipe.sources.items import RawDocument

_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[^\S\n]*\n(.*?)\n\1[^\S\n]*(?:\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"^(title|lang|language)\s*[:=]\s*[\"']?(.*?)[\"']?\s*$", re.MULTILINE)
_ATTRIBUTES = re.compile(r"\{[:#.\w][^{}\n]*\}")  # of Pandoc and kramdown, behind a picture or heading
_ALERT = re.compile(r"\A\[!(?:note|tip|important|warning|caution)\][^\n]*\n?", re.IGNORECASE)
_EMBEDDED = re.compile(r"!\[\[([^\[\]|\n]+)(?:\|([^\[\]\n]*))?\]\]")
_WIKI_LINK = re.compile(r"\[\[([^\[\]|\n]+)(?:\|([^\[\]\n]*))?\]\]")
_ROLE = re.compile(r"\{[\w:+-]+\}\Z")  # of MyST, before code: {func}`open`
_DIRECTIVE = re.compile(r"\{([\w:+-]+)\}\s*(.*)", re.DOTALL)
_CONTAINER = re.compile(r"[{.]*([\w:+-]*)\}?\s*(.*)", re.DOTALL)  # ::: also stands without braces
_DIRECTIVE_OPTIONS = re.compile(r"\A(?:---\n.*?\n---\n|(?::[\w-]+:[^\n]*\n)+)", re.DOTALL)
_CODE_DIRECTIVES = frozenset(("code", "code-block", "code-cell", "sourcecode", "math", "mermaid", "ipython"))
_NO_CONTENT = frozenset(("toctree", "tableofcontents", "include", "literalinclude", "bibliography", "index"))
_MAX_DIRECTIVES = 5  # one in the other
_MAX_NESTED = 100  # lists and quotes one in the other


def read(data: bytes, uri: str) -> RawDocument:
    """Read Markdown, embedded HTML included; front matter gives title and language.

    Raises:
        NotText: the bytes are binary.
        MalformedMarkup: the parser cannot read it.
        EmptyDocument: there is no content.
    """
    text = decode(data).replace("\r\n", "\n").replace("\r", "\n")
    front = _FRONT_MATTER.match(text)
    fields = dict(_FIELD.findall(front.group(2))) if front is not None else {}
    try:
        page = _to_html(text[front.end() :] if front is not None else text, 0)
    except Exception as error:  # the border of one bad file: the parser has no error of its own
        raise MalformedMarkup(f"markdown-it: {type(error).__name__}: {error}") from error
    return read_page(
        page, uri, "markdown", title=fields.get("title"), lang=fields.get("lang") or fields.get("language")
    )


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": _MAX_NESTED})
    parser.enable(["table", "strikethrough"])
    parser.use(footnote_plugin).use(deflist_plugin).use(colon_fence_plugin)
    return parser.use(
        dollarmath_plugin, allow_digits=False, allow_space=False, double_inline=True, renderer=_formula
    )


def _formula(tex: str, options: dict[str, Any]) -> str:
    mark = "$$" if options["display_mode"] else "$"
    return html.escape(f"{mark}{' '.join(tex.split())}{mark}")


def _to_html(text: str, depth: int) -> str:
    environment: dict[str, Any] = {}
    tokens = _PARSER.parse(text, environment)
    for previous, token in zip([None, *tokens], tokens):
        if token.type in ("fence", "colon_fence") and depth < _MAX_DIRECTIVES:
            _open_directive(token, depth)
        elif token.type == "inline" and token.children:
            is_heading = previous is not None and previous.type == "heading_open"
            token.children = list(_inline(token.children, is_heading))
    return _PARSER.renderer.render(tokens, _PARSER.options, environment)


def _inline(children: list[Token], is_heading: bool) -> Iterator[Token]:
    """Yield the parts of a paragraph with what other dialects write turned into HTML, or left out."""
    for number, token in enumerate(children):
        if token.type == "text":
            if number == 0:
                token.content = _ALERT.sub("", token.content + "\n").rstrip("\n")
            if number and children[number - 1].type == "image" and token.content.startswith("{"):
                token.content = _ATTRIBUTES.sub("", token.content, count=1)
            if is_heading and number == len(children) - 1 and token.content.endswith("}"):
                token.content = re.sub(_ATTRIBUTES.pattern + r"\Z", "", token.content).rstrip()
            if token.content.endswith("}") and _type_at(children, number + 1) == "code_inline":
                token.content = _ROLE.sub("", token.content)
                children[number + 1].content = re.sub(r"\A~(?:.*\.)?", "", children[number + 1].content)
            if "[[" in token.content:
                token = Token("html_inline", "", 0, content=_wiki(token.content))
        yield token


def _type_at(tokens: list[Token], number: int) -> str | None:
    return tokens[number].type if number < len(tokens) else None


def _wiki(text: str) -> str:
    def embedded(found: re.Match[str]) -> str:
        return f'<img src="{found[1].strip()}" alt="{"" if (found[2] or "").isdigit() else found[2] or ""}">'

    text = _EMBEDDED.sub(embedded, html.escape(text))
    return _WIKI_LINK.sub(lambda found: found[2] or found[1], text)


def _open_directive(token: Token, depth: int) -> None:
    """Turn a fenced directive of MyST into what it shows; other fences stay code."""
    is_container = token.type == "colon_fence"
    found = (_CONTAINER if is_container else _DIRECTIVE).fullmatch(token.info.strip())
    if found is None:
        return
    name, argument = found.groups()
    content = _DIRECTIVE_OPTIONS.sub("", token.content)
    if name in _CODE_DIRECTIVES:
        token.type, token.content = "fence", content
        return
    token.type, token.tag = "html_block", ""
    if name in _NO_CONTENT:
        token.content = ""
    elif name == "eval-rst":
        token.content = rst.to_html(token.content)[0]
    elif name in ("figure", "image"):
        alt = re.search(r"^:alt:\s*(.*)$", token.content, re.MULTILINE)
        picture = f'<img src="{html.escape(argument)}" alt="{html.escape(alt.group(1)) if alt else ""}">'
        caption = f"<figcaption>{_to_html(content, depth + 1)}</figcaption>" if content.strip() else ""
        token.content = f"<figure>{picture}{caption}</figure>\n"
    else:
        title = f"<p>{html.escape(argument)}</p>" if " " in argument or name == "admonition" else ""
        token.content = title + _to_html(content, depth + 1)


_PARSER = _parser()

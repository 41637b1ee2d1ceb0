"""docutils made to read what Sphinx and its extensions write, and what authors got wrong.

Owns which directives and roles there are: docutils' own with any options, those of Sphinx that show a video
or nothing, and every other name, whose content and words are kept. docutils would leave out, with a message,
the whole of a directive that it does not know or that has one option too many.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docutils import nodes, utils
from docutils.parsers.rst import Directive, directives
from docutils.parsers.rst.directives import admonitions, body, images, tables
from docutils.parsers.rst.roles import register_local_role

_MAX_NAMES = 300  # of unknown directives or roles, in one file
_DIRECTIVE = re.compile(
    r"^[ \t>]*\.\.[ \t]+(?:\|[^|\n]{1,200}\|[ \t]+)?([\w.+:-]{1,80}?)[ \t]?::(?:\s|$)", re.MULTILINE
)
_ROLE = re.compile(r":((?!_)[\w.+-]+(?::[\w.+-]+)*):`|`:((?!_)[\w.+-]+(?::[\w.+-]+)*):")
_NOTHING = frozenset(  # what only steers a build, or names what is elsewhere
    (
        "toctree",
        "index",
        "literalinclude",
        "highlight",
        "currentmodule",
        "module",
        "py:module",
        "py:currentmodule",
        "program",
        "tabularcolumns",
        "sectionauthor",
        "codeauthor",
        "autosummary",
        "automodule",
        "autoclass",
        "autofunction",
        "automethod",
        "autodata",
        "autoattribute",
        "autoexception",
        "doctest-skip",
        "testsetup",
        "testcleanup",
        "bibliography",
    )
)
_CODE = frozenset(
    (
        "prompt",
        "ipython",
        "ipython3",
        "jupyter-execute",
        "doctest",
        "testcode",
        "testoutput",
        "console",
        "plot",
    )
)
_PLAYERS = {"youtube": "https://www.youtube.com/embed/{}", "vimeo": "https://player.vimeo.com/video/{}"}
_TITLED = re.compile(
    r"(?:.*[-:])?(?:tab|tab-item|dropdown|card|details|collapse|rubric|function|method|class|data|"
    r"attribute|option|envvar|confval|describe|object|macro|type|exception|glossary|"
    r"version(?:added|changed|removed)|deprecated)"
)
_ADMONITION_NAMES = "attention caution danger error hint important note tip warning"
_OTHERS_OF_DOCUTILS = (
    "class contents compound date default-role epigraph footer header highlights include line-block meta "
    "pull-quote raw replace role rst-class section-numbering sectnum target-notes title unicode"
)
_ROLES_OF_DOCUTILS = (
    "emphasis strong literal code math raw subscript sub superscript sup title-reference title t "
    "abbreviation ab acronym ac index i pep-reference pep rfc-reference rfc"
)
_KNOWN_ROLES = frozenset(_ROLES_OF_DOCUTILS.split())
_VERSIONS = {
    "versionadded": "Added in version",
    "versionchanged": "Changed in version",
    "versionremoved": "Removed in version",
    "deprecated": "Deprecated since version",
}
_INVALID = object()
_TARGET = re.compile(r"(.*?)\s*<[^<>]*>\s*", re.DOTALL)
_SHORTENED = re.compile(r"~[\w.]*\.(\w+(?:\(\))?)")


class _Options(dict[str, Callable[[str], Any]]):
    """The options of a directive, with any others; a value that its option refuses counts as not given."""

    def __init__(self, known: Mapping[str, Callable[[str], Any]]) -> None:
        super().__init__({name: _tolerant(convert) for name, convert in known.items()})

    def __bool__(self) -> bool:
        return True  # docutils looks for options only where there are some

    def __missing__(self, name: str) -> Callable[[str], Any]:
        return lambda value: _INVALID


def _tolerant(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def converted(value: str) -> Any:
        try:
            return convert(value)
        except ValueError:
            return _INVALID

    return converted


class _Content(Directive):
    """A directive that nobody knows: its content, under its title where the name says that it has one."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = _Options({})

    def run(self) -> Sequence[nodes.Node]:
        if self.name in _NOTHING:
            return []
        argument = " ".join(self.arguments)
        if self.name in _PLAYERS or self.name == "video":
            return [_video(self.name, argument)]
        if self.name in _CODE:
            text = "\n".join(self.content) or argument
            return [nodes.literal_block(text, text)]
        found = nodes.container()
        if self.name in _VERSIONS:
            argument = f"{_VERSIONS[self.name]} {argument}"
        if argument and (_TITLED.fullmatch(self.name) or not self.content):
            found += nodes.paragraph("", argument.replace("\\", ""))
        self.state.nested_parse(self.content, self.content_offset, found)
        return list(found.children)


def _video(name: str, argument: str) -> nodes.Node:
    quoted = re.sub(r"[\"'<>&\s]", "", argument)
    if name in _PLAYERS:
        return nodes.raw("", f'<iframe src="{_PLAYERS[name].format(quoted)}"></iframe>', format="html")
    return nodes.raw("", f'<video src="{quoted}"></video>', format="html")


@functools.lru_cache(maxsize=1)
def _register_known() -> frozenset[str]:
    """Register docutils' own directives with any options; return the names that are not to be registered."""
    known: dict[str, type[Directive]] = {
        "image": images.Image,
        "figure": images.Figure,
        "code": body.CodeBlock,
        "code-block": body.CodeBlock,
        "sourcecode": body.CodeBlock,
        "code-cell": body.CodeBlock,
        "math": body.MathBlock,
        "parsed-literal": body.ParsedLiteral,
        "topic": body.Topic,
        "sidebar": body.Sidebar,
        "container": body.Container,
        "table": tables.RSTTable,
        "csv-table": tables.CSVTable,
        "list-table": tables.ListTable,
        "admonition": admonitions.Admonition,
        **{name: getattr(admonitions, name.capitalize()) for name in _ADMONITION_NAMES.split()},
        "seealso": admonitions.Note,
    }
    for name, directive in known.items():
        directives.register_directive(name, _with_any_options(directive))
    return frozenset((*known, *_OTHERS_OF_DOCUTILS.split()))


def _with_any_options(directive: type[Directive]) -> type[Directive]:
    def run(self: Any) -> Sequence[nodes.Node]:
        self.options = {name: value for name, value in self.options.items() if value is not _INVALID}
        return directive.run(self)

    options = _Options(directive.option_spec or {})
    return type(directive.__name__, (directive,), {"option_spec": options, "run": run})


def register(text: str) -> None:
    """Make every directive and role of a text known, so that nothing of it is left out."""
    known = _register_known()
    names = dict.fromkeys(name.lower() for name in _DIRECTIVE.findall(text))
    for name in [name for name in names if name not in known][:_MAX_NAMES]:
        directives.register_directive(name, _Content)
    used = dict.fromkeys((before or behind).lower() for before, behind in _ROLE.findall(text))
    for name in [name for name in used if name not in _KNOWN_ROLES][:_MAX_NAMES]:
        register_local_role(name, _words)


def _words(
    role: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Any,
    options: Mapping[str, Any] = {},  # only ever read
    content: Sequence[str] = (),
) -> tuple[Any, Any]:
    """A role that nobody knows: its words, without the target of a reference."""
    words = utils.unescape(text)
    if (titled := _TARGET.fullmatch(words)) is not None and titled.group(1):
        words = titled.group(1)
    elif (short := _SHORTENED.fullmatch(words)) is not None:
        words = short.group(1)
    if role == "menuselection":
        words = words.replace("-->", "→")
    return [nodes.Text(words.lstrip("!~"))], []

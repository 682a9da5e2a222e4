"""Markdown as far as scripts/test-book and scripts/build-book read it: fences, inline code, links, headings."""

import dataclasses
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^( *)(`{3,}|~{3,})[ \t]*([^\n`]*)\n(.*?)^\1?\2[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.+?)[ \t#]*$", re.MULTILINE)


@dataclasses.dataclass
class Fence:
    """A fenced block: its language, its text, its line, and the HTML comment just before it."""

    language: str
    text: str
    line: int
    comment: str


def blank(text):
    """As many characters and lines, and nothing to read."""
    return re.sub(r"[^\n]", "x", text)


def fences(text):
    """The fenced blocks of a page."""
    found = []
    for match in FENCE.finditer(text):
        indent, _, language, body = match.groups()
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        before = text[: match.start()].rstrip()
        start = before.rfind("<!--")
        comment = before[start + 4 : -3].strip() if start >= 0 and before.endswith("-->") else ""
        line = text.count("\n", 0, match.start()) + 1
        found.append(Fence(language.strip(), body, line, comment))
    return found


def without_fences(text):
    return FENCE.sub(lambda match: blank(match[0]), text)


def prose(text):
    """The page with all code made unreadable, every character at its place."""
    text = COMMENT.sub(lambda match: blank(match[0]), without_fences(text))
    return CODE.sub(lambda match: blank(match[0]), text)


def inline_code(text):
    """The texts between backquotes, with their lines."""
    text = COMMENT.sub(lambda match: blank(match[0]), without_fences(text))
    return [(" ".join(match[2].split()), text.count("\n", 0, match.start()) + 1) for match in CODE.finditer(text)]


def links(text):
    """The targets of links and pictures, each with its position."""
    return [(match[1], match.start(1)) for match in LINK.finditer(prose(text))]


def anchors(text):
    """The names that GitHub gives the headings of a page."""
    found = {}
    for match in HEADING.finditer(without_fences(text)):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", match[2]).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        times = found.get(name, 0)
        found[name] = times + 1
        if times:
            found[f"{name}-{times}"] = 1
    return set(found)


def is_outside(target):
    """Whether a link leads to another site."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def tracked():
    """The files of the tree, as paths from its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]

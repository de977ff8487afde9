"""What strangers may hand in: valid documents changed in ways that matter, and strings that would like to be more.

How many are tried is ``inputs(count)``: in an ordinary run ``count``, with ``--hypothesis-profile soak`` 22 times so
many. A value that JSON's writer has no words for travels as one of ``LITERALS`` until the document is text.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

#: Touched by nobody, or a string was taken for code.
CANARY = Path(tempfile.gettempdir(), f"fsdp-conformance-canary-{os.getpid()}")
TOUCH = f"touch {CANARY}"
_TIMES = {"full": 4, "soak": 22}


def inputs(count: int) -> settings:
    """``count`` inputs in an ordinary run, four times as many with the profile full, 22 times with soak."""
    return settings(max_examples=count * _TIMES.get(str(settings._current_profile), 1))


class Touch:
    """Unpickled, it touches the canary."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (TOUCH,)


PICKLE = pickle.dumps(Touch(), protocol=2)
POISONS = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<!--", "-->", "<![CDATA[", "]]>", "</style>",
    "</title><h1>", "</pre></details></article>", "<svg/onload=alert(1)>", '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)", "javascript:alert(1)", "data:text/html,<script>alert(1)</script>", "&lt;b&gt;&#60;",
    "{{ 7 * 7 }}", "{% include '/etc/passwd' %}", "{{ self.__init__.__globals__ }}", "{0.__class__}", "%(x)s%n%99999s",
    f"__import__('os').system('{TOUCH}')", f"!!python/object/apply:os.system ['{TOUCH}']", PICKLE.decode("latin-1"),
    f"$({TOUCH})", f"`{TOUCH}`; {TOUCH} #", f"'\"; {TOUCH}; '", "../../../etc/passwd", "=HYPERLINK(1)",
    "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "\x1b[31", "\x9b2J", "\x90q\x9c", "a\x08\x08b\x7f", "\x00",
    "\r\n\n\u2028\x85", "\u202egnp.exe", "\u2066x\u2069", "\ud800", "\udfff\ud800", "\ufeff", "\uffff",
    "x" * 3000, " " * 50,
)  # fmt: skip
TEXTS = st.sampled_from(POISONS) | st.text(st.characters(exclude_categories=()), max_size=12)

#: What ``json.dumps`` would not write, by the string that stands for it.
LITERALS = {
    "@huge@": "9" * 5000, "@large@": "9" * 400, "@minus@": "-0", "@beyond@": "1E999", "@nan@": "NaN",
    "@inf@": "-Infinity", "@deep@": "[" * 20_000 + "]" * 20_000, "@nested@": '{"a":' * 400 + "[]" + "}" * 400,
    "@edge@": "[" * 62 + "]" * 62, "@half@": "[1,", "@hex@": "0x10",
    "@single@": "'x'", "@comment@": "1 // x", "@twice@": '{"a":1,"a":2}',
}  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 2**200, 0.5, 1e308, 1e-320]),
    TEXTS,
    st.sampled_from(sorted(LITERALS)),
)
JUNK = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(TEXTS, SCALARS, max_size=3), st.just([[[[]]]]), st.just({})
)


# Trees of JSON types.


@st.composite
def changed(draw: st.DrawFn, tree: Any, most: int = 3) -> Any:
    """The tree with up to ``most`` changes: values of other types and texts, keys and items lost, added and moved."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(tree))
        if not places:
            return copy.deepcopy(draw(JUNK))
        holder, key = draw(st.sampled_from(places))
        other, its = draw(st.sampled_from(places))
        _change(draw(st.sampled_from(CHANGES)), holder, key, copy.deepcopy(other[its]), draw)
    return tree


def _places(tree: Any) -> Any:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])


CHANGES = ("junk", "junk", "poison", "poison", "lost", "added", "moved", "wrapped", "unwrapped")


def _change(what: str, holder: Any, key: Any, other: Any, draw: st.DrawFn) -> None:
    value = holder[key]
    if what == "poison":
        holder[key] = f"{value}{draw(TEXTS)}"
    elif what == "lost":
        del holder[key]
    elif what == "added" and isinstance(holder, dict):
        holder[draw(TEXTS)] = copy.deepcopy(draw(JUNK))
    elif what == "added":
        holder.insert(key, copy.deepcopy(draw(JUNK)))
    elif what == "moved":
        holder[key] = other
    elif what == "wrapped":
        holder[key] = [value]
    elif what == "unwrapped" and isinstance(value, list) and value:
        holder[key] = value[0]
    else:
        holder[key] = copy.deepcopy(draw(JUNK))


def poisoned(tree: Any, texts: Callable[[], str], keep: frozenset[str]) -> Any:
    """The tree with a drawn text behind every string but those under the keys to ``keep``."""
    if isinstance(tree, str):
        return tree + texts()
    if isinstance(tree, list):
        return [poisoned(item, texts, keep) for item in tree]
    if isinstance(tree, dict):
        return {key: item if key in keep else poisoned(item, texts, keep) for key, item in tree.items()}
    return tree


def as_json(tree: Any, is_ascii: bool = True) -> str:
    """JSON text of a tree, with what only text can say."""
    text = json.dumps(tree, ensure_ascii=is_ascii)
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text


# Bytes.

ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1", "cp037")
SNIPPETS = st.sampled_from(
    [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b"{", b"}", b"]" * 9, b'"', PICKLE, b"\x1b[2J"]
)


@st.composite
def spoilt(draw: st.DrawFn, data: bytes, most: int = 2) -> bytes:
    """The bytes with up to ``most`` places flipped, lost, doubled or added to, or their end cut off."""
    for _ in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([1, 2, 30, 1000])))
        what = draw(st.sampled_from(["flipped", "lost", "doubled", "added", "cut"]))
        if what == "flipped":
            data = (
                data[:start]
                + bytes(byte ^ draw(st.integers(1, 255)) for byte in data[start : start + 1])
                + data[start + 1 :]
            )
        elif what == "added":
            data = data[:start] + draw(SNIPPETS | st.binary(max_size=8)) + data[start:]
        else:
            data = {"lost": data[:start] + data[end:], "doubled": data[:end] + data[start:], "cut": data[:start]}[what]
    return data


@st.composite
def documents(draw: st.DrawFn, lines: list[str]) -> bytes:
    """Lines as the bytes of a file: some lost, doubled, moved or cut, in some encoding, with some bytes spoilt."""
    if draw(st.booleans()):  # half the time what is wrong, if anything, is deeper inside
        return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    lines = list(lines)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if not lines:
            break
        place, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines)))
        what = draw(st.sampled_from(["lost", "doubled", "moved", "cut", "junk"]))
        if what == "junk":
            lines.insert(other, draw(TEXTS))
        elif what == "cut":
            lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))]
        else:
            line = lines[place] if what == "doubled" else lines.pop(place)
            lines[other:other] = [] if what == "lost" else [line]
    text = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])).join([*lines, ""])
    encoding = draw(st.sampled_from(ENCODINGS))
    data = text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")
    return draw(spoilt(data)) if draw(st.booleans()) else data

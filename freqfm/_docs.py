"""Docstrings that take what they leave out from the docstrings of other objects."""

import inspect
import re

_SECTIONS = (
    *("Parameters", "Attributes", "Returns", "Raises", "Warns"),
    *("See Also", "Notes", "References", "Examples"),
)

# The sections as written in the source, of objects whose docstrings were completed.
_WRITTEN = {}


def described_like(whole, *others):
    """Return a decorator that completes a docstring by those of similar classes or functions.

    The sections of parameters and attributes have, in the source, what differs. Other entries are
    those of ``whole``, in its order; for ``others`` they are what the source has of them. An entry
    without a text only says where the next one belongs. Sections of results, errors and warnings
    that are missing are those of ``whole``.

    Parameters
    ----------
    whole : class or function
        Its docstring is complete.
    *others : class or function
        From general to special.
    """

    def complete(described):
        if not (whole.__doc__ and described.__doc__):  # python -OO
            return described
        written = _WRITTEN[described] = _sections(described.__doc__)
        found = _sections(whole.__doc__)
        sections = {**{name: found[name] for name in _SECTIONS[:5] if name in found}, **written}
        for name in ("Parameters", "Attributes"):
            entries = _entries(found.get(name, ""))
            for one in (*(_WRITTEN.get(other, {}) for other in others), written):
                entries = _changed(entries, _entries(one.get(name, "")))
            if name == "Parameters":
                known = inspect.signature(described).parameters
                entries = {n: text for n, text in entries.items() if n.split(",")[0] in known}
            sections[name] = "\n".join(entries.values())
        summary = sections.pop("")
        ordered = [(name, sections[name]) for name in _SECTIONS if sections.get(name)]
        parts = [summary, *(f"{name}\n{'-' * len(name)}\n{text}" for name, text in ordered)]
        described.__doc__ = "\n\n".join(parts) + "\n"
        return described

    return complete


def _sections(doc):
    """Return the sections of a docstring by name; that of the summary is empty."""
    titles = "|".join(_SECTIONS)
    summary, *rest = re.split(rf"\n\n({titles})\n-+\n", inspect.cleandoc(doc))
    return {"": summary, **dict(zip(rest[::2], rest[1::2], strict=True))}


def _entries(section):
    """Return the entries of a section by name."""
    found = re.split(r"\n(?=\S)", section) if section else []
    return {text.split(" :")[0].split("\n")[0]: text for text in found}


def _changed(entries, written):
    """Return entries with those that another docstring has, new ones after their neighbours."""
    names, texts, place = list(entries), dict(entries), 0
    for name, text in written.items():
        if name not in texts:
            names.insert(place, name)
        if name not in texts or "\n" in text:
            texts[name] = text
        place = names.index(name) + 1
    return {name: texts[name] for name in names}

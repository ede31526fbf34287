"""Every error that ckconv raises, as one class tree.

An error carries facts, not only text: a stable ``code`` (``gguf.extent``), the file, the tensor, the
byte offset, what was found and what is allowed, and the next step. :mod:`ckconv.cli.render` is the
only place that turns one into the lines a person reads or into JSON.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Directory of stand-ins -> the address of what they stand in for.
ADDRESSES: dict[str, str] = {}

#: What this process has to say of directories that it read: what was brought back there.
BROUGHT_BACK: list[str] = []

#: An address, of which :class:`~pathlib.Path` may have made one slash of several.
_ADDRESS = r"((?:https?|hf)(?=:)|[a-z][a-z0-9+.-]+(?=:/)):(/*)(.*)"

#: ``USER:PASSWORD@``, of which the password may hold what should have been escaped; a number behind ``:`` is a port.
_ASKER = r"(?<=://)(?:[^/?]*@|[^/?\[:]*:(?!:|\d*(?:[/?]|$)).*@)"

#: A report lists at most this many faults of one kind; the rest is counted.
MAX_LISTED = 10


def shown(path: str | os.PathLike[str]) -> str:
    """A path for messages; of a stand-in, the remote address.

    Who asks for an address, and what proves it, is nobody's business: ``USER:PASSWORD@``, ``?signature=...``.
    """
    text = os.fspath(path)
    for directory, address in ADDRESSES.copy().items():  # another thread may add one
        if text == directory or text.startswith(directory + os.sep):
            return address + text[len(directory) :].replace(os.sep, "/")
    found = re.fullmatch(_ADDRESS, text.replace(os.sep, "/"), re.DOTALL | re.IGNORECASE) if ":" in text else None
    if found is None:
        return text
    scheme, slashes, rest = found.groups()
    address = f"{scheme}:{slashes if len(slashes) > 1 else '//'}{rest}"
    return re.sub(_ASKER, "", address, flags=re.DOTALL).partition("?")[0]


class CkconvError(Exception):
    """The base of every error raised on purpose.

    Attributes:
        code: stable, dotted and lower case; documented in docs/errors.md.
        message: what is wrong, with the numbers; one sentence, no file name, no final full stop.
        path: the file or directory at fault, as people know it.
        tensor: the tensor at fault, by the name its own file gives it.
        offset: byte offset in ``path``.
        found, allowed: the two operands of the check that failed.
        hint: the next step, where there is one, in the words of the command line.
        python_hint: the same with arguments of the library; set where its functions raise.
        details: further faults of the same kind, one sentence each.
    """

    #: The process's exit status: docs/errors.md.
    exit_code = 1

    def __init__(
        self,
        code: str,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        found: object = None,
        allowed: object = None,
        hint: str | None = None,
        details: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = shown(path) if path is not None else None
        self.tensor = tensor
        self.offset = offset
        self.found = found
        self.allowed = allowed
        self.hint = hint
        self.python_hint: str | None = None
        self.details = tuple(details)

    def __reduce__(self) -> tuple[object, ...]:
        """Another process gets all of its facts."""
        return _made_again, (type(self), self.args, self.__dict__)

    @property
    def sentence(self) -> str:
        """File and message; behind them the tensor, where no sentence names it."""
        place = f"{self.path}: " if self.path else ""
        module = str(self.tensor).removesuffix(".weight")
        known = not self.tensor or any(module in text for text in (self.message, *self.details))
        return f"{place}{self.message}" if known else f"{place}{self.message} (tensor {quoted(str(self.tensor))})"

    def __str__(self) -> str:
        return "\n  ".join([f"[{self.code}] {self.sentence}", *self.details])


def _made_again(kind: type[CkconvError], given: tuple[object, ...], facts: dict[str, object]) -> CkconvError:
    error = kind.__new__(kind, *given)
    error.__dict__.update(facts)
    return error


class UsageError(CkconvError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class InputError(CkconvError):
    """The input is malformed, truncated or hostile."""

    exit_code = 3


class UnsupportedError(CkconvError):
    """A sound input that the target cannot hold, or that ckconv does not read."""

    exit_code = 4


#: Name of a module -> what pip calls the package that has it, where that is another name.
_DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python", "ray": "'ray[client]'", "yaml": "PyYAML"}


def missing_package(what: str, *modules: str) -> UnsupportedError:
    """``system.package``: a subject needs modules that are not installed."""
    packages = [_DISTRIBUTIONS.get(module, module) for module in modules]
    names = " and ".join(package.strip("'") for package in packages)
    lacks = "which is" if len(packages) == 1 else "which are"
    message = f"{what} needs the {'package' if len(packages) == 1 else 'packages'} {names}, {lacks} not installed"
    return UnsupportedError("system.package", message, hint=f"pip install {' '.join(packages)}")


class VerifyError(CkconvError):
    """An output that does not hold its source, or with a wrong checksum."""

    exit_code = 5

    @classmethod
    def of(cls, error: CkconvError) -> VerifyError:
        """An error as a failed verification."""
        return cls(
            error.code, error.message, path=error.path, tensor=error.tensor, offset=error.offset, found=error.found,
            allowed=error.allowed, hint=error.hint, details=error.details,
        )  # fmt: skip


class OutputError(CkconvError):
    """The output was refused or could not be written."""

    exit_code = 6


class Interrupted(CkconvError):
    """A signal ended the work.

    Everything temporary is gone by the time this is seen, or the message says otherwise.
    """

    def __init__(
        self, signal_number: int, message: str = "interrupted; nothing was left behind", details: Iterable[str] = ()
    ) -> None:
        super().__init__("interrupted", message, details=details)
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """128 + the signal's number, as a shell reports it."""
        return 128 + self.signal_number


#: What the system says when it has no descriptor or no memory left, whatever file that was for.
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def code_of(error: OSError) -> str:
    """The code of a failed write, by what the system says."""
    if error.errno in NO_RESOURCES:
        return "system"
    return "output.space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "output.write"


def unreadable(
    error: OSError,
    path: str | os.PathLike[str],
    *,
    doing: str = "cannot be read",
    offset: int | None = None,
) -> InputError | OutputError:
    """Error ``input.unreadable``, or ``system`` if the file is not at fault."""
    message = f"{doing}: {error.strerror or error}"
    if error.errno in (*NO_RESOURCES, errno.EIO):  # of a device that fails, no file is at fault
        hint = "the limit of open files is reached (ulimit -n)" if error.errno == errno.EMFILE else None
        return OutputError("system", message, path=path, offset=offset, hint=hint)
    return InputError("input.unreadable", message, path=path, offset=offset)


def listed(faults: list[str]) -> tuple[str, ...]:
    """The first ``MAX_LISTED`` faults, and a line that counts the rest."""
    if len(faults) <= MAX_LISTED:
        return tuple(faults)
    return (*faults[:MAX_LISTED], _rest(len(faults) - MAX_LISTED))


def and_more(names: Sequence[str]) -> str:
    """``first and 3 more``."""
    return f"{names[0]} and {len(names) - 1:,} more" if len(names) > 1 else names[0]


def few(names: Sequence[str], most: int) -> str:
    """The first names, and dots for the others."""
    return ", ".join([quoted(name) for name in names[:most]] + ["..."] * (len(names) > most))


def _rest(number: int) -> str:
    return f"... and {number:,} more"


def counted(number: int, noun: str, several: str = "") -> str:
    """``1 tensor``, ``2,048 tensors``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {several or f'{noun}s'}"


def nearest(text: str, words: Iterable[str], alike: float = 0.6) -> str:
    """The word that is most like a text; empty if none is.

    Args:
        alike: the least share of letters that they have in common.
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(text, list(words), 1, alike)), "")


def an(name: str) -> str:
    """``a llama``, ``an exaone``, ``an ultravox``."""
    vowel = name[:1].lower() in tuple("aeio") and name[:2].lower() != "eu"
    return f"{'an' if vowel or name[:2].lower() == 'ul' else 'a'} {name}"


def quoted(text: str, limit: int = 120) -> str:
    """``text`` in quotes, control characters escaped, a long one cut."""
    if len(text) > limit:
        text = f"{text[: limit - 20]}...{text[-17:]}"
    return repr(text)


def short(text: str, limit: int = 200) -> str:
    """Shorten the message of a server or a library."""
    return text if len(text) <= limit else f"{text[:limit]}..."


@contextmanager
def in_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the block that name no file are about this one."""
    try:
        yield
    except CkconvError as error:
        error.path = error.path or shown(path)
        raise


class Faults:
    """Faults of one file, of which a report names more than the first.

    Only as many sentences are kept as a report lists: a hostile file may hold millions of faults.

    Args:
        path: the file; ``None`` for rules that know no files, whose caller adds it.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = path
        self._first: dict[str, InputError] = {}
        self._further: dict[str, list[str]] = {}
        self._more: Counter[str] = Counter()

    def add(
        self,
        code: str,
        message: str,
        *,
        tensor: str | None = None,
        offset: int | None = None,
        found: object = None,
        allowed: object = None,
        hint: str | None = None,
    ) -> None:
        """Note a fault.

        The first one of a code gives the error its facts, later ones only their sentence.
        """
        if code in self._first:
            further = self._further.setdefault(code, [])
            if len(further) < MAX_LISTED:
                further.append(message)
            else:
                self._more[code] += 1
            return
        self._first[code] = InputError(
            code, message, path=self._path, tensor=tensor, offset=offset, found=found, allowed=allowed, hint=hint
        )

    def check(self) -> None:
        """Raise the first kind that was noted, if any was.

        Raises:
            InputError: the first fault of that kind, the others in its ``details``.
        """
        for code, error in self._first.items():
            more = self._more[code]
            error.details = (*self._further.get(code, ()), *([_rest(more)] if more else ()))
            raise error


# -- Names that are not UTF-8, as text that every JSON parser accepts --------------------------------------------------

_ODD = r"[\ud800-\udfff]|\\(?=x[0-9a-f]{2}|ud[89a-f][0-9a-f]{2})"
_ESCAPED = r"\\x(5c|[89a-f][0-9a-f])|\\u(d[89a-f][0-9a-f]{2})"


def is_text(text: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    """Escape halves of surrogate pairs; :func:`unescaped` undoes that."""
    return re.sub(_ODD, _escape, text)


def unescaped(text: str) -> str:
    """The original of an escaped text."""
    return re.sub(_ESCAPED, _unescape, text)


def valid(text: str) -> str:
    """The text, escaped where it has to be."""
    return text if is_text(text) else escaped(text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value as JSON has them, with every text and key in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): each_text(item, change) for key, item in value.items()}
    return [each_text(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code & 0xFF:02x}" if code == ord("\\") or 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def _unescape(found: re.Match[str]) -> str:
    code = int(found[1] or found[2], 16)
    return chr(code + 0xDC00) if found[1] and code >= 0x80 else chr(code)

"""Command line: run a command, end with its exit status."""

from __future__ import annotations

import _datetime  # type: ignore[import-not-found]
import atexit
import gc
import io
import os
import sys
import warnings
from _thread import RLock
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ckconv.core import __version__

if TYPE_CHECKING:
    from importlib.abc import Loader

#: Bytes that numpy takes when it is imported; OpenBLAS in it ends the process where there are fewer.
_NUMPY = 96 << 20

#: New objects between two searches for garbage. Imports and headers make many thousands that all stay, and looking
#: through them every 700, the default up to Python 3.12, takes a tenth of the time until there is something to do.
GARBAGE_THRESHOLD = 50_000


def main() -> None:
    """Run the command line and exit; no traceback without ``--debug``."""
    if sys.argv[1:] in (["--version"], ["-V"]):  # what scripts ask before anything else; click takes thrice as long
        with suppress(OSError):  # a stream that takes nothing has its error below
            os.write(1, f"ckconv {__version__}\n".encode())
            return
    gc.set_threshold(GARBAGE_THRESHOLD)
    status = 1

    def end() -> None:  # called last, as it is the first: taking all objects apart takes a tenth of a small command
        sys.stderr.flush()
        os._exit(status)

    if not atexit._ncallbacks():  # of a tool that looks at this process
        atexit.register(end)
    # numpy's OpenBLAS starts a thread for every processor, which do nothing for a tenth of a second, as busily as they
    # can: no matrices are multiplied here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not sys.warnoptions:  # what Python and numpy warn of names lines of this installation, and no user can mend them
        warnings.simplefilter("ignore")
    sys.meta_path.insert(0, _Imports())
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to clean up
        status = 130
    from ckconv.system.signals import ignore

    try:
        sys.stdout.flush()
    except OSError:  # what is left in its buffer would fail once more when the interpreter ends, with status 120
        from ckconv.cli.render import discard_stdout

        discard_stdout()
    ignore()  # the status stands; the interpreter's own end would give the signals their defaults back
    sys.exit(status)


class _Imports:
    """Import hook: checks memory for numpy, runs other modules at first use."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Find modules that wait.

        Raises:
            MemoryError: there is not enough.
        """
        if name == "numpy":
            from ckconv.system import limits, require_memory

            if limits().keys() & {"-v", "-d"}:
                require_memory(_NUMPY)
        spec = PathFinder.find_spec(name, path) if name in _WAITING and name not in sys.modules else None
        if spec is not None:
            _LOADERS[name], spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module that runs its file when something of it is used."""
        return _Waiting(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Add what is called when the users of a module are imported."""
        vars(module).update(_WAITING[module.__name__])


class _Waiting(ModuleType):
    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            loader = None if name.startswith("__") and name != "__all__" else _LOADERS.pop(self.__name__, None)
            if loader is not None:
                self.__loader__ = self.__spec__.loader = loader  # type: ignore[union-attr]
                try:
                    loader.exec_module(self)
                except BaseException:  # a signal, or too little memory: the next use tries again
                    _LOADERS[self.__name__] = loader
                    raise
                self.__class__ = ModuleType  # type: ignore[assignment]
        return ModuleType.__getattribute__(self, name)


def _cleandoc(text: str) -> str:
    first, _, rest = text.expandtabs().partition("\n")
    if rest:
        from textwrap import dedent

        rest = dedent(rest)
    return f"{first.lstrip()}\n{rest}".strip("\n")


def _run(module: str, name: str, *arguments: object, **named: object) -> Any:
    """Call a function of a module that waits: it is another one then."""
    getattr(sys.modules[module], "__all__", None)
    return getattr(sys.modules[module], name)(*arguments, **named)


def _quoted(text: bytes, safe: str = "/") -> object:
    return _run("urllib.parse", "quote_from_bytes", text, safe)


def _matches(word: str, *among: object, **named: object) -> object:
    is_letter = word[:1] == "-" != word[1:2]  # click looks for each option of a letter among the long ones first
    return [] if is_letter else _run("difflib", "get_close_matches", word, *among, **named)


def _logger(name: str | None = None) -> object:
    return _Logger() if name == "concurrent.futures" else _run("logging", "getLogger", name)


class _Logger:
    def __getattr__(self, name: str) -> Any:
        return getattr(_run("logging", "getLogger", "concurrent.futures"), name)


class _Uuid:
    def __new__(cls, *arguments: object, **named: object) -> Any:
        return _run("uuid", "UUID", *arguments, **named)


#: What is imported and hardly used (``inspect`` by click and dataclasses, ``urllib.parse`` by pathlib, ``uuid`` and
#: ``datetime`` by click, ``platform`` by numpy), and what is called of it meanwhile; click's words have no
#: translations, futures nearly nothing to log.
_WAITING: dict[str, dict[str, Callable[..., object]]] = {
    "datetime": {"datetime": _datetime.datetime},
    "difflib": {"get_close_matches": _matches},
    "inspect": {"cleandoc": _cleandoc},
    "logging": {"getLogger": _logger},
    "gettext": {"gettext": str, "ngettext": lambda one, more, count: one if count == 1 else more},
    "urllib.parse": {"quote_from_bytes": _quoted},
    "uuid": {"UUID": _Uuid},
    **{name: {} for name in ("base64", "numbers", "platform", "shlex", "tomllib")},
}


_LOADERS: dict[str, Loader | None] = {}
_LOCK = RLock()


def run(arguments: list[str]) -> int:
    """Run the command line with ``arguments`` and return its exit status."""
    import click

    from ckconv.cli.commands import ReaderGone, main as group
    from ckconv.cli.render import as_error, discard_stdout, print_error, printable, say
    from ckconv.cli.settings import Settings
    from ckconv.errors import BROUGHT_BACK, NO_RESOURCES, Interrupted, OutputError, UsageError, code_of

    settings = Settings()
    BROUGHT_BACK.clear()
    _settle_streams()
    try:
        if "" in arguments:  # Path("") is the working directory, which nobody meant
            settings.json = "--json" in arguments  # none of them was read
            raise UsageError("usage", "an argument is empty", hint="is a shell variable unset?")
        status = group.main(arguments, prog_name="ckconv", standalone_mode=False, obj=settings)
        sys.stdout.flush()
        for sentence in [] if settings.quiet else BROUGHT_BACK:
            say(f"ckconv: note: {printable(sentence)}\n")
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        say(f"{error.ctx.get_help()}\n" if error.ctx else "")
        return 2
    except click.ClickException as error:
        settings.json = settings.json or "--json" in arguments  # what stands behind the mistake was not read
        hint = f"{error.ctx.command_path} --help shows the usage" if getattr(error, "ctx", None) else None  # type: ignore[attr-defined]
        if isinstance(error, click.NoSuchOption):  # a path may begin as an option does
            path = next((it for it in arguments if it.startswith(error.option_name) and os.path.lexists(it)), None)
            hint = f"./{path} names the file" if path else hint
        text = " ".join(error.format_message().split()).rstrip(".")
        return print_error(UsageError("usage", text[:1].lower() + text[1:], hint=hint), settings)
    except (ReaderGone, BrokenPipeError):
        discard_stdout()
        return 0
    except (KeyboardInterrupt, click.Abort):
        return print_error(Interrupted(2), settings)
    except Exception as error:
        if settings.debug:
            import traceback

            say(traceback.format_exc())
        # What works with files names them: else it was stdout.
        if isinstance(error, OSError) and error.filename is None and error.errno not in NO_RESOURCES:
            error = OutputError(code_of(error), f"stdout cannot be written: {error.strerror or error}")
        if isinstance(error, Interrupted) and settings.over:
            error.details = (f"the {settings.over:g} s of --timeout are over", *error.details)
        return print_error(as_error(error), settings)


def _settle_streams() -> None:
    """Replace streams that are closed; escape what stdout cannot encode.

    A write to a closed stdout fails as on a full disk, a write to a closed stderr does nothing.
    """
    if sys.stdout is None:  # writing to what was opened for reading is EBADF, as of a closed descriptor
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")

"""How huggingface_hub is used: quietly where nobody watches, and with errors that say what to do."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import CkptError, NotAuthorised, NotFound, error

SIGNATURE = re.compile(r"\?\S+")
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]+|Bearer \S+")
FORBIDDEN = (401, 403)
# What the disk says, not the network.
# fmt: off
LOCAL = frozenset((
    errno.EACCES, errno.EBADF, errno.EDQUOT, errno.EEXIST, errno.EFBIG, errno.EIO, errno.EISDIR,
    errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENODEV, errno.ENOENT, errno.ENOSPC,
    errno.ENOTDIR, errno.ENOTEMPTY, errno.EPERM, errno.EROFS, errno.ESTALE,
))
# fmt: on


def quieten() -> None:
    """No bars where stderr is no terminal, and no lines of the library's own: what is wrong is raised."""
    from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined]

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not sys.stderr.isatty():
        disable_progress_bars()


class Unreachable(NotFound):
    """The Hub does not answer now; another run may go on."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn the client's errors into NotAuthorised and NotFound with a way out; ours pass through."""
    quieten()
    try:
        yield
    except CkptError:
        raise
    except Exception as problem:
        found = translation(problem, where)
        if found is None:
            raise
        raise found from problem


def translation(problem: BaseException, where: str) -> CkptError | None:
    """What an error of the client means; None for one that is not the network's or the Hub's."""
    from huggingface_hub import errors

    root = _root(problem)
    if isinstance(root, OSError) and root.errno in LOCAL:
        return None
    if isinstance(root, errors.GatedRepoError):
        fix = "accept its terms on the Hub, then `hf auth login`"
        return error(
            NotAuthorised, "hub-gated", "the repository asks for access", where=where, actual=said(root), fix=fix
        )
    if isinstance(root, (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError)):
        return error(
            NotFound,
            "hub-not-found",
            "no such path, repository or revision",
            where=where,
            actual=said(root),
            fix="check the name; for a private repository `hf auth login` first",
        )
    if status(root) in FORBIDDEN:
        return error(
            NotAuthorised,
            "hub-not-authorised",
            "the Hub refuses access",
            where=where,
            expected="a token with the right to do this",
            actual=said(root),
            fix="`hf auth login`, or set HF_TOKEN",
        )
    if isinstance(root, (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError)) or is_transport(root):
        return error(
            Unreachable,
            "hub-unreachable",
            "no such local path, and the Hub cannot be reached",
            where=where,
            actual=said(root),
            fix="check the path and the network, or download the repository first",
        )
    return None


def _root(problem: BaseException) -> BaseException:
    """The first cause that the Hub or the network gave: uploads wrap it."""
    from huggingface_hub.errors import HfHubHTTPError

    seen: BaseException | None = problem
    while seen is not None:
        if isinstance(seen, HfHubHTTPError):
            return seen
        seen = seen.__cause__
    while isinstance(problem, RuntimeError) and problem.__cause__ is not None:
        problem = problem.__cause__
    return problem


def status(problem: BaseException) -> int:
    """The HTTP status of an error, 0 where there is none."""
    return int(getattr(getattr(problem, "response", None), "status_code", 0) or 0)


def is_transport(problem: BaseException) -> bool:
    """Whether a connection failed: the client's HTTP library differs between its versions, and so do the classes."""
    return any(kind.__name__ in ("TransportError", "RequestException", "HTTPError") for kind in type(problem).__mro__)


def said(problem: BaseException) -> str:
    """The first line of an error, without signatures of addresses and without tokens."""
    line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return TOKEN.sub("***", SIGNATURE.sub("", line))

"""The one place where exceptions become messages and exit codes."""

from __future__ import annotations

import os
import sys
import traceback

import click

from ..errors import CkptError, ExitCode, Finding
from .output import fail

DEBUG = "CKPT_TOOLS_DEBUG"


def run(cli: click.Command, arguments: list[str]) -> int:
    """Run the command line; the exit code tells what happened (see `ExitCode`)."""
    name = next((word for word in arguments if not word.startswith("-")), "ckpt-tools")
    try:
        code = cli.main(arguments, prog_name="ckpt-tools", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.OK
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (flushed at exit, when the pipe is gone)
        return ExitCode.FAILED
    except (Exception, KeyboardInterrupt) as problem:
        findings, code = explain(problem)
        return fail(name, "--json" in arguments, findings, code)


def explain(problem: BaseException) -> tuple[tuple[Finding, ...], ExitCode]:
    """What the user is told of an exception, and the exit code."""
    if isinstance(problem, CkptError):
        return problem.findings, problem.exit_code
    if isinstance(problem, click.UsageError):
        hint = f"try `{problem.ctx.command_path} --help`" if problem.ctx else "try `ckpt-tools --help`"
        return (Finding("usage", problem.format_message(), fix=hint),), ExitCode.USAGE
    if isinstance(problem, (KeyboardInterrupt, SystemExit, click.Abort)):
        cause = problem.__context__ if isinstance(problem, click.Abort) else problem
        fix = "; ".join(getattr(cause, "__notes__", ()))
        return (Finding("interrupted", "interrupted; nothing was finished", fix=fix),), ExitCode.INTERRUPTED
    if isinstance(problem, OSError):
        what, where = problem.strerror or str(problem), str(problem.filename or "")
        return (Finding("io", what, where=where, fix="check the path and its permissions"),), ExitCode.NOT_FOUND
    if os.environ.get(DEBUG):
        traceback.print_exception(problem)
    what = f"{type(problem).__name__}: {problem}"
    return (Finding("bug", what, fix=f"this is a bug: report it with the output of {DEBUG}=1"),), ExitCode.FAILED

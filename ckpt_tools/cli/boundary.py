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
    as_json = "--json" in arguments
    try:
        code = cli.main(arguments, prog_name="ckpt-tools", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.OK
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.UsageError as problem:
        hint = f"try `{problem.ctx.command_path} --help`" if problem.ctx else "try `ckpt-tools --help`"
        return fail(name, as_json, (Finding("usage", problem.format_message(), fix=hint),), ExitCode.USAGE)
    except CkptError as problem:
        return fail(name, as_json, problem.findings, problem.exit_code)
    except (KeyboardInterrupt, click.Abort) as problem:
        cause = problem.__context__ if isinstance(problem, click.Abort) else problem
        fix = "; ".join(getattr(cause, "__notes__", ()))
        finding = Finding("interrupted", "interrupted; nothing was finished", fix=fix)
        return fail(name, as_json, (finding,), ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (flushed at exit, when the pipe is gone)
        return ExitCode.FAILED
    except OSError as problem:
        finding = Finding(
            "io",
            problem.strerror or str(problem),
            where=str(problem.filename or ""),
            fix="check the path and its permissions",
        )
        return fail(name, as_json, (finding,), ExitCode.NOT_FOUND)
    except Exception as problem:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        what = f"{type(problem).__name__}: {problem}"
        finding = Finding("bug", what, fix=f"this is a bug: report it with the output of {DEBUG}=1")
        return fail(name, as_json, (finding,), ExitCode.FAILED)

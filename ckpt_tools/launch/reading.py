"""Script, checkpoints and head, found from what the user names or from what the script names, and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..drafts.formats.targets import read_target
from ..errors import CkptError, Finding, NotFound, UsageProblem, error
from ..families.config import Fields
from ..mapping.detect import mtp_layers_present
from ..model import HF_COPY, describe
from ..refs import Fetched, commit_of, expanded, resolve, resolve_headers
from ..report import listed
from ..stores.hf_folder import CONFIG, INDEX, open_folder, read_json
from ..stores.torch_dist.reader import TRACKER, is_torch_dist, open_checkpoint
from .case import Case, HfTarget
from .flags import Flags, parse_flags
from .inputs import Inputs
from .releases import LATEST, release
from .server import serving_flags
from .shell.expand import Text
from .shell.lexer import ScriptError
from .shell.script import Script, launch_command, read_script, read_words
from .speculation import PATH

SCRIPT, TARGET, STORED, DRAFT = "script", "target", "torch-dist", "draft head"
SERVER_PROGRAMS = ("sglang.launch_server", "launch_server.py")
ABSENT = ("ref-not-found", "hub-not-found")
SLIME_FLAGS = ("hf-checkpoint", "ref-load", "rollout-num-gpus-per-engine", "rollout-batch-size")


def open_case(inputs: Inputs) -> tuple[Case, Path | None]:
    """Everything read, and the torch-dist path as it was named. What the script names and is not there is a finding; what the
    user names and is not there raises NotFound."""
    if not any((inputs.target, inputs.torch_dist, inputs.draft, inputs.script, inputs.args, inputs.server_args)):
        fix = "give --target, --torch-dist, --draft, --script or --args"
        raise error(UsageProblem, "nothing-to-check", "no input is named", fix=fix)
    try:
        case = Case(release(inputs.sglang_version or LATEST))
    except ValueError as problem:
        raise error(UsageProblem, "server-version", str(problem), fix="name another --sglang-version") from problem
    _read_flags(case, inputs)
    _open_target(case, inputs)
    root = _open_stored(case, inputs)
    _open_draft(case, inputs)
    return case, root


# --- flags


def _read_flags(case: Case, inputs: Inputs) -> None:
    program = ""
    words: list[Text] = []
    if inputs.script:
        script = _script(case, expanded(inputs.script), dict(inputs.variables))
        if script:
            program, words = launch_command(script)
            _check_lists(case, script, words)
    alone = program in SERVER_PROGRAMS
    try:
        more, server = read_words(inputs.args), read_words(inputs.server_args, "--server-args")
    except ScriptError as problem:
        raise error(
            UsageProblem, "arguments-unreadable", str(problem), where="--args", fix="check the quotes"
        ) from problem
    training = parse_flags([*([] if alone else words), *more])
    case.slime = any(flag in training for flag in SLIME_FLAGS) or any(
        given.flag.startswith("sglang-") for given in training
    )
    case.training = training
    case.serving = serving_flags(training, parse_flags([*(words if alone else []), *server]), case.slime)
    case.slime = case.slime and not (alone or server)
    for hole in training.holes:
        what = f"{hole.value} may hold any flags"
        fix = "make the files that the script sources readable from here, or give the flags with --args"
        case.found(SCRIPT, Finding("flag-unresolved", what, hole.where, "a list", hole.unknown[0], fix))


def _script(case: Case, path: Path, variables: dict[str, str]) -> Script | None:
    try:
        script = read_script(path, variables)
    except (OSError, UnicodeDecodeError) as problem:
        raise error(
            NotFound,
            "script-unreadable",
            "cannot read the script",
            where=str(path),
            actual=str(problem),
            fix="check the path",
        ) from problem
    except (ScriptError, RecursionError) as problem:
        fix = "check it with bash -n"
        case.found(
            SCRIPT, Finding("script-invalid", "this is no shell script", str(path), "a bash script", str(problem), fix)
        )
        return None
    for doubt in script.doubts:
        fix = "give what it changes with --args"
        case.found(SCRIPT, Finding("script-doubt", doubt.what, doubt.where, "", "", fix, severity="warning"))
    return script


def _check_lists(case: Case, script: Script, words: list[Text]) -> None:
    """A list of flags that never reaches the command: a backslash that is not there, a name that is not spelled out."""
    used = {id(word) for word in words}
    shown = {(word.value, word.where) for word in words}
    unused = [
        name
        for name, texts in script.arrays.items()
        if any(text.value.startswith("--") for text in texts)
        and not any(id(text) in used or (text.value, text.where) in shown for text in texts)
    ]
    if not words:
        case.found(
            SCRIPT,
            Finding("no-flags", "the script holds no flags", str(script.files[0]), "a command or lists of flags", ""),
        )
    elif unused:
        case.found(
            SCRIPT,
            Finding(
                "flags-unused",
                "lists of flags never reach the command",
                str(script.files[0]),
                "every list on the command line",
                listed(unused),
                "is a backslash at the end of a line missing?",
            ),
        )
    else:
        case.passed(SCRIPT, "a command line", f"{len(words)} words")


# --- checkpoints


def _named(case: Case, name: str, given: str | None, flags: Flags, *spellings: str) -> tuple[str, str] | None:
    """(ref, where it is named); None if nothing names it or its value is not known."""
    if given:
        return given, ""
    found = flags.first(*spellings)
    value = case.text(flags, *spellings)
    if found is None:
        case.skipped(name, "not named")
    return (value, found.where) if found and value else None


def _resolved(case: Case, name: str, ref: str, where: str) -> Fetched | None:
    """The target's small files where its index is one of them, else headers. What only the script names and is not there is a
    finding."""
    try:
        path = resolve(ref, weights=False) if name == TARGET else None
        return Fetched(path, True) if path and (path / INDEX).is_file() else resolve_headers(ref)
    except CkptError as problem:
        if not where:
            raise
        if others := [finding for finding in problem.findings if finding.code not in ABSENT]:
            for finding in others:  # gated, or no network: it may well be there
                case.found(name, replace(finding, where=f"{where}: {finding.where or ref}"))
            return None
        what = f"the {name} that the script names is not there"
        case.found(
            name,
            Finding("input-not-found", what, where, "a path, or a Hub id", ref, f"name it with --{name.split()[0]}"),
        )
        return None


def _open_target(case: Case, inputs: Inputs) -> None:
    flags = case.training if "hf-checkpoint" in case.training else case.serving
    named = _named(case, TARGET, inputs.target, flags, "hf-checkpoint", "model-path", "model")
    found = _resolved(case, TARGET, *named) if named else None
    if found is None:
        return
    path = found.path
    try:
        read = read_target(path)
    except CkptError as problem:
        if isinstance(problem, NotFound) and named and not named[1]:
            raise
        for finding in problem.findings:
            case.found(TARGET, finding)
        return
    names = _names(case, path)
    mtp = None
    if read.family and read.dims and names:
        probe = read.family.table(
            read.dims,
            read.family.mtp_limit if read.family.mtp_field else 0,
            read.dims.vocab_size,
            read.family.defaults(),
        )
        mtp = len(mtp_layers_present(probe, names, True))
    case.target = HfTarget(read, names, mtp)
    _check_declared(case, case.target)


def _names(case: Case, path: Path) -> frozenset[str]:
    """Tensor names from the index, which is enough here; from the headers of a model without one."""
    if path.is_file():
        return frozenset()
    if not (path / INDEX).is_file():
        folder = open_folder(path)
        for finding in folder.report.errors:
            case.found(TARGET, finding)
        return frozenset(folder.tensors)
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict):
        what = "the index has no weight_map of names to files"
        fix = "write the index again: `ckpt-tools inspect --write-index`"
        case.found(TARGET, Finding("index-invalid", what, str(path / INDEX), "{tensor: file}", str(places)[:60], fix))
        return frozenset()
    local = {file.name for file in path.glob("*.safetensors")}
    absent = sorted({str(file) for file in places.values()} - local)
    if absent and (local or not commit_of(path)):  # weights of a Hub id were never asked for
        what = "the index names files that are not there" if local else "the index is there and the weights are not"
        fix = "fetch the model again" if local else "fetch the weights before the job starts"
        severity = "error" if local else "warning"
        case.found(TARGET, Finding("shard-missing", what, str(path), listed(absent), "no such file", fix, severity))
    return frozenset(places)


def _check_declared(case: Case, target: HfTarget) -> None:
    """A9, B11: the config's count of MTP layers against the names."""
    family = target.read.family
    if family is None or target.mtp is None:
        return
    declared = Fields(target.read.config, str(target.read.config_path)).mtp_layers()
    if declared == target.mtp or (declared == 0 and family.undeclared_mtp):
        case.passed(TARGET, family.name, f"{target.mtp} MTP layers")
        return
    case.found(
        TARGET,
        Finding(
            "config-claims-mtp" if declared > target.mtp else "mtp-undeclared",
            f"the config declares {declared} MTP layers and the names show {target.mtp}",
            str(target.read.config_path),
            "the same count",
            f"{declared} declared, {target.mtp} found",
            "put the head back (merge-draft), or set the count to what is there",
            severity="error" if declared > target.mtp else "warning",
        ),
    )


def _open_stored(case: Case, inputs: Inputs) -> Path | None:
    """--load if it is a checkpoint already, else --ref-load, as slime chooses (slime/utils/arguments.py)."""
    named = None
    load = case.training.first("load")
    if not inputs.torch_dist and load and not load.unknown and load.values:
        saved = expanded(load.values[0]) / TRACKER
        named = (load.values[0], load.where) if saved.is_file() or "ref-load" not in case.training else None
    named = named or _named(case, STORED, inputs.torch_dist, case.training, "ref-load", "load")
    found = _resolved(case, STORED, *named) if named else None
    if found is None or not named:
        return None
    path = found.path
    if not is_torch_dist(path):
        finding = Finding(
            "not-torch-dist",
            "this is no torch-dist checkpoint",
            named[1] or str(path),
            "a directory with a tracker file or .metadata",
            str(path),
            "convert the model, or correct the path",
        )
        if not named[1]:
            raise NotFound(finding)
        case.found(STORED, finding)
        return None
    try:
        store = open_checkpoint(path)
        carried = (store.root / HF_COPY / CONFIG).is_file()
        case.stored = describe(store, None if carried or case.target is None else case.target.read.config_path)
    except CkptError as problem:
        for finding in problem.findings:
            case.found(STORED, finding)
        return None
    return path


def _open_draft(case: Case, inputs: Inputs) -> None:
    named = (
        _named(case, DRAFT, inputs.draft, case.serving, *PATH) if inputs.draft or case.serving.first(*PATH) else None
    )
    if named and (found := _resolved(case, DRAFT, *named)):
        case.draft, case.far = found.path, not found.complete

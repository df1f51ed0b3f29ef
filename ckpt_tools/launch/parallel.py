"""Do tensor, pipeline, expert and context parallel sizes divide what they cut? Rules of megatron-core and of SGLang."""

from __future__ import annotations

from ..errors import Finding
from ..families.arguments import indivisible
from ..families.dims import Dims
from .case import Case, plural
from .flags import Flags

TP, PP, EP, WORLD, STAGES = "tensor parallel", "pipeline parallel", "expert parallel", "world size", "pipeline stages"
SERVER = "server parallel"
DP = ("dp-size", "data-parallel-size")


def check_parallel(case: Case) -> None:
    """The training side."""
    if case.dims is None or not case.training.given:
        case.skipped(TP, "no training flags" if case.dims else "no checkpoint whose family is known")
        return
    _check_tensor(case, case.dims)
    _check_pipeline(case, case.dims)
    _check_experts(case, case.dims)
    _check_world(case)


def _size(case: Case, *names: str) -> int:
    """A parallel size: 1 if it is not given or cannot be."""
    return case.size(case.training, *names) or 1


def _wrong(case: Case, name: str, code: str, what: str, expected: str, actual: str, flag: str) -> None:
    given = case.training.first(flag)
    case.found(name, Finding(code, what, given.where if given else "", expected, actual, f"choose another --{flag}"))


def _check_tensor(case: Case, d: Dims) -> None:
    flag, tp = "tensor-model-parallel-size", _size(case, "tensor-model-parallel-size")
    problems = indivisible(d, tp)
    if d.moe and d.moe.shared_size % tp:
        problems.append(f"shared expert size {d.moe.shared_size}")
    if d.gdn and "spec" not in case.training:  # slime's plugin does not cut these layers
        heads = (("linear key heads", d.gdn.key_heads), ("linear value heads", d.gdn.value_heads))
        problems += [f"{what} {count}" for what, count in heads if count % tp]
    if problems:
        what = f"{tp} tensor-parallel ranks cannot share the model evenly"
        _wrong(case, TP, "tp-not-divisible", what, f"multiples of {tp}", ", ".join(problems), flag)
    else:
        case.passed(TP, f"multiples of {tp}", f"{d.num_attention_heads} heads, {d.num_key_value_heads} groups")


def _check_pipeline(case: Case, d: Dims) -> None:
    """How megatron-core deals layers to stages (transformer_block.get_num_layers_to_build)."""
    flag, pp = "pipeline-model-parallel-size", _size(case, "pipeline-model-parallel-size")
    first = case.number(case.training, "decoder-first-pipeline-num-layers")
    last = case.number(case.training, "decoder-last-pipeline-num-layers")
    if "pipeline-model-parallel-layout" in case.training:
        case.skipped(PP, "a layout of its own")
        return
    if pp == 1 and (first is not None or last is not None):
        _wrong(
            case,
            PP,
            "pp-not-divisible",
            "a first or last stage of its own needs several stages",
            "2 or more stages",
            "1",
            flag,
        )
        return
    extra = sum(f"account-for-{kind}-in-pipeline-split" in case.training for kind in ("embedding", "loss"))
    layers = d.num_hidden_layers + extra - (first or 0) - (last or 0)
    stages = pp - (first is not None) - (last is not None)
    if layers < 0 or (stages == 0 and layers) or (stages and layers % stages) or (stages > 0 and layers < stages):
        actual = f"{layers} layers for {plural(stages, 'stage')}"
        what = "the layers do not fall evenly on the pipeline stages"
        _wrong(case, PP, "pp-not-divisible", what, f"a multiple of {stages} layers", actual, flag)
        return
    each = layers // stages if stages else 0
    counts = [*([first] if first is not None else []), *[each] * stages, *([last] if last is not None else [])]
    case.passed(PP, plural(pp, "stage"), f"{d.num_hidden_layers} layers as {'+'.join(map(str, counts))}")
    _check_virtual(case, counts)
    if not extra:
        _check_index_sharing(case, d, counts)


def _check_virtual(case: Case, counts: list[int]) -> None:
    per_stage = case.number(case.training, "num-layers-per-virtual-pipeline-stage")
    stages = case.number(case.training, "num-virtual-stages-per-pipeline-rank")
    flag = "num-layers-per-virtual-pipeline-stage" if per_stage is not None else "num-virtual-stages-per-pipeline-rank"
    divisor = per_stage if per_stage is not None else stages
    if divisor is None:
        return
    if divisor < 1 or any(count % divisor for count in counts):
        what = "the layers of a pipeline rank do not fall evenly on its virtual stages"
        _wrong(case, PP, "vpp-not-divisible", what, f"multiples of {divisor}", f"{counts} layers", flag)


def _check_index_sharing(case: Case, d: Dims, counts: list[int]) -> None:
    """Sparse attention whose layers share an indexer: a stage must begin with a layer that has one (GLM-5.2)."""
    if d.mla is None or not d.mla.indexer or len(d.mla.indexer) == d.num_hidden_layers or len(counts) == 1:
        return
    starts = [sum(counts[:number]) for number in range(len(counts))]
    if wrong := [start for start in starts if start not in d.mla.indexer]:
        _wrong(
            case,
            STAGES,
            "stage-without-indexer",
            "a pipeline stage begins with a layer that takes its indices from the layer before",
            f"stages that begin with one of the layers {list(d.mla.indexer)}",
            f"stages begin with {starts}; layers {wrong} have no indexer",
            "decoder-first-pipeline-num-layers",
        )
    else:
        case.passed(STAGES, "begin with an indexer", str(starts))


def _check_experts(case: Case, d: Dims) -> None:
    ep, flag = _size(case, "expert-model-parallel-size"), "expert-model-parallel-size"
    etp = _size(case, "expert-tensor-parallel-size", "tensor-model-parallel-size")
    if d.moe is None:
        if ep > 1:
            _wrong(case, EP, "ep-not-divisible", "the model has no experts to share", "1", str(ep), flag)
        return
    if d.moe.num_experts % ep:
        what = "the experts do not fall evenly on the ranks"
        _wrong(case, EP, "ep-not-divisible", what, f"a divisor of {d.moe.num_experts}", str(ep), flag)
    elif d.moe.intermediate_size % etp:
        what = "expert tensor parallelism does not divide the experts"
        wanted = f"a divisor of {d.moe.intermediate_size}"
        _wrong(case, EP, "ep-not-divisible", what, wanted, str(etp), "expert-tensor-parallel-size")
    else:
        case.passed(EP, f"{d.moe.num_experts} experts", f"{d.moe.num_experts // ep} on each of {plural(ep, 'rank')}")


def _check_world(case: Case) -> None:
    nodes, each = (case.size(case.training, f"actor-num-{kind}") for kind in ("nodes", "gpus-per-node"))
    if nodes is None or each is None:
        case.skipped(WORLD, "the script does not say how many GPUs train")
        return
    tp, pp = _size(case, "tensor-model-parallel-size"), _size(case, "pipeline-model-parallel-size")
    cp, ep = _size(case, "context-parallel-size"), _size(case, "expert-model-parallel-size")
    etp = _size(case, "expert-tensor-parallel-size", "tensor-model-parallel-size")
    world = nodes * each
    dense = (tp * pp * cp, f"TP {tp} x PP {pp} x CP {cp}")
    experts = (etp * ep * pp, f"expert TP {etp} x EP {ep} x PP {pp}")
    for size, what in (dense, *([experts] if case.dims and case.dims.moe else [])):
        if world < 1 or world % size:
            shown = f"a multiple of {size} ({what})"
            _wrong(
                case,
                WORLD,
                "world-not-divisible",
                "the GPUs do not make whole groups",
                shown,
                f"{world} GPUs",
                "actor-num-nodes",
            )
            return
    case.passed(WORLD, f"a multiple of {dense[0]} ({dense[1]})", f"{world} GPUs")


def server_ranks(case: Case) -> tuple[int, int] | None:
    """(tensor-parallel ranks of an engine, ranks that share its attention); None if the flags do not say."""
    flags, (total, pp) = case.serving, _engine(case)
    if total and total % pp:
        return None
    tp = total // pp if total else case.size(flags, "tp-size", "tensor-parallel-size", "tp")
    if tp is None:
        return None
    dp = (case.size(flags, *DP) or 1) if "enable-dp-attention" in flags else 1
    return (tp, tp // dp) if tp % dp == 0 else (tp, 0)


def _engine(case: Case) -> tuple[int | None, int]:
    """(GPUs of an engine where slime says it, pipeline stages)."""
    total = case.size(case.training, "rollout-num-gpus-per-engine") if case.slime else None
    return total, case.size(case.serving, "pp-size", "pipeline-parallel-size") or 1


def check_server_parallel(case: Case) -> None:
    """The serving side: SGLang shares attention heads over TP / DP ranks and experts over EP ranks."""
    if case.dims is None or not case.serving.given:
        case.skipped(SERVER, "no serving flags" if case.dims else "no checkpoint whose family is known")
        return
    flags, d = case.serving, case.dims
    if case.slime and (case.size(flags, *DP) or 1) > 1 and "enable-dp-attention" not in flags:
        _server_wrong(
            case, "data parallelism inside an engine is for attention", "--sglang-enable-dp-attention", "absent", flags
        )
        return
    total, pp = _engine(case)
    if total and total % pp:
        what = "the pipeline stages do not divide the engine"
        _server_wrong(case, what, f"a multiple of {plural(pp, 'stage')}", plural(total, "GPU"), flags)
        return
    if (ranks := server_ranks(case)) is None:
        case.skipped(SERVER, "the flags do not say how many GPUs an engine has")
        return
    tp, attention = ranks
    ep = case.size(flags, "ep-size", "expert-parallel-size", "ep") or 1
    groups = d.num_key_value_heads
    if not attention:
        _server_wrong(
            case, "the data-parallel ranks do not divide the engine", f"a divisor of {tp}", "--dp-size", flags
        )
    elif d.num_attention_heads % attention or (d.mla is None and groups % attention and attention % groups):
        what = f"{attention} ranks cannot share the attention evenly"
        _server_wrong(case, what, f"multiples of {attention}", f"{d.num_attention_heads} heads, {groups} groups", flags)
    elif d.moe and (tp % ep or d.moe.num_experts % ep):
        wanted = f"a divisor of {tp} GPUs and of {d.moe.num_experts} experts"
        _server_wrong(case, "the experts do not fall evenly on the ranks", wanted, f"--ep-size {ep}", flags)
    else:
        case.passed(SERVER, f"{plural(tp, 'GPU')} an engine", f"attention over {plural(attention, 'rank')}")


def _server_wrong(case: Case, what: str, expected: str, actual: str, flags: Flags) -> None:
    given = flags.first(*DP, "ep-size", "pp-size", "tp-size")
    where = given.where if given else ""
    case.found(SERVER, Finding("server-parallel", what, where, expected, actual, "choose other sizes for the engine"))

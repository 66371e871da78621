"""Writes the members of the generated struct `Chain`: the calls that the loops in `pointwise.cuh` and `rows.cuh` make."""

from __future__ import annotations

from kernelwright.families.chain_cuda.functor import CTYPES, IDENTITY, JOIN, Functor, safe


def block(head: str, body: list[str]) -> list[str]:
    """A function or loop with its body indented; an empty body is one line."""
    return [f"{head} {{", *(f"    {line}" for line in body), "}"] if body else [f"{head} {{}}"]


def over_elements(body: list[str]) -> list[str]:
    return ["#pragma unroll", *block("for (int j = 0; j < VEC; j++)", body)] if body else []


def function(head: str, body: list[str]) -> list[str]:
    return ["", *block(f"__device__ __forceinline__ {head}", body)]


def members(functor: Functor) -> list[tuple[str, str]]:
    """(C++ type, name) of the struct's data, in the order of its initialiser: pointers, strides, sizes."""
    out = []
    for name, tensor in functor.chain.tensors.items():
        const = "" if name in functor.chain.program.outputs else "const "
        out.append((f"{const}{CTYPES[tensor.dtype]}*", safe(name)))
        if strided(functor, name):
            out.append(("long long", f"ld_{safe(name)}"))
    return [*out, ("int", "cols")]


def shape_of(functor: Functor, name: str) -> str:
    """`full`, `row`, `col` or `one`."""
    chain = functor.chain
    outputs: dict[str, int] = chain.program.outputs
    if name in outputs:
        return chain.nodes[outputs[name]].shape
    return next((n.shape for n in chain.nodes if n.op == "input" and n.name == name), "one")


def strided(functor: Functor, name: str) -> bool:
    """Whether the tensor has a row stride: matrices, and per-row values stored as (rows, 1)."""
    shape, kind = functor.chain.tensors[name].shape, shape_of(functor, name)
    return kind == "full" or (kind == "row" and len(shape) > 1 and shape[-1] == 1)


def _at_row(functor: Functor, name: str) -> str:
    return f"{safe(name)} + row * ld_{safe(name)}" if strided(functor, name) else f"{safe(name)} + row"


def struct(functor: Functor) -> str:
    """The whole struct, for vectors of V elements."""
    lines = ["static constexpr int VEC = V;", *_traits(functor), ""]
    lines += [f"{kind} {name};" for kind, name in members(functor)]
    lines += ["", *_records(functor)]
    if functor.rotated:
        lines += [
            "",
            "// rotate_half(x) = cat(-x[cols / 2 :], x[: cols / 2]): where the other half's element lies",
            "__device__ __forceinline__ int partner(int col) const {",
            "    return col < cols - cols / 2 ? col + cols / 2 : col - (cols - cols / 2);",
            "}",
        ]
    lines += _loads(functor)
    for stage in range(functor.chain.stages):
        lines += _stage(functor, stage)
    lines += _stores(functor)
    body = "\n".join(f"    {line}" if line and not line.startswith("#") else line for line in lines)
    return f"template <int V>\nstruct Chain {{\n{body}\n}};\n"


def _traits(functor: Functor) -> list[str]:
    chain = functor.chain
    if not chain.stages and not chain.outputs(full=False):
        return []
    widest = max((len(chain.collectives(s, op)) for s in range(chain.stages) for op in ("reduce", "scan")), default=1)
    return [
        f"static constexpr int STAGES = {chain.stages};",
        f"static constexpr int WIDEST = {widest};  // most values of one collective",
        f"static constexpr int FULL_OUTPUTS = {len(chain.outputs(full=True))};",
    ]


def _records(functor: Functor) -> list[str]:
    """What a thread holds: of one vector, of one vector's columns, of one row."""
    chain = functor.chain
    records: dict[str, tuple[list[str], str]] = {
        "Slot": ([], "one vector of a row: inputs as stored, and values kept between stages"),
        "Columns": ([], "the same columns of the per-column inputs"),
        "Row": ([], "values of one row"),
    }
    for shape, record in (("full", "Slot"), ("col", "Columns")):
        for i in chain.inputs(shape):
            for suffix in ("", "_partner") if i in functor.rotated else ("",):
                records[record][0].append(f"Vec<{CTYPES[chain.tensor(i).dtype]}, V> {functor.name(i)}{suffix};")
    records["Slot"][0].extend(f"float {functor.name(i)}[V];" for i in functor.kept)
    fields = records["Row"][0]
    for i in functor.row_fields():
        integer = chain.nodes[i].op == "input" and chain.tensor(i).dtype in ("int32", "int64")
        fields.append(f"{'long long' if integer else 'float'} {functor.name(i)};")
        if i in functor.reciprocals:
            fields.append(f"{'float' if functor.fast else 'Divisor'} by_{functor.name(i)};")
    for pick in functor.picks():
        fields.extend(f"float {functor.name(i)}_at{pick};" for i in functor.picked_inputs(pick))
    lines = []
    for record, (body, comment) in records.items():
        lines += [*block(f"struct {record}", body)[:-1], "};"] if body else [f"struct {record} {{}};"]
        at = -len(body) - 2 if body else -1
        lines[at] += f"  // {comment}"
    return lines


def _loads(functor: Functor) -> list[str]:
    chain = functor.chain
    full, columns = [], ["Columns columns{};"]
    for shape, body in (("full", full), ("col", columns)):
        for i in chain.inputs(shape):
            name = functor.name(i)
            base = _at_row(functor, chain.nodes[i].name) if shape == "full" else name
            record, how = ("slot", functor.loads) if shape == "full" else ("columns", "PLAIN")
            for suffix, col in (("", "col"), ("_partner", "partner(col)")) if i in functor.rotated else (("", "col"),):
                kind = CTYPES[chain.tensor(i).dtype]
                body.append(f"{record}.{name}{suffix} = kw::load<{kind}, V, Access::{how}>({base} + {col});")
    row = ["Row r{};"]
    for i in chain.inputs("row") + chain.inputs("one"):
        if i in functor.live:
            source = chain.nodes[i].name
            place = _at_row(functor, source) if chain.nodes[i].shape == "row" else safe(source)
            integer = chain.tensor(i).dtype in ("int32", "int64")
            row.append(f"r.{functor.name(i)} = {f'__ldca({place})' if integer else f'load_one({place})'};")
    for pick in functor.picks():
        target = f"r.{functor.name(chain.nodes[pick].args[1])}"
        row.append(f"const bool inside{pick} = {target} >= 0 && {target} < cols;  // outside, the result is NaN")
        for i in functor.picked_inputs(pick):
            base = _at_row(functor, chain.nodes[i].name) if chain.nodes[i].shape == "full" else functor.name(i)
            row.append(f"r.{functor.name(i)}_at{pick} = inside{pick} ? load_one({base} + {target}) : NOT_A_NUMBER;")
    row += functor.row_values(0)
    return [
        *function("void load(Slot& slot, long long row, Index col) const", full),
        *function("Columns columns(Index col) const", [*columns, "return columns;"]),
        *function("Row row(long long row) const", [*row, "return r;"]),
    ]


def _stage(functor: Functor, stage: int) -> list[str]:
    """accumulate, combine and finish of one stage, and where its running sums lie."""
    chain = functor.chain
    reduces, scans = chain.collectives(stage, "reduce"), chain.collectives(stage, "scan")
    n, tag = len(reduces), f"Stage<{stage}>"
    known = {i for i in functor.kept if functor.first_stage(i) < stage}
    body = functor.elements(chain.stage_roots(stage), known)
    join = []
    for k, i in enumerate(reduces):
        node = chain.nodes[i]
        value = functor.operand(node.args[0])
        body.append(f"p.v[{k}] = {JOIN[node.name].format(f'p.v[{k}]', value)};  // {functor.name(i)}")
        join.append(JOIN[node.name].format(f"a.v[{k}]", f"b.v[{k}]"))
    body += [f"slot.{functor.name(i)}[j] = {functor.operand(chain.nodes[i].args[0])};" for i in scans]
    identity = ", ".join(IDENTITY[chain.nodes[i].name] for i in reduces) or "0.0f"
    names = [f"{functor.name(i)} = {chain.nodes[i].name} of {functor.operand(chain.nodes[i].args[0])}" for i in reduces]
    names += [f"{functor.name(i)} = running sum of {functor.operand(chain.nodes[i].args[0])}" for i in scans]
    finish = [f"r.{functor.name(i)} = p.v[{k}];" for k, i in enumerate(reduces)] + functor.row_values(stage + 1)
    zero = [f"slot.{functor.name(i)}[j] = 0.0f;" for i in scans]
    lines = [
        "",
        f"// Stage {stage}: {', '.join(names)}",
        f"static constexpr __device__ int number({tag}) {{ return {stage}; }}",
        f"static constexpr __device__ int scans({tag}) {{ return {len(scans)}; }}",
        f"__device__ __forceinline__ Partial<{n}> identity({tag}) const {{ return {{{identity}}}; }}",
    ]
    arguments = "Slot& slot, const Columns& columns, const Row& r, int col"
    accumulate = [*_left(functor, body), *over_elements(body)]
    lines += function(f"void accumulate({tag}, Partial<{n}>& p, {arguments}) const", accumulate)
    lines += function(f"void skip({tag}, Slot& slot) const", over_elements(zero))
    if reduces:
        combine = [f"return {{{', '.join(join)}}};"]
        lines += function(f"Partial<{n}> combine({tag}, Partial<{n}> a, Partial<{n}> b) const", combine)
    if scans:
        scanned = " : ".join(f"k == {k} ? slot.{functor.name(i)}" for k, i in enumerate(scans[:-1]))
        scanned = f"{scanned} : slot.{functor.name(scans[-1])}" if scanned else f"slot.{functor.name(scans[-1])}"
        lines += function(f"float* scanned({tag}, Slot& slot, int k) const", [f"return {scanned};"])
    return lines + function(f"void finish({tag}, Row& r, const Partial<{n}>& p) const", finish)


def _left(functor: Functor, body: list[str]) -> list[str]:
    used = functor.rotated and any("left ?" in line for line in body)
    return ["const bool left = col < cols - cols / 2;"] if used else []


def _stores(functor: Functor) -> list[str]:
    chain = functor.chain
    known = {i for i in functor.kept if functor.first_stage(i) < chain.stages}
    full = chain.outputs(full=True)
    body = functor.elements(list(full.values()), known)
    arrays = []
    store = []
    for k, (name, i) in enumerate(full.items()):
        arrays.append(f"float out{k}[V];")
        body.append(f"out{k}[j] = {functor.operand(i)};")
        kind = CTYPES[chain.tensors[name].dtype]
        store.append(f"kw::store<{kind}, V, Access::{functor.stores}>({_at_row(functor, name)} + col, out{k});")
    lines = function(
        "void store(Slot& slot, const Columns& columns, const Row& r, long long row, Index col) const",
        [*arrays, *_left(functor, body), *over_elements(body), *store] if full else [],
    )
    if not chain.stages and not chain.outputs(full=False):
        return lines
    rows = []
    for name, i in chain.outputs(full=False).items():
        kind = CTYPES[chain.tensors[name].dtype]
        rows.append(f"kw::store<{kind}, 1, Access::PLAIN>({_at_row(functor, name)}, {{{functor.operand(i)}}});")
    return lines + function("void store_row(const Row& r, long long row) const", rows)

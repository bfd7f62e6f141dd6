"""A small expression layer over llvmlite, so that a kernel reads like the loop it is.

A kernel is written in Python that *builds* LLVM IR: `Fn` opens a function, `Val` overloads the operators, `fn.loop` is a counted
loop, `fn.var` a mutable local that LLVM's mem2reg turns into registers. Addresses are plain 64-bit integers, so pointer
arithmetic is ordinary arithmetic and no LLVM pointer type ever shows.

Invariant: nothing here sets a fast-math flag, and a fused multiply-add appears only where a kernel says `fn.fma`. So the order
and rounding of every float operation are those of the Python source, whatever LLVM does with the instructions around it; the
row-invariance promise rests on that.

Rejected: numba (slow to import and to compile, and its loops never become the int8 dot instructions); C with a compiler at
install time (a compiler is what our users do not have).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
VOID = ir.VoidType()


def vec(elem: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(elem, lanes)


def elem_of(ty: ir.Type) -> ir.Type:
    return ty.element if isinstance(ty, ir.VectorType) else ty


def is_float(ty: ir.Type) -> bool:
    return isinstance(elem_of(ty), ir.HalfType | ir.FloatType | ir.DoubleType)


def const(ty: ir.Type, value: float) -> ir.Constant:
    """A constant of scalar or vector type `ty`; ints wrap to the width."""
    elem = elem_of(ty)
    if isinstance(elem, ir.IntType):
        value = int(value) & ((1 << elem.width) - 1)
    return ir.Constant(ty, [value] * ty.count) if isinstance(ty, ir.VectorType) else ir.Constant(ty, value)


class Val:
    """An LLVM value with Python operators. Integer `<`, `//` and `%` are signed; `>>` is logical (see `ashr`)."""

    __slots__ = ("fn", "v")

    def __init__(self, fn: Fn, v: ir.Value):
        self.fn, self.v = fn, v

    @property
    def type(self) -> ir.Type:
        return self.v.type

    def _other(self, x: Val | float) -> ir.Value:
        return x.v if isinstance(x, Val) else const(self.type, x)

    def _bin(self, x: Val | float, iop: str, fop: str | None, swap: bool = False) -> Val:
        a, b = self.v, self._other(x)
        if swap:
            a, b = b, a
        op = fop if is_float(self.type) else iop
        assert op, "operation has no float form"
        return Val(self.fn, getattr(self.fn.b, op)(a, b))

    # fmt: off
    def __add__(self, x): return self._bin(x, "add", "fadd")
    def __radd__(self, x): return self._bin(x, "add", "fadd", True)
    def __sub__(self, x): return self._bin(x, "sub", "fsub")
    def __rsub__(self, x): return self._bin(x, "sub", "fsub", True)
    def __mul__(self, x): return self._bin(x, "mul", "fmul")
    def __rmul__(self, x): return self._bin(x, "mul", "fmul", True)
    def __truediv__(self, x): return self._bin(x, "sdiv", "fdiv")
    def __rtruediv__(self, x): return self._bin(x, "sdiv", "fdiv", True)
    def __floordiv__(self, x): return self._bin(x, "sdiv", None)
    def __mod__(self, x): return self._bin(x, "srem", None)
    def __and__(self, x): return self._bin(x, "and_", None)
    def __or__(self, x): return self._bin(x, "or_", None)
    def __xor__(self, x): return self._bin(x, "xor", None)
    def __lshift__(self, x): return self._bin(x, "shl", None) if not _is_zero(x) else self
    def __rshift__(self, x): return self._bin(x, "lshr", None) if not _is_zero(x) else self
    def ashr(self, x): return self._bin(x, "ashr", None)
    # fmt: on

    def cmp(self, op: str, x: Val | float) -> Val:
        b = self.fn.b
        call = b.fcmp_ordered if is_float(self.type) else b.icmp_signed
        return Val(self.fn, call(op, self.v, self._other(x)))

    # fmt: off
    def __lt__(self, x): return self.cmp("<", x)
    def __le__(self, x): return self.cmp("<=", x)
    def __gt__(self, x): return self.cmp(">", x)
    def __ge__(self, x): return self.cmp(">=", x)
    def eq(self, x): return self.cmp("==", x)
    def ne(self, x): return self.cmp("!=", x)
    # fmt: on


def _is_zero(x: object) -> bool:
    return isinstance(x, int) and x == 0


class Var:
    """A mutable local. `get()` reads, `set()` writes; LLVM promotes it to a register."""

    def __init__(self, fn: Fn, init: Val):
        with fn.b.goto_entry_block():
            self.slot = fn.b.alloca(init.type)
        self.fn = fn
        self.set(init)

    def get(self) -> Val:
        return Val(self.fn, self.fn.b.load(self.slot))

    def set(self, v: Val) -> None:
        self.fn.b.store(v.v, self.slot)


class Fn:
    """A function under construction. `args` are Vals in order; finish with `ret()`."""

    def __init__(self, module: ir.Module, name: str, arg_types: list[ir.Type], ret: ir.Type = VOID):
        self.module = module
        self.func = ir.Function(module, ir.FunctionType(ret, arg_types), name)
        self.func.attributes.add("nounwind")
        self.b = ir.IRBuilder(self.func.append_basic_block("entry"))
        self.args = [Val(self, a) for a in self.func.args]

    def ret(self, v: Val | None = None) -> None:
        if v is None:
            self.b.ret_void()
        else:
            self.b.ret(v.v)

    # --- values ---
    def c(self, ty: ir.Type, value: float) -> Val:
        return Val(self, const(ty, value))

    def i64(self, value: int) -> Val:
        return self.c(I64, value)

    def var(self, init: Val) -> Var:
        return Var(self, init)

    def splat(self, x: Val, lanes: int) -> Val:
        if lanes == 1:
            return x
        undef = ir.Constant(vec(x.type, lanes), ir.Undefined)
        one = self.b.insert_element(undef, x.v, ir.Constant(I32, 0))
        return Val(self, self.b.shuffle_vector(one, undef, ir.Constant(vec(I32, lanes), [0] * lanes)))

    def shuffle(self, a: Val, b: Val, idx: list[int]) -> Val:
        return Val(self, self.b.shuffle_vector(a.v, b.v, ir.Constant(vec(I32, len(idx)), idx)))

    def part(self, a: Val, lo: int, n: int) -> Val:
        """Lanes lo..lo+n of a vector."""
        return self.shuffle(a, a, list(range(lo, lo + n)))

    def lane(self, a: Val, i: int) -> Val:
        return Val(self, self.b.extract_element(a.v, ir.Constant(I32, i)))

    def select(self, cond: Val, a: Val, b: Val) -> Val:
        return Val(self, self.b.select(cond.v, a.v, b.v))

    def bitcast(self, x: Val, ty: ir.Type) -> Val:
        return x if x.type == ty else Val(self, self.b.bitcast(x.v, ty))

    def zext(self, x: Val, ty: ir.Type) -> Val:
        return Val(self, self.b.zext(x.v, ty))

    def sext(self, x: Val, ty: ir.Type) -> Val:
        return Val(self, self.b.sext(x.v, ty))

    def trunc(self, x: Val, ty: ir.Type) -> Val:
        return Val(self, self.b.trunc(x.v, ty))

    def to_float(self, x: Val) -> Val:
        """Signed int -> f32, lane by lane."""
        ty = vec(F32, x.type.count) if isinstance(x.type, ir.VectorType) else F32
        return Val(self, self.b.sitofp(x.v, ty))

    def fpext(self, x: Val, ty: ir.Type) -> Val:
        return Val(self, self.b.fpext(x.v, ty))

    def fptrunc(self, x: Val, ty: ir.Type) -> Val:
        return Val(self, self.b.fptrunc(x.v, ty))

    def pinned(self, x: Val) -> Val:
        """`x` itself, through an empty piece of inline assembly: LLVM cannot reorder a chain of sums across it. (Sums of integers
        may be reordered freely; as trees they take more registers than there are.)"""
        same = ir.InlineAsm(ir.FunctionType(x.type, [x.type]), "", "=x,0")
        return Val(self, self.b.call(same, [x.v]))

    def min(self, a: Val, b: Val) -> Val:
        return self.select(a < b, a, b)

    def max(self, a: Val, b: Val) -> Val:
        return self.select(a > b, a, b)

    # --- memory (addresses are i64) ---
    def load(self, addr: Val, ty: ir.Type, align: int = 1) -> Val:
        r = self.b.load(self.b.inttoptr(addr.v, ir.PointerType(ty)))
        r.align = align
        return Val(self, r)

    def store(self, addr: Val, x: Val, align: int = 1) -> None:
        s = self.b.store(x.v, self.b.inttoptr(addr.v, ir.PointerType(x.type)))
        s.align = align

    def scratch(self, ty: ir.Type, align: int = 64) -> Val:
        """Address of a stack slot."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(ty)
            slot.align = align
        return Val(self, self.b.ptrtoint(slot, I64))

    def prefetch(self, addr: Val, once: bool = False) -> None:
        """Ask for the cache line at `addr`. `once`: it will be read once and shall push nothing else out of the caches."""
        f = self.declare("llvm.prefetch.p0", VOID, [ir.PointerType(I8), I32, I32, I32])
        how = (0, 0 if once else 3, 1)  # to read, locality, data
        self.b.call(f, [self.b.inttoptr(addr.v, ir.PointerType(I8)), *(ir.Constant(I32, n) for n in how)])

    # --- calls ---
    def declare(self, name: str, ret: ir.Type, args: list[ir.Type]) -> ir.Function:
        return self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(ret, args), name)

    def intrinsic(self, name: str, ret: ir.Type, *args: Val) -> Val:
        f = self.declare(name, ret, [a.type for a in args])
        return Val(self, self.b.call(f, [a.v for a in args]))

    def call(self, f: ir.Function, *args: Val) -> Val:
        return Val(self, self.b.call(f, [a.v for a in args]))

    def call_address(self, addr: Val, *args: Val) -> None:
        ty = ir.FunctionType(VOID, [a.type for a in args])
        self.b.call(self.b.inttoptr(addr.v, ir.PointerType(ty)), [a.v for a in args])

    def sqrt(self, x: Val) -> Val:
        return self.intrinsic(f"llvm.sqrt.{_suffix(x.type)}", x.type, x)

    def fma_call(self, a: Val, b: Val, c: Val) -> Val:
        return self.intrinsic(f"llvm.fma.{_suffix(a.type)}", a.type, a, b, c)

    # --- control ---
    @contextmanager
    def loop(self, lo: Val | int, hi: Val | int, step: int = 1) -> Iterator[Val]:
        """for i in range(lo, hi, step); the body may open further blocks."""
        lo = self.i64(lo) if isinstance(lo, int) else lo
        hi = self.i64(hi) if isinstance(hi, int) else hi
        before = self.b.block
        head, body, done = (self.func.append_basic_block(n) for n in ("head", "body", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        i = self.b.phi(I64)
        i.add_incoming(lo.v, before)
        self.b.cbranch(self.b.icmp_signed("<", i, hi.v), body, done)
        self.b.position_at_end(body)
        yield Val(self, i)
        i.add_incoming(self.b.add(i, const(I64, step)), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def when(self, cond: Val) -> Iterator[None]:
        with self.b.if_then(cond.v):
            yield

    @contextmanager
    def spin(self, wait_while) -> Iterator[None]:
        """while wait_while(): body."""
        head, body, done = (self.func.append_basic_block(n) for n in ("spin", "spin.body", "spin.done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(wait_while().v, body, done)
        self.b.position_at_end(body)
        yield
        self.b.branch(head)
        self.b.position_at_end(done)


def _suffix(ty: ir.Type) -> str:
    name = {F16: "f16", F32: "f32", F64: "f64"}[elem_of(ty)]
    return f"v{ty.count}{name}" if isinstance(ty, ir.VectorType) else name

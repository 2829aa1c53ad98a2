"""Named tuples that compiled functions pass as one pointer.

Numba passes a tuple by value: one of 40 arrays is 270 values for LLVM, at every call and every
mention of it, and most of what compiling such a function takes. What a pointer leads to never
changes during a call, and LLVM is told so: no field is read twice.
"""

# Numba has no annotations.
# mypy: disable-error-code="attr-defined,misc,no-untyped-call,override,untyped-decorator"

from __future__ import annotations

from typing import Any, TypeVar

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.pythonapi import NativeValue, unbox
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.core.typing.typeof import typeof, typeof_impl

T = TypeVar("T", bound=type[tuple[Any, ...]])

_POINTER = ir.IntType(8).as_pointer()


class Reference(types.Type):
    """The type of a pointer to a named tuple."""

    def __init__(self, target: types.NamedTuple) -> None:
        self.target = target
        super().__init__(name=f"Reference({target})")


def by_reference(cls: T) -> T:
    """Let compiled functions take a class of named tuples as `Reference`.

    It is made by Python only, and not changed or returned by what is compiled.
    """

    @typeof_impl.register(cls)
    def typeof_instance(value: Any, context: Any) -> Reference | None:
        parts = [typeof(each, context.purpose) for each in value]
        return Reference(types.NamedTuple(parts, cls))

    return cls


@register_default(Reference)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Reference) -> None:
        super().__init__(manager, kind, _POINTER)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, kind: Reference, name: str) -> Any:
        fields = kind.target.fields
        return kind.target.types[fields.index(name)] if name in fields else None


@lower_getattr_generic(Reference)
def _read_field(context: Any, builder: Any, kind: Reference, value: Any, name: str) -> Any:
    target = context.get_value_type(kind.target)
    at = kind.target.fields.index(name)
    pointer = builder.bitcast(value, target.as_pointer())
    field = cgutils.gep_inbounds(builder, pointer, 0, at)
    found = _load(builder, field, target.elements[at])
    return impl_ret_borrowed(context, builder, kind.target.types[at], found)


def _load(builder: Any, pointer: Any, kind: Any) -> Any:
    """Part by part: of a whole that is loaded at once, LLVM forgets that it does not change."""
    if isinstance(kind, ir.ArrayType | ir.BaseStructType):
        found = ir.Constant(kind, ir.Undefined)
        for at in range(len(kind)):
            part = cgutils.gep_inbounds(builder, pointer, 0, at)
            found = builder.insert_value(found, _load(builder, part, kind.gep(_int(at))), at)
        return found
    found = builder.load(pointer)
    found.set_metadata("invariant.load", builder.module.add_metadata([]))
    return found


def _int(at: int) -> Any:
    return ir.Constant(ir.IntType(32), at)


@unbox(Reference)
def _from_python(kind: Reference, value: Any, c: Any) -> NativeValue:
    """In the frame of the wrapper, which lasts as long as the call.

    Instructions that LLVM cannot look into (none) stand between writing and reading: it may not
    take what was there before for what never changes.
    """
    found = c.unbox(kind.target, value)
    slot = c.builder.bitcast(cgutils.alloca_once_value(c.builder, found.value), _POINTER)
    signature = ir.FunctionType(_POINTER, [_POINTER])
    pointer = c.builder.asm(signature, "", "=r,0,~{memory}", [slot], side_effect=True)

    def clean_up() -> None:
        if found.cleanup is not None:
            found.cleanup()
        # Numba gives back the arrays of what it knows to hold arrays, and not of a pointer.
        if c.context.enable_nrt:
            c.context.nrt.decref(c.builder, kind.target, found.value)

    return NativeValue(pointer, cleanup=clean_up, is_error=found.is_error)

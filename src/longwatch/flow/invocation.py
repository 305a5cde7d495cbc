"""Calls the function of a node: passes values by name, converted to its types, and encodes its
result as JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from longwatch.errors import PermanentError, SerializationError
from longwatch.flow.nodes import CONTEXT_PARAMETER, Node
from longwatch.flow.schedules import encode_answer, to_answer
from longwatch.store.json_codec import Codec, CodecWording

MAX_VALUE_BYTES = 16 << 20
"""Bytes of one value as JSON."""
ELEMENT = ""
"""The name of a map's element among its inputs. No node has it."""
VALUE_CODEC: Codec[Any] = Codec(
    max_bytes=MAX_VALUE_BYTES,
    checks_fields=False,
    wording=CodecWording(
        "a value", "this node is of", "store it elsewhere and let the value say where", "kept"
    ),
)


class FunctionSignature(NamedTuple):
    """The parameters of a function by name, with their types where they are annotated."""

    types: dict[str, Any]
    required: frozenset[str]
    takes_any_keyword: bool
    takes_context: bool

    @property
    def element_parameter(self) -> str:
        """The parameter of a map's function that gets the element: its first one."""
        return next(iter(self.types))


@lru_cache(maxsize=1024)
def signature_of(function: Callable[..., Any]) -> FunctionSignature:
    parameters = inspect.signature(function).parameters
    hints = _type_hints(function)
    named = [
        each
        for each in parameters.values()
        if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        and each.name != CONTEXT_PARAMETER
    ]
    return FunctionSignature(
        {each.name: hints.get(each.name, Any) for each in named},
        frozenset(each.name for each in named if each.default is each.empty),
        any(each.kind is each.VAR_KEYWORD for each in parameters.values()),
        CONTEXT_PARAMETER in parameters,
    )


def arguments(node: Node, inputs: str, context: object) -> dict[str, Any]:
    """The arguments for the function of a node: the values of the nodes that it names.

    A node that is not set is passed as None, or left to the default of the parameter. Raises
    PermanentError for a value that does not fit the type of its parameter.
    """
    assert node.function is not None
    signature = signature_of(node.function)
    values: dict[str, str] = msgspec.json.decode(inputs)
    if ELEMENT in values:
        values[signature.element_parameter] = values.pop(ELEMENT)
    wanted = (
        values
        if signature.takes_any_keyword
        else {name: text for name, text in values.items() if name in signature.types}
    )
    given = {name: _convert_value(node, name, text, signature) for name, text in wanted.items()}
    given.update((name, None) for name in signature.required if name not in given)
    if signature.takes_context:
        given[CONTEXT_PARAMETER] = context
    return given


def add_element(inputs: str, element: str) -> str:
    """The inputs of a map with one of its elements, both as JSON."""
    return msgspec.json.encode({**msgspec.json.decode(inputs), ELEMENT: element}).decode()


def encode_result(node: Node, result: Any) -> bytes:
    """Encode a result as JSON; raises PermanentError for a result that is not JSON or too large,
    or that is no time of a tick.
    """
    if node.is_tick:
        return encode_answer(to_answer(node.name, result))
    try:
        return VALUE_CODEC.encode(result)
    except (SerializationError, ValueError) as error:
        raise PermanentError(f"the result of node {node.name!r} cannot be kept: {error}") from None


def _convert_value(node: Node, name: str, text: str, signature: FunctionSignature) -> Any:
    value = msgspec.json.decode(text)
    expected_type = signature.types.get(name, Any)
    if expected_type is Any:
        return value
    try:
        return msgspec.convert(value, expected_type, str_keys=True)
    except (msgspec.ValidationError, TypeError) as error:
        raise PermanentError(
            f"the value of {name!r} does not fit the function of node {node.name!r}: {error}"
        ) from None


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; none if they cannot be resolved."""
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001 - a name that only a type checker knows; then values are not converted
        return {}

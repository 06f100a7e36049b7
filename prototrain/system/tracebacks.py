"""Short error messages: one line, or a traceback with only the frames of the user's code."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prototrain.errors import PrototrainError, StepError
from prototrain.system.terminal import one_line

_OURS = str(Path(__file__).parent.parent) + os.sep
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_FRAMEWORK = re.compile(r"[/\\](site|dist)-packages[/\\](absl|keras|tensorflow|wrapt)[/\\]|__autograph_generated_file")
_HOOK = "in "  # the start of the note that `CallbackGroup` adds to an error of a callback's hook
_HEADLINE = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(.+?)", line (\d+).*\n(?:    .*\n)*', re.MULTILINE)
_OUT_OF_MEMORY = re.compile(r"\bOOM\b|[Oo]ut of memory|allocate|MemoryError")  # must not match a full disk
_NODE = re.compile(r"\{\{node ([^}]*)\}\}")
_NODE_NAME = re.compile(r"\[\[\{\{(?:function_)?node")
_FAILED_NODE = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})?(?:\{\{node )?([^\]}]*)")
_EMPTY_ELEMENT = "components but got"
"""Part of TensorFlow's message for a dataset element whose structure differs from the declared one."""
_XLA_LACKS = re.compile(r"unsupported operations when trying to compile graph .*?: (\w+)", re.DOTALL)
_GRAPH_NOISE = re.compile(
    r"\{\{.*?\}\} |Error in user-defined function passed to \S+ transformation with iterator: \S+: | \[Op:\w+\].*$"
)


def format_error(error: BaseException) -> str:
    """Format an exception and its causes without the frames of libraries, unless it has no other frames."""
    whole = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = whole
    while link is not None:
        own = [frame for frame in link.stack if not _is_noise(frame.filename)]
        if own or isinstance(error, SyntaxError):  # the message of a syntax error names the line
            link.stack = traceback.StackSummary.from_list(own)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(whole.format())


def for_terminal(error: Exception) -> str:
    """Format an error that ends a program: one line for errors of prototrain, else a traceback."""
    asked = out_of_memory(error)
    if asked is not None:
        text = in_one_line(error) if isinstance(error, PrototrainError) else asked
        cure = "a smaller model.batch_size, or a larger model.accumulate_steps, needs less memory"
        return f"prototrain: error: out of memory: {one_line(text)}; {cure}\n"
    if not isinstance(error, PrototrainError):
        return format_error(error)  # in the user's code, or a bug in prototrain
    inside = python_in_graph(error.__cause__) or ""
    return f"{inside}prototrain: error: {one_line(in_one_line(error))}\n"


def python_in_graph(error: BaseException | None) -> str | None:
    """Return the traceback in the message of TensorFlow's error for Python code in a graph, or None."""
    _, found, inside = str(error).partition(_HEADLINE)
    if error is None or not found:
        return None
    own = [frame[0] for frame in _FRAME.finditer(inside) if not _is_noise(frame[1])]
    return f"{_HEADLINE}\n{''.join(own)}{cause(error)}\n"


def failed_stage(error: Any) -> str:
    """Return the part of an iteration that raised a TensorFlow error: "data" or "model"."""
    # The message ends with the failed op and the ops around it. Ops of a dataset fail inside the op that reads it.
    text = str(error.message)
    if _EMPTY_ELEMENT in text:
        return "data"
    nodes = _FAILED_NODE.findall(text)
    outermost = text.rpartition("[Op:")[2] if "[Op:Iterator" in text else nodes[-1] if nodes else ""
    return "data" if "IteratorGetNext" in outermost else "model"


def source_line(error: BaseException, graph: Any = None) -> str | None:
    """Return the user's line that created the failed op, such as "model.py, line 12", or None if it is unknown.

    TensorFlow's error contains the frames only if `tf.function` called the function; otherwise it names an op of
    `graph`.
    """
    frames = [(found[1], int(found[2])) for found in _FRAME.finditer(str(error))]
    nodes = _NODE.findall(str(error))
    if not frames and nodes and graph is not None:
        from prototrain.tf_private import all_operations  # this module must not import TensorFlow

        name = f"/{nodes[-1]}/".replace("/gradient_tape/", "/")  # the name of a gradient begins with that of its op
        is_gradient = "/gradient_tape/" in f"/{nodes[-1]}"
        inside = [op for op in all_operations(graph) if f"/{op.name}/" in name]
        ops = [op for op in inside if is_gradient or name.endswith(f"/{op.name}/")]
        made = max(ops, key=lambda op: len(op.name)).traceback if ops else []
        frames = [(frame.filename, frame.lineno) for frame in made]
    return _last_line(frames)


def cause(error: BaseException) -> str:
    """Return the line of an error that describes the failure, without the names of graph nodes, or its type."""
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    if (found := _XLA_LACKS.search(text)) is not None:
        lacks = "a part of the batch, such as text" if found[1] == "_Arg" else found[1]
        return f"XLA (model.jit_compile) has no kernel for {lacks}"
    lines = [line.strip() for line in _NODE_NAME.split(text)[0].splitlines() if line.strip()]
    if not _is_of_tensorflow(error):
        return lines[0] if lines else type(error).__name__
    noise = ("Detected at node", "Graph execution error", "File ", "Traceback")
    said = [line for line in lines if not line.startswith(noise)] or lines[:1] or [type(error).__name__]
    return _GRAPH_NOISE.sub("", said[-1])


def in_one_line(error: BaseException) -> str:
    """Return an error's message in one line. Errors of other packages also get their type."""
    text = cause(error) if _is_of_tensorflow(error) else str(error)
    said = f"{text}{_raised_at(error)}" if isinstance(error, PrototrainError) else f"{type(error).__name__}: {text}"
    return " ".join(said.split())


def out_of_memory(error: BaseException | None) -> str | None:
    """Return one line that names the allocation and its place, if memory ran out, else None."""
    text = line = None
    while error is not None and text is None:
        if isinstance(error, MemoryError):
            text, line = str(error) or "Python has no memory left", user_line(error)
        elif _is_of_tensorflow(error) and _OUT_OF_MEMORY.search(cause(error)):
            text, line = cause(error), source_line(error) or user_line(error)
        if text is not None and line is not None:
            text = f"{text} ({line})"
        error = error.__cause__
    return None if text is None else " ".join(text.split())


def _raised_at(error: BaseException) -> str:
    """Return the user's line and the callback's hook that raised an error, in brackets, unless its message has them."""
    # A step fails in traced code, whose line is part of the message if it is known.
    text, line = str(error), None if isinstance(error, StepError) else user_line(error)
    hooks = [note for note in getattr(error, "__notes__", ()) if note.startswith(_HOOK)][:1]
    found = [line] if line is not None and line not in text else []
    found += [note for note in hooks if note.rpartition(" of ")[2] not in text or found]
    return f" ({', '.join(found)})" if found else ""


def user_line(error: BaseException) -> str | None:
    """Return the last line of the user's code in an error's traceback, such as "model.py, line 12", or None."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return _last_line((file, line) for file, line in frames if "-packages" not in file)


def _last_line(frames: Iterable[tuple[str, int]]) -> str | None:
    """Return the last frame in the user's code, such as "model.py, line 12", or None."""
    own = [(file, line) for file, line in frames if not _is_noise(file)]
    return f"{Path(own[-1][0]).name}, line {own[-1][1]}" if own else None


def _is_of_tensorflow(error: BaseException) -> bool:
    return any(kind.__module__.startswith("tensorflow.") for kind in type(error).__mro__)


def _is_noise(file: str) -> bool:
    in_library = file.startswith(_STANDARD_LIBRARY) and "-packages" not in file
    # "<string>" is the file of methods that `dataclass` generates.
    return in_library or file.startswith(("<frozen ", "<string>", _OURS)) or _FRAMEWORK.search(file) is not None

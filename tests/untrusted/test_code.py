"""Data becomes code nowhere in the harness, except where the controller gives orders to its own workers.

Torch is not ours: ``torch.distributed.checkpoint`` unpickles the metadata file of a checkpoint, and objects that ranks
send each other are pickles. Both happen in ranks, which run the subject's code anyway, and never in the controller.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.test_layering import MODULES, ROOT, below

#: Calls that make code, or objects that run code, of what they are given.
BUILTIN = frozenset({"eval", "exec", "compile", "__import__"})
MAKERS = frozenset({
    "pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle.loads", "_pickle.load", "marshal.load", "marshal.loads",
    "shelve.open", "dill.loads", "dill.load", "cloudpickle.loads", "cloudpickle.load", "joblib.load", "numpy.load",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "runpy.run_path", "runpy.run_module",
    "torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.export.load",
    "multiprocessing.connection.Client", "multiprocessing.connection.Listener", "multiprocessing.managers.BaseManager",
    "importlib.import_module", "torch.distributed.all_gather_object", "torch.distributed.gather_object",
    "torch.distributed.broadcast_object_list", "torch.distributed.scatter_object_list", "xmlrpc.client.loads",
}) | BUILTIN  # fmt: skip
#: Who does so, how often, and why it is no stranger's data.
KNOWN = {
    "fsdp_conformance.run_module": {"runpy.run_module": 1},  # pytest, or a module of ours, by constants
    "harness.worlds.workers.worker": {
        "pickle.loads": 2,
        "importlib.import_module": 1,
    },  # orders of the controller; its backend
    "harness.worlds.workers.device_check": {"importlib.import_module": 1},  # a backend's own, in ranks
    "harness.worlds.preload": {"importlib.import_module": 1},  # modules that the controller names
    "harness.cli": {"importlib.import_module": 1},  # our own commands, by constants
    "harness.doctor.imports": {"importlib.import_module": 5},  # torch and ours, by constants, and what the user names
    "harness.doctor.stages": {"importlib.import_module": 1},  # a module of ours, by a constant
    "harness.doctor.sharding": {"torch.distributed.all_gather_object": 1},  # in ranks, from each other
    "harness.doctor.device": {"importlib.import_module": 1},  # a module of torch, by a constant
    "harness.vendor.load": {"importlib.import_module": 1},  # what the user names as the subject
    "harness.vendor.api": {"importlib.import_module": 1},  # a module of torch, by a constant
    "harness.reproduce.suite_test": {"importlib.import_module": 1},  # a test of the suites, found in their own files
    "harness.reproduce.script": {"importlib.import_module": 1},  # the suites' templates, by a constant
    "harness.pytest_plugin.html_columns": {"importlib.import_module": 1},  # pytest-html, by a constant
    "suites.catalogue": {"importlib.import_module": 1},  # our own chapters
    "suites.saving.resume_programs": {"torch.load": 1},  # in ranks, and of weights only
    "suites.collectives.collective_users": {  # in ranks, from each other: what is judged
        f"torch.distributed.{name}": 1
        for name in ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
    },
}


def makers(text: str) -> Iterator[str]:
    """The calls, and other mentions, of what makes code of data, by their full names whatever they are imported as."""
    tree = ast.parse(text)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            first, dot, rest = _dotted(node).partition(".")
            full = names.get(first, first if first in BUILTIN or dot else "") + dot + rest
            if full in MAKERS:
                yield full


def _dotted(node: ast.AST) -> str:
    """``a.b.c`` of names and their attributes; "" of attributes of anything else."""
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            tops = [alias.name if alias.asname else alias.name.partition(".")[0] for alias in node.names]
            yield from ((alias.asname or top, top) for alias, top in zip(node.names, tops, strict=True))
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle\npickle.loads(x)", ["pickle.loads"]),
        ("import pickle as p\np.load(x)", ["pickle.load"]),
        ("from pickle import loads as f\nmap(f, x)", ["pickle.loads"]),
        ("import torch\ntorch.load(x)", ["torch.load"]),
        ("import torch.distributed as dist\ndist.gather_object(x)", ["torch.distributed.gather_object"]),
        ("from torch import load\nload(x)", ["torch.load"]),
        ("eval(x)", ["eval"]),
        ("from os import system\nsystem(x)", ["os.system"]),
        ("net.eval()\nself.load(x)\nre.compile(x)\njson.loads(x)", []),
    ],
)
def test_the_search_for_makers_of_code_sees_them(text: str, found: list[str]) -> None:
    """What makes code of data is found under any name, so that finding none means something."""
    assert list(makers(text)) == found


OURS = {name: MODULES[name] for name in below("fsdp_conformance", "harness", "suites", "reference_models")}
OURS["conftest"] = ROOT / "conftest.py"


@pytest.mark.parametrize("name", OURS)
def test_data_becomes_code_nowhere_else(name: str) -> None:
    """No module unpickles, evaluates or imports what it is given, but those that are known, as often as is known."""
    text = OURS[name].read_text(encoding="utf-8")
    assert Counter(makers(text)) == KNOWN.get(name, {})


def test_the_controller_receives_bytes_and_no_objects() -> None:
    """``Connection.recv`` unpickles what comes: ranks call ``recv_bytes``, and the controller reads its socket."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in OURS.items() if name.startswith("harness")}
    others = [
        "harness.simulated.process_group",
        "harness.worlds.attached.pmi",
    ]  # of tensors, in ranks; bytes of a socket
    assert [name for name, text in texts.items() if ".recv(" in text] == others
    receivers = [name for name, text in texts.items() if ".recv_bytes(" in text]
    assert receivers == ["harness.worlds.workers.worker"]

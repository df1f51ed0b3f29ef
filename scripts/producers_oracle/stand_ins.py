"""Empty modules for what speculators imports with its models and never calls to load or run one: clients of its trainer."""

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

CLIENTS = ("datasets", "openai", "openai.types", "openai.types.chat", "openai.types.completion")


class Empty(types.ModuleType):
    """A module in which every public name is a class without behaviour."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def install():
    absent = [name for name in CLIENTS if importlib.util.find_spec(name.partition(".")[0]) is None]
    for name in absent:
        module = Empty(name)
        module.__path__, module.__spec__ = [], ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module

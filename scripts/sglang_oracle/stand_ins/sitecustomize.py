"""Puts an empty `torchvision` in front: the one on PyPI is built for CUDA and does not load beside a CPU torch.

Python imports this module at start, since its folder is on PYTHONPATH. Loading heads touches nothing of torchvision.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class Empty(types.ModuleType):
    """A module in which every public name is a class without behaviour."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        class Members(type):
            def __getattr__(cls, member):
                if member.startswith("__"):
                    raise AttributeError(member)
                return member

        made = Members(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Empty(spec.name)
        module.__path__, module.__version__ = [], "0"
        return module

    def exec_module(self, module):
        """There is nothing to run."""


sys.meta_path.append(Finder())

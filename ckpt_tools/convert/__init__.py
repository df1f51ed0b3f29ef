"""Conversion in both directions."""

from .options import Options as Options
from .options import Result as Result
from .run import convert as convert

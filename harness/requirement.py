"""The public entry point of ``harness/requirements``: what a suite of requirements imports."""

from harness.data.kinds import WORLDS as WORLDS
from harness.requirements.marker import Requirement as Requirement
from harness.requirements.marker import kind_of as kind_of
from harness.requirements.marker import requirement as requirement
from harness.requirements.marker import requirement_of as requirement_of

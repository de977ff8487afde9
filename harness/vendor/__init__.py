"""What a vendor writes, and how it is found: an ``Implementation``, a ``Backend``, and torch's own as the example."""

from harness.vendor.api import LIMITS as LIMITS
from harness.vendor.api import ON_CPUS as ON_CPUS
from harness.vendor.api import Backend as Backend
from harness.vendor.api import Claimed as Claimed
from harness.vendor.api import GroupState as GroupState
from harness.vendor.api import Implementation as Implementation
from harness.vendor.api import Introspection as Introspection
from harness.vendor.api import ParameterOwner as ParameterOwner
from harness.vendor.api import StateDicts as StateDicts
from harness.vendor.api import Strategies as Strategies
from harness.vendor.features import CORE as CORE
from harness.vendor.features import TORCH_FSDP2 as TORCH_FSDP2
from harness.vendor.features import Feature as Feature
from harness.vendor.features import lacking as lacking
from harness.vendor.load import load_implementation as load_implementation

"""Implementations that go wrong where there are devices: with streams, pinned memory, and what lies elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from harness.vendor.torch_fsdp2 import _groups, _state
from tests.mutants import name_of
from tests.mutants.hooking import instead
from tests.mutants.making import mutant, right
from tests.mutants.modules.init_chapters import called_otherwise
from tests.mutants.passes.communication import changed, without
from tests.mutants.passes.event_chapter import given
from tests.mutants.passes.memory_chapter import keeps_a_copy


def waits_for_an_older_event(module: Any) -> None:
    """What is gathered first waits for what there was when the net was sharded, not for the event after a step."""
    old = torch.get_device_module().current_stream().record_event()
    instead("set_post_optim_event", lambda module, setter, event: setter(old))(module)


def waits_by_a_plain_stream(module: Any) -> None:
    """To a plain ``torch.Stream`` an event of the device's own class is one that was never recorded."""
    instead("set_post_optim_event", lambda module, setter, event: setter(torch.Event(event.device)))(module)


def lets_all_end(*_: Any) -> None:
    """The host waits for the device, so that nothing runs beside what it gives to it then."""
    torch.accelerator.synchronize()


def waits_after_forward(module: Any) -> None:
    """The next module's gather begins when this one's forward has ended."""
    module.register_forward_hook(lets_all_end)


def waits_if_listed(module: Any, setter: Callable[[list[Any]], None], listed: list[Any]) -> None:
    """The same where modules are to be gathered ahead, which are not."""
    waits_after_forward(module)


def waits_in_backward(module: Any) -> None:
    """Each module gathers itself only, reduces, and lets that end before the next one."""
    module.set_modules_to_backward_prefetch([module])
    module.register_full_backward_pre_hook(lets_all_end)
    module.register_full_backward_hook(lets_all_end)


def computes_after_it(module: Any, setter: Callable[[Any], None], hook: Callable[[Tensor], None]) -> None:
    """All later computation waits for what follows the all-reduce."""
    streams = torch.get_device_module()
    computes = streams.current_stream()

    def hooked(part: Tensor) -> None:
        hook(part)
        computes.wait_stream(streams.current_stream())

    setter(hooked)


def gathers_what_came_back(module: Any, to: Callable[..., Any], *where: Any) -> Any:
    """Of a net that has been elsewhere is gathered for good what came back, whatever is stepped."""
    before = {parameter.device for parameter in module.parameters()}
    to(*where)
    if before != {parameter.device for parameter in module.parameters()}:
        states = [_state(inner) for inner in module.modules() if isinstance(inner, FSDPModule)]
        for parameter in (each for state in states for group in _groups(state) for each in group.fsdp_params):
            parameter._sharded_param_data = parameter._sharded_param_data.clone()
    return module


@torch.no_grad()
def leaves_buffers(module: Any, **options: Any) -> Any:
    """Parameters move to the device of the mesh, and buffers to the CPU."""
    result = right.fully_shard(module, **options)
    for inner in module.modules():
        for name, buffer in inner.named_buffers(recurse=False):
            inner._buffers[name] = buffer.cpu()
    return result


def leaves_buffers_of_parallel_nets(module: Any, **options: Any) -> Any:
    """The same where tensor parallelism was there before."""
    is_parallel = any(isinstance(parameter, DTensor) for parameter in module.parameters())
    return (leaves_buffers if is_parallel else right.fully_shard)(module, **options)


def brings_inputs_back(module: Any) -> None:
    """A module computes with inputs on the CPU, wherever its parameters are."""
    module.register_forward_pre_hook(
        lambda module, args, kwargs: tree_map_only(Tensor, Tensor.cpu, (args, kwargs)), with_kwargs=True
    )


def gives_plain_dicts(module: Any) -> None:
    """A module gets a plain dict in place of one of another class."""

    def copy(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: dict(value) if isinstance(value, dict) else value for name, value in kwargs.items()}

    module.register_forward_pre_hook(copy, with_kwargs=True)


def leaves_what_is_elsewhere(module: Any, **options: Any) -> Any:
    """A module on a mesh of another device type is left as it is."""
    meshes = [parameter.device_mesh for parameter in module.parameters() if isinstance(parameter, DTensor)]
    if any(mesh.device_type != options["mesh"].device_type for mesh in meshes):
        return module
    return right.fully_shard(module, **options)


def is_offloaded(options: dict[str, Any]) -> bool:
    """Whether parameters rest on the CPU."""
    return options.get("offload_policy") is not None


def brings_it_back(module: nn.Module, options: dict[str, Any]) -> None:
    """Parameters that were given memory elsewhere than on the CPU are moved there in silence."""
    if is_offloaded(options):
        module.register_forward_pre_hook(lambda module, _: void(module.cpu()), prepend=True)


def void(_: object) -> None:
    """Nothing, whatever was done."""


def returns_before_gradients(module: Any, options: dict[str, Any]) -> None:
    """Backward returns while gradients are on their way to the CPU."""
    for group in _groups(_state(module)) if is_offloaded(options) else ():
        instead("finalize_backward", without_events)(group)


def without_events(group: Any, finalize: Callable[[], None]) -> None:
    """The end of backward, in which the host waits for no gradient."""
    for parameter in group.fsdp_params:
        parameter.grad_offload_event = None
    finalize()


def keeps_copies_on_the_device(module: Any, options: dict[str, Any]) -> None:
    """Of what rests on the CPU a copy stays where it was computed with."""
    if is_offloaded(options):
        keeps_a_copy(module)


def enters_copies_on_the_device(module: Any, options: dict[str, Any]) -> None:
    """State dicts of what is offloaded have entries on the device."""

    def move(module: nn.Module, entries: dict[str, Any], *_: Any) -> None:
        entries.update({name: entry.to(torch.accelerator.current_accelerator()) for name, entry in entries.items()})

    if is_offloaded(options):
        module.register_state_dict_post_hook(move)


def without_pinning(options: dict[str, Any]) -> dict[str, Any]:
    """The policy with ordinary memory."""
    return (
        {**options, "offload_policy": right.cpu_offload_policy(pin_memory=False)} if is_offloaded(options) else options
    )


def without_policy(options: dict[str, Any]) -> dict[str, Any]:
    """Offload in name only."""
    return {name: value for name, value in options.items() if name != "offload_policy"}


def replicates_in_name_only(module: Any, **options: Any) -> Any:
    """Replicas that are to rest on the CPU stay where they are."""
    return right.replicate_fsdp(module, **without_policy(options))


leaves_all_buffers = called_otherwise("arguments/moves-to-device", leaves_buffers)
leaves_some_buffers = called_otherwise("arguments/moves-the-rest-to-device", leaves_buffers_of_parallel_nets)
leaves_inputs = mutant("arguments/inputs-to-device", after=brings_inputs_back)
makes_dicts_plain = mutant("arguments/ordered-dicts-to-device", after=gives_plain_dicts)
takes_other_devices = called_otherwise("arguments/one-device-type", leaves_what_is_elsewhere)
moves_in_silence = given("offload/refuses-other-devices", brings_it_back)
returns_early = given("offload/pinned", returns_before_gradients)
pins_nothing = changed("offload/pinned-memory", without_pinning)
offloads_nothing = changed("offload/resting-places", without_policy)
offloads_no_replicas = replace(right, name=name_of("offload/replicas"), replicate_fsdp=replicates_in_name_only)
enters_on_the_device = given("state-dict/offload-pinned", enters_copies_on_the_device)
keeps_copies = mutant("memory/on-device", after=keeps_a_copy)
keeps_offloaded_copies = given("memory/offloaded", keeps_copies_on_the_device)
divides_by_no_factor = without("reduction/divide-factor-alone", "set_gradient_divide_factor")
gathers_none_ahead = mutant("overlap/forward-ahead", after=instead("set_modules_to_forward_prefetch", waits_if_listed))
hides_no_forward = mutant("overlap/forward", after=waits_after_forward)
hides_no_backward = mutant("overlap/backward", after=waits_in_backward)
hides_no_all_reduce = mutant("overlap/replicas", after=instead("set_all_reduce_hook", computes_after_it))
takes_an_older_event = mutant("overlap/waits-for-step", after=waits_for_an_older_event)
takes_no_notice = mutant("overlap/waits-for-step", after=waits_by_a_plain_stream)
stays_as_it_came_back = mutant("interactions/two-ranks", after=instead("to", gathers_what_came_back))
ignores_the_event = without("overlap/after-step", "set_post_optim_event")

#: The allocator and a clock, which thread ranks would share.
IN_PROCESSES = {
    "keeps_copies", "keeps_offloaded_copies", "gathers_none_ahead", "hides_no_forward", "hides_no_backward",
    "hides_no_all_reduce",
    "ignores_the_event",
}  # fmt: skip
#: What a CPU does not show, though the requirement is tried there, too.
ON_DEVICES = {"offloads_nothing", "offloads_no_replicas", "stays_as_it_came_back"}

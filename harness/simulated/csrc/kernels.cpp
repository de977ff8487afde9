// Operators with kernels of their own: those that make tensors, look at them otherwise, or move numbers.
#include "kernels.h"

#include "guard.h"
#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace simulated {

namespace {

using at::Tensor;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_of(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? *device : c10::Device(kDevice, current_device());
}

void refuse_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "expected a CPU tensor to pin, got one on the simulated device");
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
             std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  refuse_pinned(pinned);
  c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(size, allocator(), kKeys, at::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> /*layout*/, std::optional<c10::Device> device,
                     std::optional<bool> pinned) {
  refuse_pinned(pinned);
  c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, at::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

Tensor& set_storage_(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

Tensor& set_nothing_(Tensor& self) {
  at::Storage none(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  self.set_(none, 0, {0}, {});
  return self;
}

// The current stream's work becomes known to the host.
void wait_for(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(clocks().mutex);
  synchronize(clocks().stream(current_stream(device)));
}

// From a device to pinned memory: it is there when the host has waited.
void copy_to_pinned(const Tensor& self, const Tensor& dst) {
  Tensor value = at::empty_strided(dst.sizes(), dst.strides(), dst.options().pinned_memory(false));
  value.copy_(on_cpu(self).expand(dst.sizes()));
  Launch made = launch(self.device().index(), "aten::copy_ (device to host)", {{self}, {}});
  std::lock_guard<std::mutex> lock(clocks().mutex);
  land_later(static_cast<char*>(dst.data_ptr()), static_cast<const char*>(value.data_ptr()), value.nbytes(), made);
}

void copy_to_host(const Tensor& self, const Tensor& dst, bool non_blocking) {
  if (non_blocking && is_pinned(dst.data_ptr()) && dst.is_non_overlapping_and_dense()) {
    copy_to_pinned(self, dst);
    return;
  }
  launch(self.device().index(), "aten::copy_ (device to host)", {{self}, {}});
  wait_for(self.device().index());
  dst.copy_(on_cpu(self));
}

void copy_from_host(const Tensor& self, const Tensor& dst, bool non_blocking) {
  auto device = dst.device().index();
  {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    land(clocks().stream(current_stream(device))); // what this stream has waited for
  }
  on_cpu(dst).copy_(self);
  launch(device, "aten::copy_ (host to device)", {{}, {dst}});
  if (!non_blocking) {
    wait_for(device);
  }
}

// On one device, or from one to another: then both current streams wait for each other.
void copy_on_devices(const Tensor& self, const Tensor& dst) {
  on_cpu(dst).copy_(on_cpu(self));
  if (self.device() == dst.device()) {
    launch(dst.device().index(), "aten::copy_", {{self}, {dst}});
    return;
  }
  auto meet = [&] {
    std::lock_guard<std::mutex> lock(clocks().mutex);
    Moment& one = clocks().stream(current_stream(self.device().index()));
    Moment& other = clocks().stream(current_stream(dst.device().index()));
    one.join(other);
    other.join(one);
  };
  meet();
  launch(self.device().index(), "aten::copy_ (device to device)", {{self}, {dst}});
  meet();
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView guard;
  if (dst.numel() == 0) {
    return dst;
  }
  if (self.device().type() != kDevice) {
    copy_from_host(self, dst, non_blocking);
  } else if (dst.device().type() != kDevice) {
    copy_to_host(self, dst, non_blocking);
  } else {
    copy_on_devices(self, dst);
  }
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar(const Tensor& self) {
  launch(self.device().index(), "aten::item", {{self}, {}});
  wait_for(self.device().index());
  return at::_local_scalar_dense(on_cpu(self));
}

void record_stream(Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

void convolution(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  static const auto cpu = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run_on_cpu(cpu, stack);
}

void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto cpu = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  size_t first = stack->size() - op.schema().arguments().size();
  int64_t channels = (*stack)[first].toTensor().size(1);
  stack->insert(stack->begin() + static_cast<int64_t>(first) + 3, c10::IValue(c10::List<int64_t>({channels})));
  run_on_cpu(cpu, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_", &set_nothing_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

bool are_alike(c10::DispatchKeySet /*keys*/, const Tensor& self, const Tensor& other) {
  return self.device().type() == kDevice || other.device().type() == kDevice;
}

// `tensor.data = other`: also from a CPU to the device and back, as modules are moved.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &are_alike);
}

} // namespace

} // namespace simulated

// Any operator without a kernel of its own: arguments become CPU tensors over the same memory, results device tensors.
#include "guard.h"
#include "kernels.h"
#include "memory.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

namespace simulated {

namespace {

// Costs, in microseconds: of any kernel, of a byte, and of an operation of a product of matrices.
constexpr double kKernel = 1;
constexpr double kByte = 1e-3;

double cost_of(const Touched& touched) {
  double bytes = 0;
  for (const auto* tensors : {&touched.read, &touched.written}) {
    for (const auto& tensor : *tensors) {
      bytes += static_cast<double>(tensor.nbytes());
    }
  }
  return kKernel + bytes * kByte;
}

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

// The arguments of a call, and what stands for them on the CPU.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {
    const auto& schema = op.schema();
    size_t count = schema.arguments().size();
    auto given = torch::jit::last(*stack, count);
    for (const auto& value : given) {
      find(value);
    }
    for (size_t i = 0; i < count; ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      is_written_ = alias != nullptr && alias->isWrite();
      c10::IValue& slot = (*stack)[stack->size() - count + i];
      slot = replaced(slot, schema.arguments()[i]);
    }
  }

  c10::DeviceIndex device() const {
    return device_ < 0 ? current_device() : device_;
  }

  void run() {
    at::AutoDispatchBelowADInplaceOrView guard;
    bool swaps = !has_generator_ && op_.hasTag(at::Tag::nondeterministic_seeded);
    auto cpu = at::detail::getDefaultCPUGenerator();
    at::Tensor before = swaps ? cpu.get_state() : at::Tensor();
    if (swaps) {
      cpu.set_state(next_for_cpu(default_generator(device()), numbers_).get_state());
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    if (swaps) {
      cpu.set_state(before);
    }
  }

  void finish() {
    for (auto& [cpu, ours] : aliases_) {
      adopt(cpu, ours);
    }
    size_t count = op_.schema().returns().size();
    for (size_t i = stack_->size() - count; i < stack_->size(); ++i) {
      (*stack_)[i] = returned((*stack_)[i]);
    }
    launch(device(), c10::toString(op_.operator_name()), touched_);
    if (op_.hasTag(at::Tag::dynamic_output_shape) || op_.hasTag(at::Tag::data_dependent_output)) {
      std::lock_guard<std::mutex> lock(clocks().mutex);
      synchronize(clocks().stream(current_stream(device())));
    }
  }

 private:
  // Which device it is: that of its tensors, else the one that is named.
  void find(const c10::IValue& value) {
    if (value.isTensor() && is_ours(value.toTensor())) {
      meet(value.toTensor().device());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        if (is_ours(tensor)) {
          meet(tensor.device());
        }
      }
    } else if (value.isDevice() && value.toDevice().type() == kDevice && value.toDevice().has_index()) {
      meet(value.toDevice());
    }
  }

  void meet(c10::Device device) {
    TORCH_CHECK(device_ < 0 || device_ == device.index(), c10::toString(op_.operator_name()),
                ": expected tensors of one device, got some of device ", static_cast<int>(device_), " and of device ",
                static_cast<int>(device.index()));
    device_ = device.index();
  }

  c10::IValue replaced(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) {
      return on_cpu_or_refused(value.toTensor());
    }
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorList()) {
        tensors.push_back(on_cpu_or_refused(tensor));
      }
      return c10::IValue(tensors);
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        tensors.push_back(tensor.has_value() ? std::optional(on_cpu_or_refused(*tensor)) : std::nullopt);
      }
      return c10::IValue(tensors);
    }
    if (value.isDevice()) {
      return c10::IValue(c10::Device(c10::kCPU));
    }
    if (argument.name() == "generator") {
      has_generator_ = true;
      const auto& given = value.isNone() ? default_generator(device()) : value.toGenerator();
      return c10::IValue(given.device().type() == kDevice ? next_for_cpu(given, numbers_) : given);
    }
    return value;
  }

  at::Tensor on_cpu_or_refused(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (!is_ours(tensor)) {
      bool is_index = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
      TORCH_CHECK(tensor.dim() == 0 || is_index, c10::toString(op_.operator_name()),
                  ": expected all tensors on the simulated device, got one on ", tensor.device(), " with dtype ",
                  tensor.scalar_type(), " and shape ", tensor.sizes(), "; move it there first");
      return tensor;
    }
    numbers_ = std::max(numbers_, tensor.numel());
    (is_written_ ? touched_.written : touched_.read).push_back(tensor);
    at::Tensor cpu = on_cpu(tensor);
    aliases_.emplace_back(cpu, tensor);
    return cpu;
  }

  // What an operator did to a tensor of ours beside its numbers: it may have another shape and other memory.
  static void adopt(const at::Tensor& cpu, const at::Tensor& ours) {
    if (cpu.storage().data() != ours.storage().data()) {
      ours.resize_(cpu.sizes());
      on_cpu(ours).copy_(cpu);
    } else if (cpu.sizes() != ours.sizes() || cpu.strides() != ours.strides()) {
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
    }
  }

  c10::IValue returned(const c10::IValue& value) {
    if (value.isTensor()) {
      return ours_of(value.toTensor());
    }
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorList()) {
        tensors.push_back(ours_of(tensor));
      }
      return c10::IValue(tensors);
    }
    return value;
  }

  at::Tensor ours_of(const at::Tensor& made) {
    if (!made.defined()) {
      return made;
    }
    for (const auto& [cpu, ours] : aliases_) {
      if (cpu.is_same(made)) {
        return ours;
      }
      if (made.storage().data() != nullptr && cpu.storage().data() == made.storage().data()) {
        return ours.as_strided(made.sizes(), made.strides(), made.storage_offset());
      }
    }
    auto options = made.options().device(c10::Device(kDevice, device()));
    bool is_dense = made.is_non_overlapping_and_dense();
    at::Tensor ours = is_dense ? at::empty_strided(made.sizes(), made.strides(), options) : at::empty(made.sizes(), options);
    on_cpu(ours).copy_(made);
    touched_.written.push_back(ours);
    return ours;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;
  Touched touched_;
  c10::DeviceIndex device_ = -1;
  int64_t numbers_ = 1;
  bool is_written_ = false;
  bool has_generator_ = false;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace

at::Tensor on_cpu(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto* data = const_cast<void*>(storage.data());
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(data, c10::Device(c10::kCPU)),
                    c10::GetCPUAllocator(), /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  if (tensor.is_conj()) {
    made._set_conj(true);
  }
  if (tensor.is_neg()) {
    made._set_neg(true);
  }
  return made;
}

Launch launch(c10::DeviceIndex device, const std::string& name, const Touched& touched, std::optional<double> cost) {
  auto origin = Origin::here(name); // before the lock: Python's own may be needed
  std::lock_guard<std::mutex> lock(clocks().mutex);
  int stream = clocks().number(current_stream(device));
  Launch made = clocks().launch(stream, name, cost.has_value() ? *cost : cost_of(touched));
  for (const auto& tensor : touched.read) {
    note_access(tensor, made, false, origin);
  }
  for (const auto& tensor : touched.written) {
    note_access(tensor, made, true, origin);
  }
  return made;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, stack);
  call.run();
  call.finish();
}

} // namespace simulated

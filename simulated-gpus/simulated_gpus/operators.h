// Every operator runs on the CPU, on the same memory. What is added: the devices of its arguments must agree.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <unordered_map>

#include "runtime.h"

namespace simulated {
using at::Tensor;
using c10::IValue;

// Tensors of a GPU as tensors of the CPU over the same memory. Tensors that share a storage go on sharing one,
// so that PyTorch still notices when an operator writes over what it reads.
class Twins {
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages;

  c10::Storage of(const c10::Storage& storage) {
    auto& twin = storages[storage.unsafeGetStorageImpl()];
    if (!twin)
      twin = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                          c10::DataPtr(storage.mutable_data(), new c10::Storage(storage), &release, Device(c10::kCPU)),
                          nullptr, false);
    return twin;
  }
  static void release(void* storage) { delete static_cast<c10::Storage*>(storage); }  // a twin keeps the memory alive

 public:
  Tensor operator()(const Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kGpu)
      return tensor;
    if (tensor.is_sparse())
      return at::_sparse_coo_tensor_unsafe((*this)(tensor._indices()), (*this)(tensor._values()), tensor.sizes(), {}, {},
                                           {}, {}, tensor.is_coalesced());
    auto twin = at::detail::make_tensor<c10::TensorImpl>(of(tensor.storage()),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    twin.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    twin._set_conj(tensor.is_conj());
    twin._set_neg(tensor.is_neg());
    return twin;
  }
};

// Applies a change to all tensors of an argument or of a result.
template <class Change>
IValue change(const IValue& value, Change tensor) {
  if (value.isTensor())
    return tensor(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& item : value.toTensorVector())
      list.push_back(tensor(item));
    return list;
  }
  if (value.isList() && *value.type() == *c10::ListType::create(c10::ListType::ofTensors())) {
    c10::impl::GenericList lists(c10::ListType::ofTensors());
    for (const IValue& item : value.toListRef())
      lists.push_back(change(item, tensor));
    return lists;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& item : value.toOptionalTensorVector())
      list.push_back(item ? std::optional(tensor(*item)) : std::nullopt);
    return list;
  }
  return value;
}

// The GPU of an operator: that of its tensors, or else the one asked for. Raises as CUDA's kernels do if they disagree.
inline Device common_device(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  static const std::set<std::string> mixing = {  // may get indices or lengths on the CPU
      "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::_index_put_impl_", "aten::_pack_padded_sequence"};
  const auto& schema = op.schema();
  const bool pointwise = op.hasTag(at::Tag::pointwise), mixes = mixing.count(schema.name());
  std::optional<Device> common;
  for (size_t i = 0; i < arguments.size(); ++i) {
    change(arguments[i], [&](const Tensor& tensor) {
      if (!tensor.defined() || (tensor.device().is_cpu() && (mixes || (pointwise && tensor.dim() == 0))))
        return tensor;
      TORCH_CHECK(!pointwise || !common || *common == tensor.device(),
                  "Expected all tensors to be on the same device, but found at least two devices, ", *common, " and ",
                  tensor.device(), "!");
      const auto method = "wrapper_CUDA_" + schema.name().substr(schema.name().find("::") + 2);
      c10::impl::check_and_update_common_device(common, tensor, method.c_str(), schema.arguments()[i].name().c_str());
      return tensor;
    });
    if (arguments[i].isDevice() && !common)
      common = Guard::full(arguments[i].toDevice());
  }
  return common.value_or(Device(kGpu, current));
}

// A tensor that the CPU has made, on this device.
inline Tensor moved(const Tensor& tensor, Device device) {
  if (!tensor.defined() || tensor.device().type() == kGpu)
    return tensor;
  return tensor.to(device);
}

// Gives a GPU's tensor the contents that its stand-in has got.
inline void write_back(const Tensor& original, const Tensor& stand_in) {
  if (original.is_sparse()) {
    auto* target = static_cast<at::SparseTensorImpl*>(original.unsafeGetTensorImpl());
    target->resize_(stand_in.sparse_dim(), stand_in.dense_dim(), stand_in.sizes());
    target->set_indices_and_values_unsafe(moved(stand_in._indices(), original.device()),
                                          moved(stand_in._values(), original.device()));
    target->set_coalesced(stand_in.is_coalesced());
  } else {
    original.resize_(stand_in.sizes());
    original.copy_(stand_in);
  }
}

inline bool written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

inline bool is_generator(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

inline void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& schema = op.schema();
  const auto& names = schema.arguments();
  const std::vector<IValue> given = torch::jit::pop(*stack, names.size());
  const c10::DeviceGuard guard(common_device(op, given));
  const Device device(kGpu, current);

  Twins twin;
  std::vector<std::pair<Tensor, Tensor>> replaced;  // tensors that the operator may give another size
  for (size_t i = 0; i < given.size(); ++i) {
    auto stand_in = [&](const Tensor& tensor) {
      const bool resizable = tensor.defined() && tensor.device().type() == kGpu && written(names[i]) &&
          (tensor.is_sparse() || tensor.numel() == 0);
      if (!resizable)
        return twin(tensor);
      replaced.emplace_back(tensor, tensor.is_sparse() ? twin(tensor) : at::empty_like(tensor, at::device(at::kCPU)));
      return replaced.back().second;
    };
    if (given[i].isDevice())
      stack->emplace_back(Device(c10::kCPU));
    else if (is_generator(names[i]))
      stack->emplace_back(twin_of(given[i].toOptional<at::Generator>()));
    else
      stack->push_back(change(given[i], stand_in));
  }
  op.callBoxed(stack);
  for (const auto& [original, stand_in] : replaced)
    write_back(original, stand_in);

  const auto results = torch::jit::pop(*stack, schema.returns().size());
  for (size_t r = 0; r < results.size(); ++r) {
    const auto* same = schema.returns()[r].alias_info();
    auto argument = std::find_if(names.begin(), names.end(), [&](const c10::Argument& a) {
      return same && same->isWrite() && written(a) && *a.alias_info() == *same;
    });
    if (argument != names.end())
      stack->push_back(given[argument - names.begin()]);
    else
      stack->push_back(change(results[r], [&](const Tensor& tensor) { return moved(tensor, device); }));
  }
}

// The collectives of torch.distributed: the CPU's backend gets the same memory. Nobody looks at the tensors returned.
inline void collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Twins twin;
  for (const IValue& value : torch::jit::pop(*stack, op.schema().arguments().size()))
    stack->push_back(change(value, [&](const Tensor& tensor) { return twin(tensor); }));
  op.callBoxed(stack);
}

inline void take_collectives() {
  struct Silent final : c10::WarningHandler {  // PyTorch warns that CUDA's kernels are overridden, as they shall be
    void process(const c10::Warning&) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::GPU, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.rfind("c10d::", 0) == 0)
      library.impl(name.name.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&collective>());
}

// ---- what cannot be left to the CPU: making tensors, viewing them, copying them

inline Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(Device(kGpu)));
  return at::detail::empty_generic(size, &memory, kKeys,
                                   c10::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(Device(kGpu)));
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys,
                                           c10::dtype_or_default(dtype));
}

inline const Tensor& resize(const Tensor& tensor, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(tensor.device());  // new memory is the current device's
  return at::native::resize_(tensor, size, format);
}

inline Tensor& copy(Tensor& target, const Tensor& source, bool) {
  if (target.is_same(source))
    return target;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Twins twin;
  twin(target).copy_(twin(source));
  return target;
}

inline at::Scalar item(const Tensor& tensor) { return Twins()(tensor).item(); }
inline void record_stream(Tensor&, Stream) {}

inline Tensor& set_storage(Tensor& tensor, at::Storage source, int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(source), offset, size, stride);
}

// The CPU's own native_dropout takes no generator, so it would draw from the CPU's.
inline std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0)
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {p == 1 ? at::zeros_like(input) : input.mul(mask).mul_(1 / (1 - p)), mask};
}

// Cells of recurrent networks: fused kernels on CUDA, here PyTorch's ordinary operators, which have gradients already.

using Gates = std::vector<Tensor>;

inline Tensor with(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& c,
                                                    const std::optional<Tensor>& input_bias,
                                                    const std::optional<Tensor>& hidden_bias) {
  const Gates gates = (with(input, input_bias) + with(hidden, hidden_bias)).chunk(4, 1);
  const auto next = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next.tanh(), next, at::empty({0}, c.options())};
}

inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& h,
                                           const std::optional<Tensor>& input_bias,
                                           const std::optional<Tensor>& hidden_bias) {
  const Gates in = with(input, input_bias).chunk(3, 1), back = with(hidden, hidden_bias).chunk(3, 1);
  const auto reset = (in[0] + back[0]).sigmoid(), update = (in[1] + back[1]).sigmoid();
  const auto fresh = (in[2] + reset * back[2]).tanh();
  return {fresh + update * (h - fresh), at::empty({0}, h.options())};
}
}  // namespace simulated

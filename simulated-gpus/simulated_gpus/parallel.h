// What torch.nn.parallel asks of C++: comm.py, as torch/csrc/cuda/comm.cpp does it without NCCL, and DDP.
#pragma once
#include <ATen/WrapDimUtils.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/tensor_flatten.h>

#include "operators.h"

namespace simulated {
using Tensors = std::vector<Tensor>;
using Indices = std::vector<int64_t>;

inline Device gpu(int64_t index) {
  TORCH_CHECK(index >= 0, "Expected non-negative device index, but got ", index);
  return {kGpu, static_cast<DeviceIndex>(index)};
}

// A chunk that is at home already stays a view of the tensor; all others are copies.
inline Tensors scatter(const Tensor& tensor, const Indices& devices, const std::optional<Indices>& sizes, int64_t dim) {
  TORCH_CHECK(!devices.empty(), "Expected at least one device to scatter to");
  TORCH_CHECK(!sizes || sizes->size() == devices.size(),
              "Expected devices and chunk_sizes to be of same length, but got len(devices) = ", devices.size(),
              " and len(chunk_sizes) = ", sizes ? sizes->size() : 0);
  dim = at::maybe_wrap_dim(dim, tensor);
  Tensors chunks = sizes ? tensor.split_with_sizes(*sizes, dim) : tensor.chunk(devices.size(), dim);
  for (size_t i = 0; i < chunks.size(); ++i)
    if (devices[i] != tensor.get_device())
      chunks[i] = chunks[i].to(gpu(devices[i]), chunks[i].scalar_type(), true, false, at::MemoryFormat::Preserve);
  return chunks;
}

// The first tensor decides the dtype; the others are copied into place.
inline Tensor gather(const Tensors& tensors, int64_t dim, std::optional<int64_t> destination) {
  TORCH_CHECK(!tensors.empty(), "Expected at least one tensor to gather from");
  const Tensor& first = tensors.front();
  dim = at::maybe_wrap_dim(dim, first);
  auto size = first.sizes().vec();
  auto format = first.suggest_memory_format();
  int64_t total = 0;
  Indices sizes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    TORCH_CHECK(tensor.device().type() == kGpu, "Expected all input tensors to be CUDA tensors, but tensor at index ", i,
                " has device ", tensor.device());
    TORCH_CHECK(tensor.dim() == first.dim(), "Expected all input tensors to have the same number of dimensions, but "
                "tensor at index ", i, " has ", tensor.dim(), " dimensions, (expected ", first.dim(), ")");
    size[dim] = tensor.size(dim);
    TORCH_CHECK(tensor.sizes() == size, "Input tensor at index ", i, " has invalid shape ", tensor.sizes(),
                ", but expected ", at::IntArrayRef(size));
    if (tensor.suggest_memory_format() != format)
      format = at::MemoryFormat::Contiguous;
    sizes.push_back(tensor.size(dim));
    total += sizes.back();
  }
  size[dim] = total;
  const auto home = destination == -1 ? Device(c10::kCPU) : destination ? gpu(*destination) : Device(kGpu, current);
  auto output = at::empty(size, first.options().device(home), format);
  auto places = output.split_with_sizes(sizes, dim);
  for (size_t i = 0; i < tensors.size(); ++i)
    places[i].copy_(tensors[i]);
  return output;
}

inline Tensors broadcast(const Tensor& tensor, const Indices& devices) {
  Tensors copies;
  for (auto device : devices)
    copies.push_back(device == tensor.get_device() ? tensor : tensor.to(gpu(device)));
  return copies;
}

// The first device gets the tensors themselves. For the others they travel in parcels; each copy, though a part of a
// parcel, gets a version counter of its own (tensor_data), lest a change of one spoil the gradients of the others.
inline std::vector<Tensors> broadcast_coalesced(const Tensors& tensors, const Indices& devices, size_t parcel) {
  for (const auto& tensor : tensors)
    TORCH_CHECK(tensor.get_device() == devices[0], "All tensors must be on devices[0]: ", devices[0]);
  std::vector<Tensors> outputs(devices.size());
  outputs[0] = tensors;
  for (auto& chunk : torch::utils::take_tensors(tensors, parcel)) {
    if (chunk.options().layout() == at::kSparse) {
      for (size_t i = 1; i < devices.size(); ++i)
        for (const auto& tensor : chunk.tensors)
          outputs[i].push_back(tensor.to(gpu(devices[i])));
      continue;
    }
    const auto copies = broadcast(torch::utils::flatten_dense_tensors(chunk.tensors), devices);
    for (size_t i = 1; i < devices.size(); ++i)
      for (const auto& part : torch::utils::unflatten_dense_tensors(copies[i], chunk.tensors))
        outputs[i].push_back(torch::autograd::make_variable(part.tensor_data(), false));
  }
  for (size_t i = 1; i < devices.size(); ++i)  // the parcels were made by dtype
    torch::utils::reorder_tensors_like(outputs[i], tensors);
  return outputs;
}

// DistributedDataParallel notes how long its parts take, with a clock for each kind of device.
struct Clock final : c10d::Timer {
  explicit Clock(Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional(*to - *from) : std::nullopt;
  }
};
}  // namespace simulated

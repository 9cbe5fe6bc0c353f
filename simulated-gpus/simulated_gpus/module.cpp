// Registers the devices with PyTorch, as CUDA or, under a name of their own, as PrivateUse1: see README.md.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include "parallel.h"

using namespace simulated;
namespace py = pybind11;

namespace {
C10_REGISTER_GUARD_IMPL(GPU, simulated::Guard)
REGISTER_ALLOCATOR(kGpu, &simulated::memory)
}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, kGpu, simulated::Clock)
}  // namespace c10d

TORCH_LIBRARY_IMPL(_, GPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
TORCH_LIBRARY_IMPL(_, SparseGPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, GPU, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize));
  library.impl("copy_", TORCH_FN(copy));
  library.impl("_local_scalar_dense", TORCH_FN(item));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("native_dropout", TORCH_FN(native_dropout));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  // The first two pick a kernel by device, and for CUDA one that is not in this build. The others would come here in
  // parts, the last of which warns that it gives its result another size.
  for (auto* name : {"convolution", "convolution_backward", "mse_loss", "smooth_l1_loss"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, AutogradGPU, library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
}

TORCH_LIBRARY_IMPL(aten, SparseGPU, library) {
  library.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  library.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  library.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  library.impl("_values", TORCH_FN(at::native::_values_sparse));
  library.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  library.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  library.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  library.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  library.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  library.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
}

#ifndef TAKE_THE_PLACE_OF_CUDA  // PyTorch knows CUDA's casts itself
#define CAST_DOWN(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define CAST_UP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(CAST_DOWN)
  AT_FORALL_FP32(CAST_UP)
}
#endif

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  module.def("start", [](DeviceIndex devices) {
    start(devices);
    take_collectives();
  });
  module.def("current", [] { return current; });
  module.def("set_current", &set_current);
  module.def("generators", [] { return generators; });
  module.def("bytes", [](DeviceIndex i) { return std::pair<int64_t, int64_t>(meters.at(i).used, meters.at(i).peak); });
  module.def("reset_peak", [](DeviceIndex i) { meters.at(i).peak = meters.at(i).used.load(); });
  module.def("resize_storage", &resize_storage);
  module.def("broadcast", &broadcast, unlocked);
  module.def("broadcast_coalesced", &broadcast_coalesced, unlocked);
  module.def("gather", &gather, unlocked);
  // Streams make no difference here.
  module.def("scatter", [](const Tensor& tensor, const Indices& devices, const std::optional<Indices>& sizes, int64_t dim,
                           const py::object&) { return scatter(tensor, devices, sizes, dim); });
}

// What a GPU has besides kernels: memory, a current device, streams, events, random generators.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

// Which of PyTorch's kinds of device this is.
#ifdef TAKE_THE_PLACE_OF_CUDA
#define GPU CUDA
#define SparseGPU SparseCUDA
#define AutogradGPU AutogradCUDA
#else
#define GPU PrivateUse1
#define SparseGPU SparsePrivateUse1
#define AutogradGPU AutogradPrivateUse1
#endif

namespace simulated {
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr auto kGpu = c10::DeviceType::GPU;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::GPU);
constexpr DeviceIndex kMost = 64;

inline DeviceIndex count = 0;  // set once, by start(), to at most kMost
inline thread_local DeviceIndex current = 0;
inline thread_local std::array<c10::StreamId, kMost> streams{};  // the current stream of each device; 0 is the default

inline void set_current(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < count, "CUDA error: invalid device ordinal");
  current = index;
}

// ---- memory: the CPU's, counted as CUDA does, in blocks of 512 bytes

struct Meter {
  std::atomic<int64_t> used{0}, peak{0};

  void add(int64_t bytes) {
    int64_t now = used += bytes, seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};
inline std::array<Meter, kMost> meters;

struct Block {
  void* data;
  int64_t bytes;
  DeviceIndex device;
};

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    if (!n)
      return {nullptr, Device(kGpu, current)};
    auto* block = new Block{c10::alloc_cpu(n), int64_t((n + 511) / 512 * 512), current};
    meters[current].add(block->bytes);
    return {block->data, block, &release, Device(kGpu, current)};
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    meters[block->device].used -= block->bytes;
    c10::free_cpu(block->data);
    delete block;
  }
  void copy_data(void* target, const void* source, size_t n) const override {
    default_copy_data(target, source, n);
  }
};
inline Memory memory;

inline void resize_storage(const c10::Storage& storage, size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  auto fresh = memory.allocate(bytes);
  if (const auto kept = std::min(bytes, storage.nbytes()))
    std::memcpy(fresh.get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

// Pinned memory is ordinary memory whose addresses are remembered, so that is_pinned() can answer.
struct PinnedMemory final : c10::Allocator {
  static inline std::mutex mutex;
  static inline std::map<const char*, const char*> ranges;  // begin -> end

  c10::DataPtr allocate(size_t n) override {
    auto* data = static_cast<char*>(c10::alloc_cpu(std::max<size_t>(n, 1)));
    std::lock_guard lock(mutex);
    ranges[data] = data + std::max<size_t>(n, 1);
    return {data, data, &release, Device(c10::kCPU)};
  }
  static void release(void* data) {
    std::lock_guard lock(mutex);
    ranges.erase(static_cast<char*>(data));
    c10::free_cpu(data);
  }
  static bool holds(const void* address) {
    std::lock_guard lock(mutex);
    auto next = ranges.upper_bound(static_cast<const char*>(address));
    return next != ranges.begin() && address < std::prev(next)->second;
  }
  void copy_data(void* target, const void* source, size_t n) const override {
    default_copy_data(target, source, n);
  }
};
inline PinnedMemory pinned_memory;

// ---- the current device, streams, events. Work is done at once, so there is nothing to wait for.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Time = std::chrono::steady_clock::time_point;

  c10::DeviceType type() const override { return kGpu; }
  DeviceIndex deviceCount() const noexcept override { return count; }
  Device getDevice() const override { return {kGpu, current}; }
  void setDevice(Device device) const override { set_current(full(device).index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current = full(device).index(); }
  Device exchangeDevice(Device device) const override {
    auto old = getDevice();
    setDevice(device);
    return old;
  }
  static Device full(Device device) { return device.has_index() ? device : Device(kGpu, current); }

  Stream getStream(Device device) const override {
    return Stream(Stream::UNSAFE, full(device), streams[full(device).index()]);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, full(device)); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream getNewStream(Device device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return Stream(Stream::UNSAFE, full(device), ++last);
  }
  Stream exchangeStream(Stream stream) const override {
    auto old = getStream(stream.device());
    streams[stream.device_index()] = stream.id();
    return old;
  }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}

  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event)
      *event = new Time;
    *static_cast<Time*>(*event) = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Time*>(event); }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Time*>(end) - *static_cast<Time*>(start)).count();
  }
};

// ---- random numbers: a device's generator leads a generator of the CPU, which the CPU's kernels can draw from

struct Generator final : c10::GeneratorImpl {
  at::Generator twin = at::detail::createCPUGenerator();

  explicit Generator(DeviceIndex index)
      : GeneratorImpl(Device(kGpu, index), kKeys) {}
  void set_current_seed(uint64_t seed) override { twin.set_current_seed(seed); }
  uint64_t current_seed() const override { return twin.current_seed(); }
  uint64_t seed() override { return twin.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "simulated GPUs: a generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "simulated GPUs: a generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override { twin.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return twin.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->twin = twin.clone();
    return copy;
  }
};

inline std::vector<at::Generator> generators;  // of each device

inline at::Generator twin_of(const std::optional<at::Generator>& asked) {
  const auto& generator = asked && asked->defined() ? *asked : generators[current];
  TORCH_CHECK(generator.device().type() == kGpu, "Expected a '", kGpu, "' device type for generator but found '",
              generator.device().type(), "'");
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->twin;
}

// ---- what PyTorch's own C++ asks a device

template <class Interface>
struct CommonHooks : Interface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return count; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { set_current(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    auto old = current;
    set_current(index);
    return old;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* address) const override { return PinnedMemory::holds(address); }
  Device getDeviceFromPtr(void*) const override { return {kGpu, current}; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return generators.at(index < 0 ? current : index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current : index);
  }
};

#ifdef TAKE_THE_PLACE_OF_CUDA
struct Hooks final : CommonHooks<at::CUDAHooksInterface> {
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return count; }
  DeviceIndex current_device() const override { return current; }
  void deviceSynchronize(DeviceIndex) const override {}
  c10::Allocator* getCUDADeviceAllocator() const override { return &memory; }

  // `import torch` has looked for CUDA's hooks already and keeps an object that says there are none. It has no
  // members, so that ours fits in its place.
  static void install() {
    static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
    new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks;
  }
};
#else
struct Hooks final : CommonHooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
  static void install() { at::RegisterPrivateUse1HooksInterface(new Hooks); }
};
#endif

inline void start(DeviceIndex devices) {
  count = devices;
  for (DeviceIndex i = 0; i < count; ++i) {
    generators.push_back(at::make_generator<Generator>(i));
    generators.back().seed();
  }
  Hooks::install();
}
}  // namespace simulated

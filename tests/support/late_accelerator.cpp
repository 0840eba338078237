// An accelerator that is made here, on the host's memory, for torch's device type PrivateUse1.
//
// Its streams do what they were given only when somebody waits for it, so whoever reads memory
// without having waited for what writes it sees what was there before: bytes of 0xAA where it is
// new, or was given back. Copies within the device, those that do not block, and fills, are late so;
// every other operation waits for its stream and runs on the CPU. Pinned memory is what the allocator
// below gave.

#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/TensorShape.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace {

constexpr c10::DeviceType LATE = c10::DeviceType::PrivateUse1;
const c10::Device THE_DEVICE(LATE, 0);

struct Queue {
    std::vector<std::function<void()>> work;
    size_t done = 0;
};

struct LateEvent {
    c10::StreamId stream;
    size_t end;
};

std::recursive_mutex running;
std::map<c10::StreamId, Queue> queues;
std::set<const void *> pinned;
c10::StreamId last_stream = 0;
thread_local c10::StreamId current_stream = 0;

// Holds the queues. What was run is forgotten after they are let go: a tensor's end may want
// Python's lock, which a thread that waits for the queues can have.
struct Hold {
    static thread_local std::vector<std::function<void()>> over;
    static thread_local int depth;
    Hold() { running.lock(); depth++; }
    ~Hold() {
        std::vector<std::function<void()>> mine;
        if (--depth == 0)
            mine.swap(over);
        running.unlock();
    }
};
thread_local std::vector<std::function<void()>> Hold::over;
thread_local int Hold::depth = 0;

void run_until(c10::StreamId stream, size_t end) {
    const Hold hold;
    const c10::impl::ExcludeDispatchKeyGuard no_python(c10::DispatchKeySet(
        {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    Queue &queue = queues[stream];
    while (queue.done < end) {
        Hold::over.push_back(std::move(queue.work[queue.done++]));
        const std::function<void()> next = Hold::over.back();
        next();
    }
}

void run_all(c10::StreamId stream) {
    const Hold hold;
    run_until(stream, queues[stream].work.size());
}

void add_work(c10::StreamId stream, std::function<void()> work) {
    const Hold hold;
    queues[stream].work.push_back(std::move(work));
}

void *new_memory(size_t bytes) {
    void *made = malloc(bytes ? bytes : 1);
    memset(made, 0xAA, bytes);
    return made;
}

void free_memory(void *memory) {
    if (memory)
        memset(memory, 0xAA, malloc_usable_size(memory));
    free(memory);
}

struct DeviceMemory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *made = new_memory(bytes);
        return {made, made, &free_memory, THE_DEVICE};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
    void copy_data(void *into, const void *from, size_t bytes) const override {
        memcpy(into, from, bytes);
    }
};

void free_pinned(void *memory) {
    {
        const Hold hold;
        pinned.erase(memory);
    }
    free(memory);
}

struct PinnedMemory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *made = new_memory(bytes);
        const Hold hold;
        pinned.insert(made);
        return {made, made, &free_pinned, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
    void copy_data(void *into, const void *from, size_t bytes) const override {
        memcpy(into, from, bytes);
    }
};

DeviceMemory device_memory;
PinnedMemory pinned_memory;
REGISTER_ALLOCATOR(LATE, &device_memory)

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return LATE; }
    c10::Device exchangeDevice(c10::Device) const override { return THE_DEVICE; }
    c10::Device getDevice() const override { return THE_DEVICE; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    c10::Stream stream_of(c10::StreamId id) const {
        return c10::Stream(c10::Stream::UNSAFE, THE_DEVICE, id);
    }
    c10::Stream getStream(c10::Device) const override { return stream_of(current_stream); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
    c10::Stream getNewStream(c10::Device, int) const override {
        const Hold hold;
        return stream_of(++last_stream);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
        return getNewStream(device, 0);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override {
        const c10::StreamId before = current_stream;
        current_stream = stream.id();
        return stream_of(before);
    }
    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
                const c10::EventFlag) const override {
        const Hold hold;
        if (!*event)
            *event = new LateEvent;
        *static_cast<LateEvent *>(*event) = {stream.id(), queues[stream.id()].work.size()};
    }
    void block(void *event, const c10::Stream &stream) const override {
        if (!event)
            return;
        const LateEvent at = *static_cast<LateEvent *>(event);
        add_work(stream.id(), [at] { run_until(at.stream, at.end); });
    }
    bool queryEvent(void *event) const override {
        const Hold hold;
        const auto *at = static_cast<LateEvent *>(event);
        return !at || queues[at->stream].done >= at->end;
    }
    void synchronizeEvent(void *event) const override {
        if (const auto *at = static_cast<LateEvent *>(event))
            run_until(at->stream, at->end);
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override {
        delete static_cast<LateEvent *>(event);
    }
    bool queryStream(const c10::Stream &stream) const override {
        const Hold hold;
        return queues[stream.id()].done == queues[stream.id()].work.size();
    }
    void synchronizeStream(const c10::Stream &stream) const override { run_all(stream.id()); }
    void synchronizeDevice(const c10::DeviceIndex) const override {
        for (c10::StreamId stream = 0; stream <= last_stream; stream++)
            run_all(stream);
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    void setCurrentDevice(c10::DeviceIndex) const override {}
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
    bool isPinnedPtr(const void *data) const override {
        const Hold hold;
        return pinned.count(data) > 0;
    }
    c10::Allocator *getPinnedMemoryAllocator() const override { return &pinned_memory; }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override {
        run_all(current_stream); // memory goes in the order of the stream
        c10::DataPtr made = device_memory.allocate(bytes);
        memcpy(made.get(), storage.data(), std::min(bytes, storage.nbytes()));
        storage.set_data_ptr_noswap(std::move(made));
        storage.set_nbytes(bytes);
    }
};

// What operations are made of

at::Tensor on_host(const at::Tensor &tensor) {
    return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                         at::TensorOptions().dtype(tensor.dtype()));
}

bool is_pinned_memory(const at::Tensor &tensor) {
    const Hold hold;
    return pinned.count(tensor.storage().data()) > 0;
}

at::Tensor empty_late(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                      std::optional<at::MemoryFormat> format) {
    return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(
        c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided_late(c10::IntArrayRef size, c10::IntArrayRef stride,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<at::Device>, std::optional<bool>) {
    return at::detail::empty_strided_generic(size, stride, &device_memory, c10::DispatchKeySet(
        c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor copy_late(const at::Tensor &from, const at::Tensor &into, bool non_blocking) {
    add_work(current_stream, [from, into] {
        const at::NoGradGuard plain;
        on_host(into).copy_(on_host(from));
    });
    bool late = true; // within the device it is so, whatever was asked for
    for (const at::Tensor &end : {from, into})
        late &= !end.is_cpu() || (non_blocking && is_pinned_memory(end));
    if (!late)
        run_all(current_stream);
    return into;
}

at::Tensor copy_and_resize(const at::Tensor &from, const at::Tensor &into) {
    into.resize_(from.sizes());
    return copy_late(from, into, false);
}

at::Tensor &fill_late(at::Tensor &tensor, const at::Scalar &value) {
    add_work(current_stream, [tensor, value] { on_host(tensor).fill_(value); });
    return tensor;
}

void keep_for_stream(at::Tensor &, at::Stream) {}

const at::Tensor &resize_late(const at::Tensor &tensor, c10::SymIntArrayRef size,
                              std::optional<at::MemoryFormat>) {
    c10::IntArrayRef whole = C10_AS_INTARRAYREF_SLOW(size);
    const size_t bytes = c10::multiply_integers(whole) * tensor.itemsize();
    at::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
    if (bytes > storage->nbytes()) {
        run_all(current_stream);
        storage->set_data_ptr(device_memory.allocate(bytes));
        storage->set_nbytes(bytes);
    }
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(whole);
    return tensor;
}

at::Tensor &set_late(at::Tensor &tensor, at::Storage storage, c10::SymInt offset,
                     c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
        C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
    return tensor;
}

void on_the_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    run_all(current_stream);
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
    library.impl("empty.memory_format", &empty_late);
    library.impl("empty_strided", &empty_strided_late);
    library.impl("_copy_from", &copy_late);
    library.impl("_copy_from_and_resize", &copy_and_resize);
    library.impl("fill_.Scalar", &fill_late);
    library.impl("record_stream", &keep_for_stream);
    library.impl("resize_", &resize_late);
    library.impl("set_.source_Storage_storage_offset", &set_late);
    library.impl("as_strided", [](const at::Tensor &self, c10::SymIntArrayRef size,
                                  c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
        return at::native::as_strided_tensorimpl(
            self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
            offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
    });
    library.impl("view", [](const at::Tensor &self, c10::SymIntArrayRef size) {
        return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
    });
    library.impl("_reshape_alias", [](const at::Tensor &self, c10::SymIntArrayRef size,
                                      c10::SymIntArrayRef stride) {
        return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                          C10_AS_INTARRAYREF_SLOW(stride));
    });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

struct Registered {
    Registered() {
        static Hooks hooks;
        at::RegisterPrivateUse1HooksInterface(&hooks);
    }
} registered;

}  // namespace

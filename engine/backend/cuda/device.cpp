#include "engine/backend/cuda/device.h"

#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/selftest.h"
#include "engine/base/index.h"

#include <utility>

namespace keyhole::cuda {
namespace {

class Device final : public CudaDevice {
  public:
    explicit Device(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

    DeviceIdentity identity() const override { return executor_->identity(); }
    MemoryUse memory() const override { return executor_->memory(); }
    LaunchCounts counts() const override { return executor_->counts(); }

    std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model,
                                          const ProductOptions& products) override {
        return make_cuda_backend(std::move(model), executor_, products);
    }
    std::vector<SelfTestLine> check_kernels(const ProofProgress& progress) override {
        return run_selftest(executor_, {}, progress);
    }

    std::shared_ptr<std::byte> allocate(std::int64_t n_bytes) override {
        const auto buffer = std::make_shared<Buffer<std::byte>>(executor_, to_index(n_bytes));
        executor_->clear(buffer->data(), buffer->size_bytes());
        executor_->wait();
        return {buffer, buffer->data()};
    }
    void copy(std::byte* to, const std::byte* from, std::int64_t n_bytes) override {
        executor_->copy(to, from, to_index(n_bytes));
        executor_->wait();
    }

  private:
    std::shared_ptr<Executor> executor_;
};

}  // namespace

std::unique_ptr<CudaDevice> make_cuda_device(std::shared_ptr<Executor> executor) {
    return std::make_unique<Device>(std::move(executor));
}

}  // namespace keyhole::cuda
